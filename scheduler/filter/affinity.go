package filter

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

var (
	notNear   = final("node(s) didn't match pod affinity rules")
	notApart  = passing("node(s) didn't match pod anti-affinity rules")
	unwelcome = passing("node(s) didn't satisfy existing pods anti-affinity rules")
)

// podAffinity is for affinity and anti-affinity between pods, also that of those
// which are there.
var podAffinity = Filter{
	Name: "InterPodAffinity",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		a := newAffine(c)
		if len(a.unwelcome) == 0 && len(a.near) == 0 && len(a.apart) == 0 {
			return nil, nil, nil
		}
		return a, nil, nil
	},
	Wakes: []Wake{
		{event.Pod, event.Add | event.Labels | event.Delete, affineByPod},
		{event.Node, event.Add | event.Labels, affineByNode},
		{event.Namespace, event.Add | event.Labels, nil},
	},
}

// domain is all nodes that have one value of a label.
type domain struct{ key, value string }

// affine counts, by domain, pods that terms are about.
type affine struct {
	c           *cycle.Cycle
	near, apart []snapshot.Term
	// self says that the pod's own terms are about itself.
	self bool
	// nearby are pods that the pod must be near, faraway those that it must be
	// apart from, unwelcome those that must be apart from it.
	nearby, faraway, unwelcome map[domain]int
}

func newAffine(c *cycle.Cycle) *affine {
	a := &affine{c: c, near: c.Near(), apart: c.Apart(), nearby: map[domain]int{}, faraway: map[domain]int{}, unwelcome: map[domain]int{}}
	a.self = cycle.TermsMatch(a.near, c.Pod.Class())
	if c.Snapshot.Apart > 0 {
		for _, n := range c.Nodes {
			for _, p := range n.Apart {
				a.countUnwelcome(p, n, 1)
			}
		}
	}
	if len(a.near)+len(a.apart) == 0 {
		return a
	}
	near := c.Matching(func(class *snapshot.Class) bool { return cycle.TermsMatch(a.near, class) })
	apart := make([]*snapshot.Matches, len(a.apart))
	for i := range a.apart {
		apart[i] = c.Matching(func(class *snapshot.Class) bool { return a.apart[i].Matches(class, nil) })
	}
	for _, n := range c.Nodes {
		if count := near.On(n); count > 0 {
			for i := range a.near {
				step(a.nearby, n, a.near[i].TopologyKey, count)
			}
		}
		for i := range a.apart {
			if count := apart[i].On(n); count > 0 {
				step(a.faraway, n, a.apart[i].TopologyKey, count)
			}
		}
	}
	return a
}

// step counts pods in the domain of a node.
func step(counts map[domain]int, n *snapshot.Node, key string, by int) {
	value, has := n.Object.Labels[key]
	if !has {
		return
	}
	d := domain{key, value}
	counts[d] += by
	if counts[d] == 0 {
		delete(counts, d)
	}
}

// countUnwelcome counts the terms of a pod that are about the new one.
func (a *affine) countUnwelcome(p *snapshot.Pod, n *snapshot.Node, by int) {
	for i := range p.Apart {
		if p.Apart[i].Matches(a.c.Pod.Class(), a.c.NamespaceLabels()) {
			step(a.unwelcome, n, p.Apart[i].TopologyKey, by)
		}
	}
}

// Reject implements Check.
func (a *affine) Reject(n *snapshot.Node) *Rejection {
	if !a.nearEnough(n) {
		return notNear
	}
	if len(a.faraway) > 0 {
		for i := range a.apart {
			if value, has := n.Object.Labels[a.apart[i].TopologyKey]; has && a.faraway[domain{a.apart[i].TopologyKey, value}] > 0 {
				return notApart
			}
		}
	}
	if len(a.unwelcome) > 0 {
		for key, value := range n.Object.Labels {
			if a.unwelcome[domain{key, value}] > 0 {
				return unwelcome
			}
		}
	}
	return nil
}

// nearEnough says whether a node is in the domains of pods that the pod must be
// near. The first of pods that want to be near each other may be anywhere.
func (a *affine) nearEnough(n *snapshot.Node) bool {
	all := true
	for i := range a.near {
		value, has := n.Object.Labels[a.near[i].TopologyKey]
		if !has {
			return false
		}
		all = all && a.nearby[domain{a.near[i].TopologyKey, value}] > 0
	}
	return all || len(a.nearby) == 0 && a.self
}

// Clone implements Mover.
func (a *affine) Clone() Mover {
	clone := *a
	clone.nearby, clone.faraway, clone.unwelcome = maps.Clone(a.nearby), maps.Clone(a.faraway), maps.Clone(a.unwelcome)
	return &clone
}

// Move implements Mover.
func (a *affine) Move(p *snapshot.Pod, n *snapshot.Node, by int) {
	a.countUnwelcome(p, n, by)
	if cycle.TermsMatch(a.near, p.Class()) {
		for i := range a.near {
			step(a.nearby, n, a.near[i].TopologyKey, by)
		}
	}
	for i := range a.apart {
		if a.apart[i].Matches(p.Class(), nil) {
			step(a.faraway, n, a.apart[i].TopologyKey, by)
		}
	}
}

// affineByPod says whether a change of a pod may change what terms are about.
func affineByPod(c *cycle.Cycle, e *event.Event) bool {
	before, after := sides[*corev1.Pod](e)
	if before != nil && after != nil && itself(c, e) {
		return true
	}
	if before != nil && !held(before) || after != nil && !held(after) {
		return false
	}
	near := func(p *corev1.Pod) bool { return p != nil && cycle.TermsMatch(c.Near(), snapshot.ClassOf(p)) }
	apart := func(p *corev1.Pod) bool { return p != nil && anyMatches(c.Apart(), snapshot.ClassOf(p), nil) }
	if !near(before) && near(after) || apart(before) && !apart(after) {
		return true
	}
	if after != nil {
		return false
	}
	gone, err := snapshot.NewPod(before)
	return err != nil || anyMatches(gone.Apart, c.Pod.Class(), c.NamespaceLabels())
}

func anyMatches(terms []snapshot.Term, class *snapshot.Class, namespace labels.Set) bool {
	return slices.ContainsFunc(terms, func(t snapshot.Term) bool { return t.Matches(class, namespace) })
}

// affineByNode says whether a change of a node changes domains of terms.
func affineByNode(c *cycle.Cycle, e *event.Event) bool {
	before, after := sides[*corev1.Node](e)
	if before == nil {
		return true
	}
	value := func(n *corev1.Node, key string) (string, bool) {
		v, has := n.Labels[key]
		return v, has
	}
	for i := range c.Pod.Near {
		was, had := value(before, c.Pod.Near[i].TopologyKey)
		is, has := value(after, c.Pod.Near[i].TopologyKey)
		if has && (!had || was != is) {
			return true
		}
	}
	for i := range c.Pod.Apart {
		was, had := value(before, c.Pod.Apart[i].TopologyKey)
		is, has := value(after, c.Pod.Apart[i].TopologyKey)
		if had && (!has || was != is) {
			return true
		}
	}
	return false
}
