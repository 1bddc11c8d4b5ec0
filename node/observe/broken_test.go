package observe

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestBrokenOff tells starts that were called off before anything ran from those
// that failed by themselves, and from containers that ran.
func TestBrokenOff(t *testing.T) {
	for name, c := range map[string]struct {
		reason, message string
		started         int64
		want            State
	}{
		"called off while the task is made":     {"StartError", "failed to create containerd task: failed to create shim task: context canceled: unknown", 0, Created},
		"called off while the shim starts":      {"StartError", "failed to create containerd task: failed to start shim: start failed: : signal: killed: unknown", 0, Created},
		"called off when it may have run":       {"StartError", "failed to start containerd task \"a\": context canceled: unknown", 0, Exited},
		"no such program":                       {"StartError", "failed to create containerd task: failed to create shim task: OCI runtime create failed: exec: \"no\": not found", 0, Exited},
		"it ran, and said what it liked to say": {"Error", "failed to create containerd task: context canceled", 1, Exited},
	} {
		t.Run(name, func(t *testing.T) {
			got := container(&runtimeapi.ContainerStatus{State: runtimeapi.ContainerState_CONTAINER_EXITED, Reason: c.reason, Message: c.message, StartedAt: c.started, ExitCode: 128}, "")
			if got.State != c.want || got.BrokenOff != (c.want == Created) {
				t.Errorf("it is %s, broken off: %v", got.State, got.BrokenOff)
			}
		})
	}
}
