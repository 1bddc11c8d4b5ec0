// Package filter says which nodes a pod may be on.
//
// In comes a cycle; out comes, for each filter, a check that every node is put
// to, or the reason for which no node will do. filters.go lists the filters in
// the order in which they are asked: the first that rejects a node is the one
// whose reason is told. Each also says which changes of the cluster can make it
// think again. What always holds: filters are pure, and their reasons are
// upstream's words.
package filter

import (
	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// Rejection is why a node, or every node, is not for a pod.
type Rejection struct {
	Reasons []string
	// Final says that it would not help if pods went.
	Final bool
}

func final(reason string) *Rejection { return &Rejection{Reasons: []string{reason}, Final: true} }
func passing(reason string) *Rejection {
	return &Rejection{Reasons: []string{reason}}
}

// Check is asked about nodes.
type Check interface {
	// Reject says why a node is not for the pod; nil when it may be.
	Reject(n *snapshot.Node) *Rejection
}

// Mover is a check for which it matters what runs on other nodes.
type Mover interface {
	Check
	// Clone returns a check of its own that can be moved.
	Clone() Mover
	// Move says that a pod comes to a node (1) or leaves it (-1).
	Move(p *snapshot.Pod, n *snapshot.Node, by int)
}

// Narrow is a check that only nodes with some names can pass.
type Narrow interface {
	Check
	Only() []string
}

// Filter is one kind of reason.
type Filter struct {
	// Name is upstream's name of the plugin.
	Name string
	// Begin returns what nodes are put to, nil when every node will do, or why
	// none will.
	Begin func(c *cycle.Cycle) (Check, *Rejection, error)
	// Wakes are the changes that can make the filter think again.
	Wakes []Wake
}

// Wake is a change that can help a pod.
type Wake struct {
	Resource event.Resource
	Actions  event.Action
	// Helps says whether a change may help; nil is always. The snapshot of the
	// cycle has objects, but no nodes.
	Helps func(c *cycle.Cycle, e *event.Event) bool
}

// Helped says whether a change may help a pod that the filter has rejected.
func (f *Filter) Helped(c *cycle.Cycle, e *event.Event) bool {
	for _, w := range f.Wakes {
		if w.Resource == e.Resource && w.Actions&e.Action != 0 && (w.Helps == nil || w.Helps(c, e)) {
			return true
		}
	}
	return false
}

// checkFunc is a check that needs nothing else.
type checkFunc func(n *snapshot.Node) *Rejection

// Reject implements Check.
func (f checkFunc) Reject(n *snapshot.Node) *Rejection { return f(n) }

// sides are an object before and after a change, the zero value where it was not.
func sides[T any](e *event.Event) (before, after T) {
	before, _ = e.Before.(T)
	after, _ = e.After.(T)
	return before, after
}
