package observe

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestSandbox says which sandbox a pod needs, for what its runtime has.
func TestSandbox(t *testing.T) {
	seen := func(id string, attempt uint32, state runtimeapi.PodSandboxState) *runtimeapi.PodSandboxStatus {
		return &runtimeapi.PodSandboxStatus{
			Id: id, State: state, Metadata: &runtimeapi.PodSandboxMetadata{Attempt: attempt},
			Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
		}
	}
	const ready, ended = runtimeapi.PodSandboxState_SANDBOX_READY, runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	type answer struct {
		fresh   bool
		attempt uint32
		id      string
	}
	for name, c := range map[string]struct {
		has  []*runtimeapi.PodSandboxStatus // newest first
		want answer
	}{
		"none":                           {nil, answer{true, 0, ""}},
		"one that is ready":              {[]*runtimeapi.PodSandboxStatus{seen("a", 0, ready)}, answer{false, 0, "a"}},
		"one that has ended":             {[]*runtimeapi.PodSandboxStatus{seen("b", 1, ended), seen("a", 0, ended)}, answer{true, 2, "b"}},
		"two that are ready":             {[]*runtimeapi.PodSandboxStatus{seen("b", 1, ready), seen("a", 0, ready)}, answer{true, 2, "b"}},
		"one of an unknown age keeps it": {[]*runtimeapi.PodSandboxStatus{seen("b", 1, ended), seen("a", 0, ended), seen("c", 2, ended)}, answer{true, 3, "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got answer
			got.fresh, got.attempt, got.id = (&Pod{Sandboxes: c.has}).Sandbox(&corev1.Pod{})
			if got != c.want {
				t.Errorf("it is %+v, not %+v", got, c.want)
			}
		})
	}
}
