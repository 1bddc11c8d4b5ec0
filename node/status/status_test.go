package status_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/node/scene"
	"setpoint.dev/setpoint/node/status"
)

// TestStatuses reads statuses from testdata. Lines of its own:
//
//	waits web ErrImagePull no such image
//	was web running|waiting|terminated 1   what the status before said
//	phase Failed                           the phase that the API has
//	ended                                  nothing is started any more
//	failed DeadlineExceeded too late       the agent ended the pod
//	gate example.org/gate                  a readiness gate, closed
//	end                                    the last status of all
func TestStatuses(t *testing.T) {
	scene.Run(t, "testdata/statuses.txt", func(s *scene.Scene) string {
		in := status.Input{
			Pod: s.Pod, Seen: s.Seen, Runtime: "containerd", Waiting: map[string]status.Why{}, Probes: s, HostIPs: []string{"192.168.0.1"}, Now: scene.Now,
		}
		last := false
		for _, words := range s.Extra {
			switch words[0] {
			case "waits":
				in.Waiting[words[1]] = status.Why{Reason: words[2], Message: strings.Join(words[3:], " ")}
			case "was":
				in.Old.ContainerStatuses = append(in.Old.ContainerStatuses, was(words[1], words[2]))
			case "phase":
				s.Pod.Status.Phase = corev1.PodPhase(words[1])
			case "ended":
				in.Ended = true
			case "failed":
				in.Failed = &status.Why{Reason: words[1], Message: strings.Join(words[2:], " ")}
			case "gate":
				s.Pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: corev1.PodConditionType(words[1])}}
			case "end":
				last = true
			}
		}
		got := status.Of(in)
		if last {
			got = status.AtEnd(s.Pod, got, false)
		}
		return describe(&got)
	})
}

func was(name, state string) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: name, ContainerID: "containerd://before"}
	switch state {
	case "running":
		s.State.Running = &corev1.ContainerStateRunning{}
	case "terminated":
		s.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", StartedAt: metav1.NewTime(scene.Now)}
	}
	return s
}

// describe is a status in a few lines.
func describe(s *corev1.PodStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\n", s.Phase, s.Reason, s.Message)
	for _, c := range s.Conditions {
		fmt.Fprintf(&b, "%s=%s %s %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	for _, all := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range all {
			c := &all[i]
			started := "-"
			if c.Started != nil {
				started = fmt.Sprint(*c.Started)
			}
			fmt.Fprintf(&b, "%s: %s; last %s; restarts %d, started %s, ready %v\n", c.Name, state(c.State), state(c.LastTerminationState), c.RestartCount, started, c.Ready)
		}
	}
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func state(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Waiting != nil:
		return fmt.Sprintf("waiting %s %q", s.Waiting.Reason, s.Waiting.Message)
	case s.Terminated != nil:
		return fmt.Sprintf("terminated %d %s %q", s.Terminated.ExitCode, s.Terminated.Reason, s.Terminated.Message)
	default:
		return "none"
	}
}
