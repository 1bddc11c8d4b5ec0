// Package cycle is what is known of one pod while a node is looked for.
//
// In come a snapshot, the pod and the settings of its profile; out comes what
// filters and scores share: which nodes the pod asks for, which pods its terms
// are about, how it is to be spread. Each is worked out when first asked for. What
// always holds: nothing here changes the snapshot. A Cycle is for one goroutine.
package cycle

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"setpoint.dev/setpoint/scheduler/snapshot"
)

// Settings are what a profile adds to what pods ask for.
type Settings struct {
	// Required and Preferred are affinity to nodes that every pod has; nil is
	// none.
	Required  *nodeaffinity.NodeSelector
	Preferred *nodeaffinity.PreferredSchedulingTerms
	// Spread is how pods are spread that do not say, in place of the defaults of
	// the system when OwnSpread says so.
	Spread    []corev1.TopologySpreadConstraint
	OwnSpread bool
	// NearWeight is what it counts that a pod which is there must be near the
	// new one.
	NearWeight int64
}

// DefaultNearWeight is what NearWeight is unless somebody says otherwise.
// Compat: it is upstream's.
const DefaultNearWeight = 1

// Cycle is one pod for which a node is looked for.
type Cycle struct {
	*snapshot.Snapshot
	Pod      *snapshot.Pod
	Settings *Settings

	required     func() nodeaffinity.RequiredNodeAffinity
	namespace    func() labels.Set
	near         func() []snapshot.Term
	apart        func() []snapshot.Term
	must, should func() ([]Constraint, error)
}

// New begins the search for a node.
func New(s *snapshot.Snapshot, pod *snapshot.Pod, settings *Settings) *Cycle {
	c := &Cycle{Snapshot: s, Pod: pod, Settings: settings}
	c.required = sync.OnceValue(func() nodeaffinity.RequiredNodeAffinity { return nodeaffinity.GetRequiredNodeAffinity(pod.Object) })
	c.namespace = sync.OnceValue(func() labels.Set { return s.Objects.NamespaceLabels(pod.Object.Namespace) })
	c.near = sync.OnceValue(func() []snapshot.Term { return c.named(pod.Near) })
	c.apart = sync.OnceValue(func() []snapshot.Term { return c.named(pod.Apart) })
	c.must = sync.OnceValues(func() ([]Constraint, error) { return c.constraints(corev1.DoNotSchedule) })
	c.should = sync.OnceValues(func() ([]Constraint, error) { return c.constraints(corev1.ScheduleAnyway) })
	return c
}

// Wants says whether the pod's node selector and affinity allow a node.
func (c *Cycle) Wants(n *corev1.Node) bool {
	required := c.required()
	ok, _ := required.Match(n) // Compat: a selector that cannot be read matches nothing
	return ok
}

// NamespaceLabels are those of the pod's namespace.
func (c *Cycle) NamespaceLabels() labels.Set { return c.namespace() }

// Near are the terms of affinity that must hold, with their namespaces by name.
func (c *Cycle) Near() []snapshot.Term { return c.near() }

// Apart are the terms of anti-affinity that must hold, with their namespaces by
// name.
func (c *Cycle) Apart() []snapshot.Term { return c.apart() }

// Preferred are terms that should hold, with their namespaces by name.
func (c *Cycle) Preferred(from []snapshot.Weighted) []snapshot.Weighted {
	terms := make([]snapshot.Weighted, 0, len(from))
	for i := range from {
		terms = append(terms, snapshot.Weighted{Term: c.names(from[i].Term), Weight: from[i].Weight})
	}
	return terms
}

func (c *Cycle) named(from []snapshot.Term) []snapshot.Term {
	terms := make([]snapshot.Term, 0, len(from))
	for i := range from {
		terms = append(terms, c.names(from[i]))
	}
	return terms
}

// names puts names in the place of a selector of namespaces. The empty selector
// stays: it is of all.
func (c *Cycle) names(t snapshot.Term) snapshot.Term {
	if t.NamespaceSelector.Empty() {
		return t
	}
	found, err := c.Objects.Namespaces.List(t.NamespaceSelector)
	if err != nil {
		return t
	}
	t.Namespaces = sets.New(t.Namespaces.UnsortedList()...)
	for _, ns := range found {
		t.Namespaces.Insert(ns.Name)
	}
	t.NamespaceSelector = labels.Nothing()
	return t
}

// Tolerates says whether a pod may be on a node with these taints.
func Tolerates(pod *corev1.Pod, taints []corev1.Taint) bool {
	if len(taints) == 0 {
		return true
	}
	_, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, false)
	return !found
}

// TermsMatch says whether all terms are about pods of a class; with no terms it
// is false.
func TermsMatch(terms []snapshot.Term, class *snapshot.Class) bool {
	for i := range terms {
		if !terms[i].Matches(class, nil) {
			return false
		}
	}
	return len(terms) > 0
}
