package filter

import (
	"maps"
	"math"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

var (
	skewed   = passing("node(s) didn't match pod topology spread constraints")
	keyless  = final("node(s) didn't match pod topology spread constraints (missing required label)")
	noDomain = math.MaxInt
)

// spread is for constraints on how pods are spread.
var spread = Filter{
	Name: "PodTopologySpread",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		constraints, err := c.MustSpread()
		if err != nil || len(constraints) == 0 {
			return nil, nil, err
		}
		return newSpreading(c, constraints), nil, nil
	},
	Wakes: []Wake{
		{event.Pod, event.Add | event.Labels | event.Tolerations | event.Delete, spreadByPod},
		{event.Node, event.Add | event.Delete | event.Labels | event.Taints, spreadByNode},
	},
}

// spreading counts pods in domains.
type spreading struct {
	c           *cycle.Cycle
	constraints []cycle.Constraint
	self        []int            // whether the pod counts itself
	domains     []map[string]int // by constraint: pods by domain
	least       []int            // by constraint: the smallest of them; negative is not known
}

func newSpreading(c *cycle.Cycle, constraints []cycle.Constraint) *spreading {
	s := &spreading{c: c, constraints: constraints, self: make([]int, len(constraints)), least: make([]int, len(constraints))}
	about := make([]*snapshot.Matches, len(constraints))
	for i := range constraints {
		s.domains = append(s.domains, map[string]int{})
		s.least[i] = -1
		about[i] = c.Spread(&constraints[i])
		if constraints[i].Selector.Matches(labels.Set(c.Pod.Object.Labels)) {
			s.self[i] = 1
		}
	}
	for _, n := range c.Nodes {
		if !cycle.HasKeys(n.Object, constraints) {
			continue
		}
		for i := range constraints {
			if k := &constraints[i]; c.Counts(k, n.Object) {
				s.domains[i][n.Object.Labels[k.TopologyKey]] += about[i].On(n)
			}
		}
	}
	return s
}

// fewest is the smallest number of pods in a domain of a constraint. With too few
// domains there is an empty one yet to come.
func (s *spreading) fewest(i int) int {
	if len(s.domains[i]) < s.constraints[i].MinDomains {
		return 0
	}
	if s.least[i] < 0 {
		s.least[i] = noDomain
		for _, pods := range s.domains[i] {
			s.least[i] = min(s.least[i], pods)
		}
	}
	return s.least[i]
}

// Reject implements Check.
func (s *spreading) Reject(n *snapshot.Node) *Rejection {
	for i := range s.constraints {
		k := &s.constraints[i]
		domain, has := n.Object.Labels[k.TopologyKey]
		if !has {
			return keyless
		}
		if s.domains[i][domain]+s.self[i]-s.fewest(i) > k.MaxSkew {
			return skewed
		}
	}
	return nil
}

// Clone implements Mover.
func (s *spreading) Clone() Mover {
	clone := *s
	clone.domains, clone.least = make([]map[string]int, len(s.domains)), append([]int(nil), s.least...)
	for i, pods := range s.domains {
		clone.domains[i] = maps.Clone(pods)
	}
	return &clone
}

// Move implements Mover.
func (s *spreading) Move(p *snapshot.Pod, n *snapshot.Node, by int) {
	if p.Object.Namespace != s.c.Pod.Object.Namespace || !cycle.HasKeys(n.Object, s.constraints) {
		return
	}
	for i := range s.constraints {
		k := &s.constraints[i]
		if k.Selector.Matches(labels.Set(p.Object.Labels)) && s.c.Counts(k, n.Object) {
			s.domains[i][n.Object.Labels[k.TopologyKey]] += by
			s.least[i] = -1
		}
	}
}

// spreadByPod says whether a change of a pod may make another spread better.
func spreadByPod(c *cycle.Cycle, e *event.Event) bool {
	before, after := sides[*corev1.Pod](e)
	concerns := func(p *corev1.Pod) bool {
		return p == nil || p.UID == c.Pod.Object.UID || held(p) && p.Namespace == c.Pod.Object.Namespace
	}
	constraints, err := c.MustSpread()
	if err != nil {
		return true
	}
	if !concerns(before) || !concerns(after) {
		return false
	}
	for i := range constraints {
		k := &constraints[i]
		was := before != nil && k.Selector.Matches(labels.Set(before.Labels))
		is := after != nil && k.Selector.Matches(labels.Set(after.Labels))
		if was != is {
			return true
		}
		if before != nil && after != nil && after.UID == c.Pod.Object.UID && k.HonorTaints && !reflect.DeepEqual(before.Spec.Tolerations, after.Spec.Tolerations) {
			return true
		}
	}
	return false
}

// spreadByNode says whether a change of a node changes domains.
func spreadByNode(c *cycle.Cycle, e *event.Event) bool {
	before, after := sides[*corev1.Node](e)
	constraints, err := c.MustSpread()
	if err != nil {
		return true
	}
	was := before != nil && cycle.HasKeys(before, constraints)
	is := after != nil && cycle.HasKeys(after, constraints)
	if was != is || !is {
		return was != is
	}
	for i := range constraints {
		if key := constraints[i].TopologyKey; before.Labels[key] != after.Labels[key] {
			return true
		}
	}
	return !reflect.DeepEqual(before.Spec.Taints, after.Spec.Taints)
}
