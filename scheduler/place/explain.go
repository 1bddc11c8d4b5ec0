package place

import (
	"setpoint.dev/setpoint/scheduler/score"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// Explanation is what is decided about a pod, node by node.
type Explanation struct {
	// Refused is why no node will do, whichever it is.
	Refused *Verdict `json:"refused,omitempty"`
	// Nodes are what each node is told.
	Nodes []NodeVerdict `json:"nodes"`
}

// Verdict is a filter's no.
type Verdict struct {
	Filter  string   `json:"filter"`
	Reasons []string `json:"reasons"`
	// Preemptible says that it may help if pods go.
	Preemptible bool `json:"preemptible"`
}

// NodeVerdict is what a node is told: a no, or how good it is.
type NodeVerdict struct {
	Node    string   `json:"node"`
	Refused *Verdict `json:"refused,omitempty"`
	// Scores are weighted; Total is their sum.
	Scores map[string]int64 `json:"scores,omitempty"`
	Total  *int64           `json:"total,omitempty"`
}

// Explain decides about every node, also those that a search would not come to.
func (p *Profile) Explain(s *snapshot.Snapshot, pod *snapshot.Pod) (*Explanation, error) {
	if len(s.Nodes) == 0 {
		return &Explanation{Nodes: []NodeVerdict{}}, nil
	}
	whole := *p
	whole.Percentage = 100
	d := whole.newDecision(s, pod, Turn{})
	if err := d.begin(); err != nil {
		return nil, err
	}
	e := &Explanation{Nodes: make([]NodeVerdict, 0, len(s.Nodes))}
	if d.none != nil {
		e.Refused = verdict(*d.none)
		return e, nil
	}
	feasible := d.look(0)
	for _, r := range d.refused {
		e.Nodes = append(e.Nodes, NodeVerdict{Node: r.Node.Name(), Refused: verdict(r)})
	}
	e.Nodes = append(e.Nodes, d.unnamed()...)
	begin := len(e.Nodes)
	for _, n := range feasible {
		e.Nodes = append(e.Nodes, NodeVerdict{Node: n.Name(), Scores: map[string]int64{}, Total: new(int64)})
	}
	if len(feasible) == 0 {
		return e, nil
	}
	return e, d.weigh(feasible, func(by *score.Score, i int, weighted int64) {
		v := &e.Nodes[begin+i]
		v.Scores[by.Name] = weighted
		*v.Total += weighted
	})
}

// unnamed are nodes that the pod does not ask for by name.
func (d *Decision) unnamed() []NodeVerdict {
	if d.only == nil {
		return nil
	}
	named := map[string]bool{}
	for _, name := range d.only {
		named[name] = true
	}
	var all []NodeVerdict
	for _, n := range d.cycle.Nodes {
		if !named[n.Name()] {
			all = append(all, NodeVerdict{Node: n.Name(), Refused: &Verdict{Filter: d.onlyBy, Reasons: []string{d.notNamed()}}})
		}
	}
	return all
}

func verdict(r Refusal) *Verdict {
	return &Verdict{Filter: r.Filter, Reasons: r.Reasons, Preemptible: !r.Final}
}
