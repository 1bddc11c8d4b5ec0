package snapshot

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Class is what pods have in common that no selector can tell apart: their
// namespace, their labels, and whether they are going. Pods of one workload are
// mostly of one class, so what runs where is counted by class.
type Class struct {
	Namespace string
	Labels    labels.Set
	// Going says that the pods have been deleted and are still there.
	Going bool

	// id is the class's own among those of a snapshot; negative for a class that
	// is in no cache.
	id int
}

// Count is how many pods of a class there are.
type Count struct {
	Class *Class
	N     int
}

// ClassOf is the class of a pod that is in no cache.
func ClassOf(pod *corev1.Pod) *Class {
	return &Class{Namespace: pod.Namespace, Labels: pod.Labels, Going: pod.DeletionTimestamp != nil, id: -1}
}

// classes are the classes of all pods that are placed. An id is given away anew
// when no pod is of its class any more.
type classes struct {
	known map[string]*known
	free  []int
	limit int
}

type known struct {
	Class
	pods int
}

// take returns the class of a pod, which is let go by give.
func (c *classes) take(pod *corev1.Pod) *Class {
	key := classKey(pod)
	k := c.known[key]
	if k == nil {
		k = &known{Class: *ClassOf(pod)}
		if last := len(c.free) - 1; last >= 0 {
			k.id, c.free = c.free[last], c.free[:last]
		} else {
			k.id = c.limit
			c.limit++
		}
		if c.known == nil {
			c.known = map[string]*known{}
		}
		c.known[key] = k
	}
	k.pods++
	return &k.Class
}

func (c *classes) give(pod *corev1.Pod) {
	key := classKey(pod)
	k := c.known[key]
	k.pods--
	if k.pods == 0 {
		delete(c.known, key)
		c.free = append(c.free, k.id)
	}
}

// classKey tells classes apart. Neither names nor labels have its separators.
func classKey(pod *corev1.Pod) string {
	names := make([]string, 0, 8)
	size := len(pod.Namespace) + 2
	for name, value := range pod.Labels {
		names = append(names, name)
		size += len(name) + len(value) + 2
	}
	slices.Sort(names)
	var b strings.Builder
	b.Grow(size)
	b.WriteString(pod.Namespace)
	if pod.DeletionTimestamp != nil {
		b.WriteByte('!')
	}
	for _, name := range names {
		b.WriteByte(',')
		b.WriteString(name)
		b.WriteByte('=')
		b.WriteString(pod.Labels[name])
	}
	return b.String()
}

// Matches remembers of which classes of a snapshot something is true. It is for
// one goroutine.
type Matches struct {
	is   func(*Class) bool
	seen []int8 // by id: 0 is not known, 1 true, -1 false
}

// Matching returns a memory of is.
func (s *Snapshot) Matching(is func(*Class) bool) *Matches {
	return &Matches{is: is, seen: make([]int8, s.classes)}
}

// Of says whether it is true of a class.
func (m *Matches) Of(c *Class) bool {
	if c.id < 0 {
		return m.is(c)
	}
	switch m.seen[c.id] {
	case 1:
		return true
	case -1:
		return false
	}
	is := m.is(c)
	m.seen[c.id] = -1
	if is {
		m.seen[c.id] = 1
	}
	return is
}

// On is of how many pods on a node it is true.
func (m *Matches) On(n *Node) int {
	sum := 0
	for _, c := range n.Classes {
		if m.Of(c.Class) {
			sum += c.N
		}
	}
	return sum
}
