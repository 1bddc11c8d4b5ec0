// Package snapshot is what a placement is decided from: nodes with the pods that
// are on them or are about to be, and the objects that pods name.
//
// In come nodes and pods as the API tells of them, and placements as they are
// decided; out comes a Snapshot, which does not change. A Cache keeps up with
// what comes in: a change makes one node anew, and a snapshot is a list of the
// nodes there are. What always holds: a pod is on one node at most, and a node's
// sums are those of its pods.
package snapshot

import "maps"

// Snapshot is the cluster at one moment. Nothing in it is changed.
type Snapshot struct {
	// Nodes are in the order in which they are looked at.
	Nodes []*Node
	// Affine and Apart are how many pods there are with terms of affinity, and
	// with terms by which they must be apart from others.
	Affine, Apart int
	// Images are how many nodes have an image, by its name.
	Images map[string]int
	// Claims are how many pods use a claim, by its namespace and name.
	Claims map[string]int
	// Nominated are pods that wait for room on a node, by its name.
	Nominated map[string][]*Pod
	// Objects are what pods name.
	Objects *Objects

	positions map[string]int
	classes   int
}

// Node is the node of a name, nil when there is none.
func (s *Snapshot) Node(name string) *Node {
	if i, has := s.positions[name]; has {
		return s.Nodes[i]
	}
	return nil
}

// Snapshot returns the cluster as it is now.
func (c *Cache) Snapshot() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unordered {
		c.order = interleave(c.nodes)
		c.positions = make(map[string]int, len(c.order))
		for i, n := range c.order {
			c.positions[n.Name()] = i
		}
		c.unordered = false
	}
	s := &Snapshot{
		Nodes: append(make([]*Node, 0, len(c.order)), c.order...), positions: c.positions, classes: c.classes.limit,
		Affine: c.affine, Apart: c.apart, Objects: c.objects,
		Images: c.images.share(), Claims: c.claims.share(), Nominated: c.nominated.share(),
	}
	return s
}

// shared is a map that snapshots have, too: it is copied before it is changed,
// if one has been taken since it was last.
type shared[V any] struct {
	m     map[string]V
	taken bool
}

func (s *shared[V]) share() map[string]V {
	s.taken = true
	return s.m
}

// own is the map, to be changed.
func (s *shared[V]) own() map[string]V {
	switch {
	case s.m == nil:
		s.m = map[string]V{}
	case s.taken:
		s.m = maps.Clone(s.m)
	}
	s.taken = false
	return s.m
}

// add counts a name.
func add(s *shared[int], name string, by int) {
	m := s.own()
	m[name] += by
	if m[name] <= 0 {
		delete(m, name)
	}
}
