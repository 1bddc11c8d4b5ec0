package snapshot

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/topology"
)

// Node is a node with the pods that are on it, or are about to be. It does not
// change: who wants another takes a Clone.
type Node struct {
	Object *corev1.Node
	// Allocatable is what pods can have, Requested what they have; NonZero
	// counts containers that ask for nothing with a default.
	Allocatable, Requested Resources
	NonZero                Amount
	Pods                   []*Pod
	// Affine are the pods that have terms of affinity, Apart those of them that
	// must be apart from others.
	Affine, Apart []*Pod
	Ports         []HostPort
	// Classes count the pods by class.
	Classes []Count
	// Images are the sizes of the images that the node has, by name.
	Images map[string]int64
}

// setObject makes the node that of an object; what runs on it stays.
func (n *Node) setObject(o *corev1.Node) {
	n.Object, n.Allocatable, n.Images = o, ResourcesOf(o.Status.Allocatable), nil
	for _, image := range o.Status.Images {
		for _, name := range image.Names {
			if n.Images == nil {
				n.Images = make(map[string]int64, 2*len(o.Status.Images))
			}
			n.Images[name] = image.SizeBytes
		}
	}
}

// NewNode returns a node that nothing runs on.
func NewNode(o *corev1.Node) *Node {
	n := &Node{}
	n.setObject(o)
	return n
}

// Name is the node's.
func (n *Node) Name() string { return n.Object.Name }

// Zone is where the node is; nodes of several zones are looked at in turns.
func (n *Node) Zone() string { return topology.GetZoneKey(n.Object) }

// Clone returns a node that may be changed.
func (n *Node) Clone() *Node {
	c := *n
	c.Pods, c.Affine, c.Apart = grown(n.Pods), grown(n.Affine), grown(n.Apart)
	c.Ports, c.Classes = slices.Clone(n.Ports), grown(n.Classes)
	return &c
}

// grown is a copy with room for one more.
func grown[T any](of []T) []T {
	if len(of) == 0 {
		return nil
	}
	return append(make([]T, 0, len(of)+1), of...)
}

// Add puts a pod on a node that may be changed.
func (n *Node) Add(p *Pod) {
	n.Pods = append(n.Pods, p)
	if p.Affine() {
		n.Affine = append(n.Affine, p)
	}
	if len(p.Apart) > 0 {
		n.Apart = append(n.Apart, p)
	}
	n.Ports = append(n.Ports, p.Ports...)
	n.count(p.Class(), 1)
	n.Requested.plus(&p.Requests, 1)
	n.NonZero.MilliCPU += p.NonZero.MilliCPU
	n.NonZero.Memory += p.NonZero.Memory
}

// Remove takes the pod with the same UID off a node that may be changed.
func (n *Node) Remove(p *Pod) {
	same := func(other *Pod) bool { return other.Object.UID == p.Object.UID }
	i := slices.IndexFunc(n.Pods, same)
	if i < 0 {
		return
	}
	p = n.Pods[i]
	n.Pods = slices.Delete(n.Pods, i, i+1)
	n.Affine = slices.DeleteFunc(n.Affine, same)
	n.Apart = slices.DeleteFunc(n.Apart, same)
	for _, port := range p.Ports {
		if at := slices.Index(n.Ports, port); at >= 0 {
			n.Ports = slices.Delete(n.Ports, at, at+1)
		}
	}
	n.count(p.Class(), -1)
	n.Requested.plus(&p.Requests, -1)
	n.NonZero.MilliCPU -= p.NonZero.MilliCPU
	n.NonZero.Memory -= p.NonZero.Memory
}

func (n *Node) count(c *Class, by int) {
	i := slices.IndexFunc(n.Classes, func(other Count) bool { return other.Class == c })
	switch {
	case i < 0 && by > 0:
		n.Classes = append(n.Classes, Count{c, by})
	case i >= 0:
		n.Classes[i].N += by
		if n.Classes[i].N == 0 {
			n.Classes = slices.Delete(n.Classes, i, i+1)
		}
	}
}

// ImageName is the name under which nodes have an image that a pod asks for.
func ImageName(asked string) string {
	if strings.LastIndex(asked, ":") <= strings.LastIndex(asked, "/") {
		return asked + ":latest"
	}
	return asked
}

// interleave puts nodes in the order in which they are looked at: those of all
// zones in turns.
func interleave(nodes map[string]*Node) []*Node {
	zones := map[string][]*Node{}
	for _, n := range nodes {
		if n.Object != nil {
			zones[n.Zone()] = append(zones[n.Zone()], n)
		}
	}
	names := slices.Sorted(maps.Keys(zones))
	longest := 0
	for _, in := range zones {
		slices.SortFunc(in, func(a, b *Node) int { return strings.Compare(a.Name(), b.Name()) })
		longest = max(longest, len(in))
	}
	all := make([]*Node, 0, len(nodes))
	for i := range longest {
		for _, zone := range names {
			if in := zones[zone]; i < len(in) {
				all = append(all, in[i])
			}
		}
	}
	return all
}
