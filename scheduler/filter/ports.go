package filter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

var noPort = passing("node(s) didn't have free ports for the requested pod ports")

// ports is for ports of the host.
var ports = Filter{
	Name: "NodePorts",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		if len(c.Pod.Ports) == 0 {
			return nil, nil, nil
		}
		return checkFunc(func(n *snapshot.Node) *Rejection {
			if conflict(c.Pod.Ports, n.Ports) {
				return noPort
			}
			return nil
		}), nil, nil
	},
	Wakes: []Wake{
		{event.Pod, event.Delete, func(c *cycle.Cycle, e *event.Event) bool {
			gone, _ := sides[*corev1.Pod](e)
			if !held(gone) {
				return false
			}
			p, err := snapshot.NewPod(gone)
			return err != nil || conflict(c.Pod.Ports, p.Ports)
		}},
		{event.Node, event.Add, nil},
	},
}

func conflict(wanted, used []snapshot.HostPort) bool {
	return slices.ContainsFunc(wanted, func(w snapshot.HostPort) bool { return slices.ContainsFunc(used, w.Conflicts) })
}

// held says whether a pod has held room on a node.
func held(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != "" }
