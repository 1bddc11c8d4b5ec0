package status_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/node/status"
)

// TestAtEnd: an init container that has done its work stays ready when its pod
// ends; a container whose end nobody knows counts as failed.
func TestAtEnd(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "first"}}, Containers: []corev1.Container{{Name: "main"}, {Name: "lost"}},
	}}
	done := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}
	s := status.AtEnd(pod, corev1.PodStatus{
		Phase:                 corev1.PodSucceeded,
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "first", State: done, Ready: true}},
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: "main", State: done},
			{Name: "lost", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, Ready: true},
		},
	}, false)
	if !s.InitContainerStatuses[0].Ready {
		t.Error("the init container is not ready any more")
	}
	if got := s.ContainerStatuses[0].State.Terminated; got == nil || got.Reason != "Completed" {
		t.Errorf("what had ended is %+v", s.ContainerStatuses[0].State)
	}
	if lost := s.ContainerStatuses[1]; lost.Ready || lost.State.Terminated == nil || lost.State.Terminated.Reason != "ContainerStatusUnknown" || lost.State.Terminated.ExitCode != 137 {
		t.Errorf("what was lost is %+v", lost)
	}
}
