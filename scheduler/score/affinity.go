package score

import (
	"k8s.io/apimachinery/pkg/labels"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// affine prefers nodes that are near pods which should be near, and far from those
// which should not.
type affine struct {
	// sums are, by label and its value, what the terms weigh.
	sums map[string]map[string]int64
}

func beginPodAffinity(c *cycle.Cycle, _ []*snapshot.Node) (Scorer, error) {
	pod := c.Pod
	wishes := len(pod.NearIf)+len(pod.ApartIf) > 0
	if !wishes && c.Affine == 0 {
		return nil, nil
	}
	a := affine{sums: map[string]map[string]int64{}}
	if wishes {
		a.own(c)
	}
	if c.Affine > 0 {
		a.others(c)
	}
	if len(a.sums) == 0 {
		return nil, nil
	}
	return a, nil
}

func (a affine) add(n *snapshot.Node, key string, weight int64) {
	value, has := n.Object.Labels[key]
	if !has {
		return
	}
	if a.sums[key] == nil {
		a.sums[key] = map[string]int64{}
	}
	a.sums[key][value] += weight
}

// own counts what the pod wishes.
func (a affine) own(c *cycle.Cycle) {
	count := func(terms []snapshot.Weighted, sign int64) {
		for i := range terms {
			t := &terms[i]
			about := c.Matching(func(class *snapshot.Class) bool { return t.Matches(class, nil) })
			for _, n := range c.Nodes {
				if pods := about.On(n); pods > 0 {
					a.add(n, t.TopologyKey, sign*t.Weight*int64(pods))
				}
			}
		}
	}
	count(c.Preferred(c.Pod.NearIf), 1)
	count(c.Preferred(c.Pod.ApartIf), -1)
}

// others counts what the pods that are there wish, or must have.
func (a affine) others(c *cycle.Cycle) {
	class, namespace := c.Pod.Class(), c.NamespaceLabels()
	for _, n := range c.Nodes {
		for _, p := range n.Affine {
			a.wish(n, p.NearIf, 1, class, namespace)
			a.wish(n, p.ApartIf, -1, class, namespace)
			if c.Settings.NearWeight <= 0 {
				continue
			}
			for i := range p.Near {
				if p.Near[i].Matches(class, namespace) {
					a.add(n, p.Near[i].TopologyKey, c.Settings.NearWeight)
				}
			}
		}
	}
}

func (a affine) wish(n *snapshot.Node, terms []snapshot.Weighted, sign int64, class *snapshot.Class, namespace labels.Set) {
	for i := range terms {
		if terms[i].Matches(class, namespace) {
			a.add(n, terms[i].TopologyKey, sign*terms[i].Weight)
		}
	}
}

// Of implements Scorer.
func (a affine) Of(n *snapshot.Node) int64 {
	var sum int64
	for key, values := range a.sums {
		if value, has := n.Object.Labels[key]; has {
			sum += values[value]
		}
	}
	return sum
}

// Normalize implements Scorer.
func (a affine) Normalize(scores []int64) {
	least, most := scores[0], scores[0]
	for _, s := range scores {
		least, most = min(least, s), max(most, s)
	}
	for i, s := range scores {
		scores[i] = 0
		if most > least {
			scores[i] = int64(Best * (float64(s-least) / float64(most-least)))
		}
	}
}
