package snapshot

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cache keeps up with the cluster. A placement is assumed from the moment that it
// is decided until the API shows it, or until it is forgotten because it could
// not be written.
type Cache struct {
	objects *Objects

	mu        sync.Mutex       // guards the fields below
	nodes     map[string]*Node // those that pods name without being there have no object
	order     []*Node
	positions map[string]int
	unordered bool // order and positions are to be made anew
	pods      map[types.UID]placed
	classes   classes
	affine    int
	apart     int
	images    shared[int]
	claims    shared[int]
	nominated shared[[]*Pod]
	nominees  map[types.UID]string // where they are nominated
}

// placed is a pod on a node.
type placed struct {
	pod     *Pod
	node    string
	assumed bool
}

// NewCache returns a cache of nothing, whose snapshots look up objects.
func NewCache(objects *Objects) *Cache {
	return &Cache{objects: objects, nodes: map[string]*Node{}, pods: map[types.UID]placed{}, nominees: map[types.UID]string{}}
}

// SetNode says that a node is there, or has changed.
func (c *Cache) SetNode(o *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.nodes[o.Name]
	n := &Node{}
	if before != nil {
		n = before.Clone()
	}
	n.setObject(o)
	if before != nil && before.Object != nil {
		c.countImages(before, -1)
	}
	c.countImages(n, 1)
	if before == nil || before.Object == nil || before.Zone() != n.Zone() {
		c.unordered = true
	}
	c.putLocked(o.Name, n)
}

func (c *Cache) countImages(n *Node, by int) {
	for name := range n.Images {
		add(&c.images, name, by)
	}
}

// putLocked makes a node the one of its name.
func (c *Cache) putLocked(name string, n *Node) {
	c.nodes[name] = n
	if i, has := c.positions[name]; has && !c.unordered {
		c.order[i] = n
	}
}

// RemoveNode says that a node is gone. Its pods are still there for as long as
// the API shows them.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil || n.Object == nil {
		return
	}
	c.countImages(n, -1)
	c.unordered = true
	if len(n.Pods) == 0 {
		delete(c.nodes, name)
		return
	}
	n = n.Clone()
	n.Object, n.Images = nil, nil
	c.nodes[name] = n
}

// SetPod says that a pod is on a node, or has changed.
func (c *Cache) SetPod(p *Pod, node string) { c.place(p, node, false) }

// Assume says that a pod is about to be on a node.
func (c *Cache) Assume(p *Pod, node string) { c.place(p, node, true) }

func (c *Cache) place(p *Pod, node string, assumed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(p.Object.UID)
	c.unnominateLocked(p.Object.UID)
	mine := *p
	mine.class = c.classes.take(p.Object)
	c.pods[p.Object.UID] = placed{&mine, node, assumed}
	n := &Node{}
	if before := c.nodes[node]; before != nil {
		n = before.Clone()
	}
	n.Add(&mine)
	c.putLocked(node, n)
	c.countPodLocked(&mine, 1)
}

func (c *Cache) countPodLocked(p *Pod, by int) {
	if p.Affine() {
		c.affine += by
	}
	if len(p.Apart) > 0 {
		c.apart += by
	}
	for _, claim := range p.Claims {
		add(&c.claims, p.Object.Namespace+"/"+claim, by)
	}
}

// RemovePod says that a pod is gone, wherever it was.
func (c *Cache) RemovePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(uid)
	c.unnominateLocked(uid)
}

func (c *Cache) removeLocked(uid types.UID) {
	was, has := c.pods[uid]
	if !has {
		return
	}
	delete(c.pods, uid)
	c.countPodLocked(was.pod, -1)
	c.classes.give(was.pod.Object)
	n := c.nodes[was.node].Clone()
	n.Remove(was.pod)
	if n.Object == nil && len(n.Pods) == 0 {
		delete(c.nodes, was.node)
		return
	}
	c.putLocked(was.node, n)
}

// Forget says that a pod that was assumed to be on a node will not be there.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods[uid].assumed {
		c.removeLocked(uid)
	}
}

// Placed is the node that a pod is on, or is about to be.
func (c *Cache) Placed(uid types.UID) (node string, assumed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[uid]
	return p.node, p.assumed
}

// Nominate says that a pod waits for room on a node; "" is none.
func (c *Cache) Nominate(p *Pod, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, has := c.pods[p.Object.UID]; has {
		return
	}
	c.unnominateLocked(p.Object.UID)
	if node == "" {
		return
	}
	c.nominees[p.Object.UID] = node
	m := c.nominated.own()
	m[node] = append(slices.Clone(m[node]), p)
}

// Nominated are the pods that wait for room on a node.
func (c *Cache) Nominated(node string) []*Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nominated.m[node]
}

func (c *Cache) unnominateLocked(uid types.UID) {
	node, has := c.nominees[uid]
	if !has {
		return
	}
	delete(c.nominees, uid)
	m := c.nominated.own()
	left := slices.DeleteFunc(slices.Clone(m[node]), func(p *Pod) bool { return p.Object.UID == uid })
	if len(left) == 0 {
		delete(m, node)
		return
	}
	m[node] = left
}
