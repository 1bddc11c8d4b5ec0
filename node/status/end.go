package status

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/node/restart"
)

// AtEnd is a status as the last one that a pod has: what the runtime does not know
// of containers that may have run counts as a failure, and the phase is a last
// one unless the pod is one of the node's own.
func AtEnd(pod *corev1.Pod, s corev1.PodStatus, static bool) corev1.PodStatus {
	s = *s.DeepCopy()
	if initializedOnce(pod, &s) {
		for i := range s.ContainerStatuses {
			lose(&s.ContainerStatuses[i])
		}
	}
	for i := range tried(s.InitContainerStatuses) {
		lose(&s.InitContainerStatuses[i])
	}
	if !static && !Terminal(s.Phase) {
		s.Phase = corev1.PodFailed
	}
	unready(&s, pod.Generation)
	return s
}

// Refused is the status of a pod that was not taken: nothing of it was ever begun.
func Refused(pod *corev1.Pod, why Why, now time.Time) corev1.PodStatus {
	at := metav1.NewTime(now).Rfc3339Copy()
	s := corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: why.Reason, Message: why.Message, QOSClass: pod.Status.QOSClass, ObservedGeneration: pod.Generation, StartTime: &at,
	}
	if pod.Status.StartTime != nil {
		s.StartTime = pod.Status.StartTime
	}
	s.Conditions = append(s.Conditions, pod.Status.Conditions...)
	return s
}

// lose words a container that nobody knows the end of. One whose end is known
// stays as it is: an init container that has done its work is ready.
func lose(s *corev1.ContainerStatus) {
	if s.State.Terminated != nil {
		return
	}
	no := false
	s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: unknown, Message: lostOnEnd, ExitCode: lostCode}}
	s.Ready, s.Started = false, &no
}

// unready takes readiness from a pod that has ended.
func unready(s *corev1.PodStatus, generation int64) {
	if !Terminal(s.Phase) {
		return
	}
	reason := "PodFailed"
	if s.Phase == corev1.PodSucceeded {
		reason = "PodCompleted"
	}
	for _, kind := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		if c := condition(s.Conditions, kind); c != nil && c.Status == corev1.ConditionTrue {
			c.Status, c.Reason, c.Message, c.ObservedGeneration = corev1.ConditionFalse, reason, "", generation
		}
	}
}

// initializedOnce says whether main containers of a pod may ever have been
// started.
func initializedOnce(pod *corev1.Pod, s *corev1.PodStatus) bool {
	if len(pod.Spec.InitContainers) == 0 {
		return true
	}
	for i := range s.ContainerStatuses {
		if c := &s.ContainerStatuses[i]; c.LastTerminationState.Terminated != nil || c.State.Waiting == nil {
			return true
		}
	}
	n := len(s.InitContainerStatuses)
	if n == 0 || n > len(pod.Spec.InitContainers) {
		return false
	}
	end := &s.InitContainerStatuses[n-1]
	if restart.Sidecar(&pod.Spec.InitContainers[n-1]) {
		return end.State.Running != nil && end.Started != nil && *end.Started
	}
	for _, state := range []corev1.ContainerState{end.State, end.LastTerminationState} {
		if state.Terminated != nil && state.Terminated.ExitCode == 0 {
			return true
		}
	}
	return false
}

// tried are the init containers that may have been started: at least the first.
func tried(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	for i, s := range slices.Backward(all) {
		if s.State.Waiting == nil || s.LastTerminationState.Terminated != nil {
			return all[:i+1]
		}
	}
	return all[:min(1, len(all))]
}
