// Package place decides which node a pod goes to.
//
// In come a snapshot, a pod and where to begin looking; out comes a Decision: a
// node, or why none will do and whose going would help. What always holds: a
// decision depends on nothing else, and changes nothing.
package place

import (
	"errors"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/filter"
	"setpoint.dev/setpoint/scheduler/score"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// Profile is one way to place pods. It does not change.
type Profile struct {
	// Name is what pods ask for by spec.schedulerName.
	Name string
	// Percentage is of how many nodes, in hundredths, that a pod may be on the
	// best is looked for; 0 means fewer the more nodes there are.
	Percentage int
	// NoPreemption says that nobody goes for a pod.
	NoPreemption bool

	settings *cycle.Settings
	filters  []filter.Filter
	scores   []score.Score
}

// New returns a profile of filters and scores.
func New(name string, settings cycle.Settings, filters []filter.Filter, scores []score.Score) *Profile {
	return &Profile{Name: name, settings: &settings, filters: filters, scores: scores}
}

// Default is the profile that pods are placed by unless somebody says otherwise.
func Default(name string) *Profile {
	return New(name, cycle.Settings{NearWeight: cycle.DefaultNearWeight}, filter.All(), score.All())
}

// Filters are the filters of the profile, in the order in which they are asked.
func (p *Profile) Filters() []filter.Filter { return p.filters }

// Settings are what the profile adds to what pods ask for.
func (p *Profile) Settings() *cycle.Settings { return p.settings }

// Turn is what differs from one search to the next, so that not all pods go to
// the same nodes.
type Turn struct {
	// Start is the place of the node that is looked at first.
	Start int
	// Tie says which of equally good nodes is taken.
	Tie uint64
}

// ErrNoNodes says that there are no nodes at all.
var ErrNoNodes = errors.New("no nodes available to schedule pods")

// Place looks for a node for a pod.
func (p *Profile) Place(s *snapshot.Snapshot, pod *snapshot.Pod, turn Turn) (*Decision, error) {
	if len(s.Nodes) == 0 {
		return nil, ErrNoNodes
	}
	d := p.newDecision(s, pod, turn)
	if err := d.begin(); err != nil || d.none != nil {
		return d, err
	}
	if name := pod.Object.Status.NominatedNodeName; name != "" {
		if n := s.Node(name); n != nil && d.ask(n) == nil {
			return d, d.settle(n)
		}
		d.refused = nil
	}
	feasible := d.look(turn.Start)
	if len(feasible) == 0 {
		return d, nil
	}
	best, err := d.best(feasible, turn.Tie)
	if err != nil {
		return d, err
	}
	return d, d.settle(best)
}

func (p *Profile) newDecision(s *snapshot.Snapshot, pod *snapshot.Pod, turn Turn) *Decision {
	return &Decision{search: search{profile: p, cycle: cycle.New(s, pod, p.settings)}, turn: turn}
}

// search is the checks of one pod.
type search struct {
	profile *Profile
	cycle   *cycle.Cycle
	checks  []check
}

type check struct {
	filter.Check
	by int // place of its filter
}

// begin has all filters begin.
func (d *Decision) begin() error {
	for i := range d.profile.filters {
		c, none, err := d.profile.filters[i].Begin(d.cycle)
		switch {
		case err != nil:
			return err
		case none != nil:
			d.none = &Refusal{Filter: d.profile.filters[i].Name, Rejection: none}
			d.by |= 1 << i
			return nil
		case c == nil:
			continue
		}
		d.checks = append(d.checks, check{c, i})
		if narrow, is := c.(filter.Narrow); is {
			d.only, d.onlyBy = narrow.Only(), d.profile.filters[i].Name
			d.by |= 1 << i
		}
	}
	return nil
}

// look finds nodes that the pod may be on, at most as many as are to be scored.
func (d *Decision) look(start int) []*snapshot.Node {
	nodes := d.cycle.Nodes
	if d.only != nil {
		nodes = nil
		for _, name := range d.only {
			if n := d.cycle.Node(name); n != nil {
				nodes = append(nodes, n)
			}
		}
	}
	most := d.profile.enough(len(nodes))
	feasible := make([]*snapshot.Node, 0, most)
	for i := range nodes {
		n := nodes[(start+i)%len(nodes)]
		d.Looked++
		if d.ask(n) == nil {
			if feasible = append(feasible, n); len(feasible) == most {
				break
			}
		}
	}
	d.Feasible = len(feasible)
	return feasible
}

// ask puts a node to the checks, and takes note of why it is refused.
func (d *Decision) ask(n *snapshot.Node) *filter.Rejection {
	by, rejection := d.try(n, d.checks)
	if rejection != nil {
		d.by |= 1 << by
		d.refused = append(d.refused, Refusal{n, d.profile.filters[by].Name, rejection})
	}
	return rejection
}

// try puts a node to checks, with the pods that are nominated to it first: those
// that are no less important must find room, too. What these bring must not be
// what the pod needs, so the node is asked without them as well.
func (s *search) try(n *snapshot.Node, checks []check) (by int, _ *filter.Rejection) {
	if nominated := s.nominated(n); len(nominated) > 0 {
		with, moved := n.Clone(), cloned(checks)
		for _, p := range nominated {
			with.Add(p)
			move(moved, p, with, 1)
		}
		if by, rejection := first(with, moved); rejection != nil {
			return by, rejection
		}
	}
	return first(n, checks)
}

func first(n *snapshot.Node, checks []check) (by int, _ *filter.Rejection) {
	for _, c := range checks {
		if rejection := c.Reject(n); rejection != nil {
			return c.by, rejection
		}
	}
	return 0, nil
}

// nominated are the pods that wait for room on a node and are no less important.
func (s *search) nominated(n *snapshot.Node) []*snapshot.Pod {
	all := s.cycle.Nominated[n.Name()]
	if len(all) == 0 {
		return nil
	}
	var some []*snapshot.Pod
	for _, p := range all {
		if p.Priority >= s.cycle.Pod.Priority && p.Object.UID != s.cycle.Pod.Object.UID {
			some = append(some, p)
		}
	}
	return some
}

// cloned are checks that can be moved.
func cloned(checks []check) []check {
	own := make([]check, len(checks))
	for i, c := range checks {
		own[i] = c
		if m, is := c.Check.(filter.Mover); is {
			own[i].Check = m.Clone()
		}
	}
	return own
}

// move tells checks that a pod comes or goes.
func move(checks []check, p *snapshot.Pod, n *snapshot.Node, by int) {
	for _, c := range checks {
		if m, is := c.Check.(filter.Mover); is {
			m.Move(p, n, by)
		}
	}
}

// Of how many nodes the best is looked for. Compat: these are upstream's.
const (
	fewest        = 100
	fewestPercent = 5
)

// enough is how many nodes are looked for among some.
func (p *Profile) enough(nodes int) int {
	if nodes < fewest {
		return nodes
	}
	percent := p.Percentage
	if percent == 0 {
		percent = max(50-nodes/125, fewestPercent)
	}
	return max(nodes*percent/100, fewest)
}

// best is the node with the highest score.
func (d *Decision) best(nodes []*snapshot.Node, tie uint64) (*snapshot.Node, error) {
	if len(nodes) == 1 {
		return nodes[0], nil
	}
	totals := make([]int64, len(nodes))
	if err := d.weigh(nodes, func(_ *score.Score, i int, weighted int64) { totals[i] += weighted }); err != nil {
		return nil, err
	}
	top, equals := totals[0], uint64(0)
	for _, total := range totals {
		switch {
		case total > top:
			top, equals = total, 1
		case total == top:
			equals++
		}
	}
	pick := tie % equals
	for i, total := range totals {
		if total != top {
			continue
		}
		if pick == 0 {
			return nodes[i], nil
		}
		pick--
	}
	return nil, errors.New("no node is the best") // one is
}

// weigh tells the weighted score of each node, by each score.
func (d *Decision) weigh(nodes []*snapshot.Node, tell func(by *score.Score, i int, weighted int64)) error {
	scores := make([]int64, len(nodes))
	for k := range d.profile.scores {
		by := &d.profile.scores[k]
		scorer, err := by.Begin(d.cycle, nodes)
		if err != nil {
			return err
		}
		if scorer == nil {
			continue
		}
		for i, n := range nodes {
			scores[i] = scorer.Of(n)
		}
		scorer.Normalize(scores)
		for i := range nodes {
			tell(by, i, scores[i]*by.Weight)
		}
	}
	return nil
}
