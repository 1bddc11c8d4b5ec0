package score

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// spreading prefers domains with fewer pods that belong together.
type spreading struct {
	constraints []cycle.Constraint
	about       []*snapshot.Matches
	// domains are, by constraint, pods by domain; nil where each node is one.
	domains []map[string]*int
	weights []float64
	every   bool
	// ignored are the nodes that lack a key, by their place among those scored.
	ignored []bool
}

func beginSpread(c *cycle.Cycle, nodes []*snapshot.Node) (Scorer, error) {
	constraints, err := c.ShouldSpread()
	if err != nil || len(constraints) == 0 {
		return nil, err
	}
	s := &spreading{constraints: constraints, every: c.EveryKey(), ignored: make([]bool, 0, len(nodes))}
	for i := range constraints {
		s.about = append(s.about, c.Spread(&constraints[i]))
		if constraints[i].TopologyKey == corev1.LabelHostname {
			s.domains = append(s.domains, nil)
		} else {
			s.domains = append(s.domains, map[string]*int{})
		}
	}
	scored := s.openDomains(nodes)
	for i := range constraints {
		size := scored
		if s.domains[i] != nil {
			size = len(s.domains[i])
		}
		s.weights = append(s.weights, math.Log(float64(size+2)))
	}
	s.countDomains(c)
	return s, nil
}

// openDomains finds the domains of the nodes that are scored, and how many nodes
// are in all of them.
func (s *spreading) openDomains(nodes []*snapshot.Node) int {
	scored := 0
	for _, n := range nodes {
		ignored := s.every && !cycle.HasKeys(n.Object, s.constraints)
		s.ignored = append(s.ignored, ignored)
		if ignored {
			continue
		}
		scored++
		for i := range s.constraints {
			if s.domains[i] == nil {
				continue
			}
			value := n.Object.Labels[s.constraints[i].TopologyKey]
			if s.domains[i][value] == nil {
				s.domains[i][value] = new(int)
			}
		}
	}
	return scored
}

// countDomains counts the pods of domains, which may be on nodes that are not
// scored.
func (s *spreading) countDomains(c *cycle.Cycle) {
	for i := range s.constraints {
		if s.domains[i] == nil {
			continue
		}
		k := &s.constraints[i]
		for _, n := range c.Nodes {
			count := s.domains[i][n.Object.Labels[k.TopologyKey]]
			if count == nil || s.every && !cycle.HasKeys(n.Object, s.constraints) || !c.Counts(k, n.Object) {
				continue
			}
			*count += s.about[i].On(n)
		}
	}
}

// Of implements Scorer.
func (s *spreading) Of(n *snapshot.Node) int64 {
	if s.every && !cycle.HasKeys(n.Object, s.constraints) {
		return 0
	}
	var sum float64
	for i := range s.constraints {
		k := &s.constraints[i]
		value, has := n.Object.Labels[k.TopologyKey]
		if !has {
			continue
		}
		var count int
		if s.domains[i] == nil {
			count = s.about[i].On(n)
		} else {
			count = *s.domains[i][value]
		}
		sum += float64(count)*s.weights[i] + float64(k.MaxSkew-1)
	}
	return int64(math.Round(sum))
}

// Normalize implements Scorer.
func (s *spreading) Normalize(scores []int64) {
	least, most := int64(math.MaxInt64), int64(0)
	for i, score := range scores {
		if !s.ignored[i] {
			least, most = min(least, score), max(most, score)
		}
	}
	for i, score := range scores {
		switch {
		case s.ignored[i]:
			scores[i] = 0
		case most == 0:
			scores[i] = Best
		default:
			scores[i] = Best * (most + least - score) / most
		}
	}
}
