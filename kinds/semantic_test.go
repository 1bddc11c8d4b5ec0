package kinds_test

import (
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/pkg/apis/core"

	_ "setpoint.dev/setpoint/kinds"
)

// The specs of pods are compared by what they mean, as everything else is.
func TestPodSpecsAreComparedByMeaning(t *testing.T) {
	spec := func(change func(*core.PodSpec)) core.PodSpec {
		s := core.PodSpec{
			NodeSelector: map[string]string{"disk": "ssd"},
			Containers: []core.Container{{
				Name: "web", Env: []core.EnvVar{{Name: "A", Value: "a"}},
				Resources: core.ResourceRequirements{Requests: core.ResourceList{core.ResourceCPU: resource.MustParse("1")}},
			}},
		}
		change(&s)
		return s
	}
	for _, c := range []struct {
		name   string
		change func(*core.PodSpec)
		same   bool
	}{
		{"nothing", func(*core.PodSpec) {}, true},
		{"an empty list where there was none", func(s *core.PodSpec) { s.Tolerations = []core.Toleration{} }, true},
		{"an empty map where there was none", func(s *core.PodSpec) { s.Overhead = core.ResourceList{} }, true},
		{"a quantity in other words", func(s *core.PodSpec) {
			s.Containers[0].Resources.Requests = core.ResourceList{core.ResourceCPU: resource.MustParse("1000m")}
		}, true},
		{"another quantity", func(s *core.PodSpec) {
			s.Containers[0].Resources.Requests = core.ResourceList{core.ResourceCPU: resource.MustParse("1001m")}
		}, false},
		{"another text", func(s *core.PodSpec) { s.Containers[0].Env[0].Value = "b" }, false},
		{"one more container", func(s *core.PodSpec) { s.Containers = append(s.Containers, core.Container{}) }, false},
		{"another label of nodes", func(s *core.PodSpec) { s.NodeSelector = map[string]string{"disk": "hdd"} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := spec(func(*core.PodSpec) {}), spec(c.change)
			for _, pair := range [][2]any{{a, b}, {b, a}, {&core.Pod{Spec: a}, &core.Pod{Spec: b}}} {
				if same := apiequality.Semantic.DeepEqual(pair[0], pair[1]); same != c.same {
					t.Errorf("same: %v", same)
				}
			}
		})
	}
}
