package place

import (
	"fmt"
	"slices"
	"strings"

	"setpoint.dev/setpoint/scheduler/filter"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// Decision is where a pod goes, or why it cannot go anywhere.
type Decision struct {
	search
	turn Turn

	// Node is where it goes, nil when there is no such node, and Volumes what must
	// be done before, nil for nothing.
	Node    *snapshot.Node
	Volumes *filter.Volumes
	// Looked is how many nodes were looked at, and Feasible how many of these the
	// pod may be on.
	Looked, Feasible int

	none    *Refusal // why no node will do, whichever it is
	only    []string // the only nodes that may do, nil for all
	onlyBy  string
	refused []Refusal
	by      uint64 // filters that have refused something, by their places
}

// Refusal is why a node is not for a pod.
type Refusal struct {
	Node   *snapshot.Node
	Filter string
	*filter.Rejection
}

// settle takes a node.
func (d *Decision) settle(n *snapshot.Node) (err error) {
	d.Node = n
	d.Volumes, err = filter.Plan(d.cycle, n)
	return err
}

// By says which filters have refused nodes.
func (d *Decision) By() []string {
	var names []string
	for i := range d.profile.filters {
		if d.by&(1<<i) != 0 {
			names = append(names, d.profile.filters[i].Name)
		}
	}
	return names
}

// Refused are the nodes that were refused, one by one.
func (d *Decision) Refused() []Refusal { return d.refused }

// Message is why there is no node, in upstream's words.
func (d *Decision) Message() string {
	all := len(d.cycle.Nodes)
	if d.none != nil {
		return fmt.Sprintf("0/%d nodes are available: %s.", all, strings.Join(d.none.Reasons, ", "))
	}
	reasons := map[string]int{}
	for _, r := range d.refused {
		for _, reason := range r.Reasons {
			reasons[reason]++
		}
	}
	if rest := all - len(d.refused); rest > 0 && d.only != nil {
		reasons[d.notNamed()] += rest
	}
	return message(all, reasons)
}

// notNamed is the reason of nodes that the pod does not ask for by name.
func (d *Decision) notNamed() string {
	return fmt.Sprintf("node(s) didn't satisfy plugin(s) [%s]", d.onlyBy)
}

// message counts reasons. Compat: it is in the order of the texts, counts
// included.
func message(nodes int, reasons map[string]int) string {
	texts := make([]string, 0, len(reasons))
	for reason, count := range reasons {
		texts = append(texts, fmt.Sprintf("%d %s", count, reason))
	}
	slices.Sort(texts)
	text := fmt.Sprintf("0/%d nodes are available:", nodes)
	if len(texts) > 0 {
		text += " " + strings.Join(texts, ", ") + "."
	}
	return text
}
