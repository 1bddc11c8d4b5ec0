package filter

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// resources is for what pods ask for and nodes have.
var resources = Filter{
	Name: "NodeResourcesFit",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		return fit{want: &c.Pod.Wanted, none: c.Pod.Wanted.None(), scalars: slices.Sorted(maps.Keys(c.Pod.Wanted.Scalars))}, nil, nil
	},
	Wakes: []Wake{
		{event.Pod, event.Delete, func(_ *cycle.Cycle, e *event.Event) bool {
			gone, _ := sides[*corev1.Pod](e)
			return held(gone)
		}},
		{event.Pod, event.ScaledDown, func(c *cycle.Cycle, e *event.Event) bool {
			before, after := sides[*corev1.Pod](e)
			return itself(c, e) || after.Spec.NodeName != "" && shrunk(&c.Pod.Wanted, before, after)
		}},
		{event.Node, event.Add | event.Allocatable, func(c *cycle.Cycle, e *event.Event) bool {
			before, after := sides[*corev1.Node](e)
			want := &c.Pod.Wanted
			check := fit{want: want, none: want.None(), scalars: slices.Collect(maps.Keys(want.Scalars))}
			if check.Reject(snapshot.NewNode(after)) != nil {
				return false
			}
			return before == nil || grown(want, snapshot.ResourcesOf(before.Status.Allocatable), snapshot.ResourcesOf(after.Status.Allocatable))
		}},
	},
}

// fit compares what is wanted with what is left.
type fit struct {
	want    *snapshot.Resources
	none    bool
	scalars []corev1.ResourceName
}

// lack collects what there is not enough of.
type lack struct {
	reasons []string
	final   bool
}

func (l *lack) of(name string, want, has, used int64) {
	if want > 0 && want > has-used {
		l.reasons = append(l.reasons, "Insufficient "+name)
		l.final = l.final || want > has
	}
}

// Reject implements Check.
func (f fit) Reject(n *snapshot.Node) *Rejection {
	var l lack
	if int64(len(n.Pods))+1 > n.Allocatable.Pods {
		l.reasons = append(l.reasons, "Too many pods")
	}
	if !f.none {
		l.of("cpu", f.want.MilliCPU, n.Allocatable.MilliCPU, n.Requested.MilliCPU)
		l.of("memory", f.want.Memory, n.Allocatable.Memory, n.Requested.Memory)
		l.of("ephemeral-storage", f.want.Ephemeral, n.Allocatable.Ephemeral, n.Requested.Ephemeral)
		for _, name := range f.scalars {
			l.of(string(name), f.want.Scalars[name], n.Allocatable.Scalars[name], n.Requested.Scalars[name])
		}
	}
	if l.reasons == nil {
		return nil
	}
	return &Rejection{Reasons: l.reasons, Final: l.final}
}

// grown says whether a node has more of something that is wanted.
func grown(want *snapshot.Resources, before, after snapshot.Resources) bool {
	if after.Pods > before.Pods || want.MilliCPU > 0 && after.MilliCPU > before.MilliCPU ||
		want.Memory > 0 && after.Memory > before.Memory || want.Ephemeral > 0 && after.Ephemeral > before.Ephemeral {
		return true
	}
	for name, amount := range want.Scalars {
		if amount > 0 && after.Scalars[name] > before.Scalars[name] {
			return true
		}
	}
	return false
}

// shrunk says whether a pod asks for less of something that is wanted.
func shrunk(want *snapshot.Resources, before, after *corev1.Pod) bool {
	was, err := snapshot.NewPod(before)
	if err != nil {
		return true
	}
	is, err := snapshot.NewPod(after)
	if err != nil {
		return true
	}
	return grown(want, is.Requests, was.Requests)
}
