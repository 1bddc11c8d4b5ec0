package filter

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

var (
	wereUnschedulable = final("node(s) were unschedulable")
	otherName         = final("node(s) didn't match the requested node name")
	untolerated       = final("node(s) had untolerated taint(s)")
	notWanted         = final("node(s) didn't match Pod's node affinity/selector")
	notEnforced       = final("node(s) didn't match scheduler-enforced node affinity")
	noName            = final("pod affinity terms conflict")
)

// unschedulable is for nodes that are cordoned.
var unschedulable = Filter{
	Name: "NodeUnschedulable",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		tolerated := toleratesUnschedulable(c.Pod.Object)
		return checkFunc(func(n *snapshot.Node) *Rejection {
			if n.Object.Spec.Unschedulable && !tolerated {
				return wereUnschedulable
			}
			return nil
		}), nil, nil
	},
	Wakes: []Wake{
		{event.Node, event.Add | event.Taints, func(_ *cycle.Cycle, e *event.Event) bool {
			before, after := sides[*corev1.Node](e)
			return !after.Spec.Unschedulable && (before == nil || before.Spec.Unschedulable)
		}},
		{event.Pod, event.Tolerations, func(c *cycle.Cycle, e *event.Event) bool {
			return itself(c, e) && toleratesUnschedulable(c.Pod.Object)
		}},
	},
}

func toleratesUnschedulable(pod *corev1.Pod) bool {
	taint := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return corev1helpers.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &taint, false)
}

// itself says whether a change is of the pod that waits.
func itself(c *cycle.Cycle, e *event.Event) bool {
	_, after := sides[*corev1.Pod](e)
	return after != nil && after.UID == c.Pod.Object.UID
}

// nodeName is for pods that name their node and are still to be placed.
var nodeName = Filter{
	Name: "NodeName",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		name := c.Pod.Object.Spec.NodeName
		if name == "" {
			return nil, nil, nil
		}
		return checkFunc(func(n *snapshot.Node) *Rejection {
			if n.Name() != name {
				return otherName
			}
			return nil
		}), nil, nil
	},
	Wakes: []Wake{{event.Node, event.Add, nil}},
}

// taints is for taints that a pod does not tolerate.
var taints = Filter{
	Name: "TaintToleration",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		return checkFunc(func(n *snapshot.Node) *Rejection {
			if !cycle.Tolerates(c.Pod.Object, n.Object.Spec.Taints) {
				return untolerated
			}
			return nil
		}), nil, nil
	},
	Wakes: []Wake{
		{event.Node, event.Add | event.Taints, func(c *cycle.Cycle, e *event.Event) bool {
			before, after := sides[*corev1.Node](e)
			return (before == nil || !cycle.Tolerates(c.Pod.Object, before.Spec.Taints)) && cycle.Tolerates(c.Pod.Object, after.Spec.Taints)
		}},
		{event.Pod, event.Tolerations, itself},
	},
}

// nodeAffinity is for node selectors and affinity to nodes, the profile's
// included.
var nodeAffinity = Filter{
	Name: "NodeAffinity",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		var required *corev1.NodeSelector
		if a := c.Pod.Object.Spec.Affinity; a != nil && a.NodeAffinity != nil {
			required = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		}
		if required == nil && c.Settings.Required == nil && c.Pod.Object.Spec.NodeSelector == nil {
			return nil, nil, nil
		}
		check := wanted{c}
		if required == nil {
			return check, nil, nil
		}
		names := named(required.NodeSelectorTerms)
		switch {
		case names == nil:
			return check, nil, nil
		case len(names) == 0:
			return nil, noName, nil
		default:
			return few{check, sets.List(names)}, nil, nil
		}
	},
	Wakes: []Wake{{event.Node, event.Add | event.Labels, func(c *cycle.Cycle, e *event.Event) bool {
		before, after := sides[*corev1.Node](e)
		if c.Settings.Required != nil && !c.Settings.Required.Match(after) {
			return false
		}
		return c.Wants(after) && (before == nil || !c.Wants(before))
	}}},
}

// wanted asks a pod's and its profile's affinity to nodes.
type wanted struct{ *cycle.Cycle }

// Reject implements Check.
func (w wanted) Reject(n *snapshot.Node) *Rejection {
	if w.Settings.Required != nil && !w.Settings.Required.Match(n.Object) {
		return notEnforced
	}
	if !w.Wants(n.Object) {
		return notWanted
	}
	return nil
}

// few is wanted by nodes of few names.
type few struct {
	wanted
	names []string
}

// Only implements Narrow.
func (f few) Only() []string { return f.names }

// named are the nodes that terms ask for by name; nil when some term does not.
func named(terms []corev1.NodeSelectorTerm) sets.Set[string] {
	var names sets.Set[string]
	for _, t := range terms {
		var of sets.Set[string]
		for _, f := range t.MatchFields {
			if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			if of == nil {
				of = sets.New(f.Values...)
			} else {
				of = of.Intersection(sets.New(f.Values...))
			}
		}
		if of == nil {
			return nil
		}
		names = of.Union(names)
	}
	return names
}
