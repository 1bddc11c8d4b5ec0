package pretend

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hostIP is the address that the node says it has. Nothing listens there.
const hostIP = "10.243.0.1"

// firstPod is the address before that of the first pod.
var firstPod = netip.MustParseAddr("10.244.0.0")

// step is what is done with a pod.
type step string

const (
	leave  step = "leave"
	run    step = "run"
	remove step = "remove"
)

// plan says what to do with a pod.
func plan(pod *corev1.Pod) step {
	switch {
	case pod.Spec.NodeName != Name:
		return leave
	case pod.DeletionTimestamp != nil:
		return remove
	case pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "":
		return run
	case pod.Status.Phase == corev1.PodRunning && gatesOpen(pod) && !is(pod, corev1.PodReady) && is(pod, corev1.ContainersReady) && len(pod.Spec.ReadinessGates) > 0:
		return run // it waited for its gates
	default:
		return leave
	}
}

// gatesOpen says whether all that a pod's readiness depends on, beside its
// containers, is there.
func gatesOpen(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return !is(pod, g.ConditionType) })
}

func is(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// running is a pod with the status of one whose containers all run.
func running(pod *corev1.Pod, address string, now time.Time) *corev1.Pod {
	pod = pod.DeepCopy()
	at := metav1.NewTime(now)
	s := &pod.Status
	s.Phase, s.HostIP, s.HostIPs = corev1.PodRunning, hostIP, []corev1.HostIP{{IP: hostIP}}
	if s.PodIP == "" {
		s.PodIP, s.PodIPs = address, []corev1.PodIP{{IP: address}}
	}
	if s.StartTime == nil {
		s.StartTime = &at
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady} {
		set(s, kind, corev1.ConditionTrue, "", at)
	}
	if gatesOpen(pod) {
		set(s, corev1.PodReady, corev1.ConditionTrue, "", at)
	} else {
		set(s, corev1.PodReady, corev1.ConditionFalse, "ReadinessGatesNotReady", at)
	}
	s.ContainerStatuses, s.InitContainerStatuses = nil, nil
	for _, c := range pod.Spec.InitContainers {
		s.InitContainerStatuses = append(s.InitContainerStatuses, initialized(c, at))
	}
	for _, c := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, started(c, at))
	}
	return pod
}

func set(s *corev1.PodStatus, kind corev1.PodConditionType, status corev1.ConditionStatus, reason string, at metav1.Time) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	s.Conditions = append(s.Conditions, corev1.PodCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: at})
}

// started is a container that runs.
func started(c corev1.Container, at metav1.Time) corev1.ContainerStatus {
	yes := true
	return corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, ImageID: "pretend://" + c.Image, ContainerID: "pretend://" + c.Name, Ready: true, Started: &yes,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
	}
}

// initialized is an init container: one that has ended, or a sidecar that runs.
func initialized(c corev1.Container, at metav1.Time) corev1.ContainerStatus {
	s := started(c, at)
	if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		no := false
		s.Started = &no
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: at, FinishedAt: at, ContainerID: s.ContainerID}}
	}
	return s
}

// address is that of a pod: the node's own, or the next of those that pods have.
func (n *Node) address(pod *corev1.Pod) string {
	if pod.Spec.HostNetwork {
		return hostIP
	}
	const room = 1<<16 - 2
	next := n.given.Add(1)%room + 1
	b := firstPod.As4()
	b[2], b[3] = byte(next>>8), byte(next)
	return netip.AddrFrom4(b).String()
}
