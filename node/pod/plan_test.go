package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"setpoint.dev/setpoint/node/pod"
	"setpoint.dev/setpoint/node/scene"
)

// TestPlans reads plans from testdata. A line such as
//
//	resize web cpu
//
// gives a container another limit than it has, and a second word RestartContainer
// asks for a restart with it.
func TestPlans(t *testing.T) {
	scene.Run(t, "testdata/plans.txt", func(s *scene.Scene) string {
		in := pod.Input{Pod: s.Pod, Seen: s.Seen, Probes: s, Actuated: map[string]corev1.ResourceRequirements{}}
		for _, words := range s.Extra {
			switch words[0] {
			case "resize":
				resize(in, words[1], corev1.ResourceName(words[2]), words[3:])
			case "rule":
				rule(s.Pod, words[1])
			}
		}
		p := pod.Make(in)
		return p.String()
	})
}

// resize declares more of a resource than a container was given.
func resize(in pod.Input, name string, what corev1.ResourceName, policy []string) {
	for i := range in.Pod.Spec.Containers {
		if c := &in.Pod.Spec.Containers[i]; c.Name == name {
			in.Actuated[name] = corev1.ResourceRequirements{Limits: corev1.ResourceList{what: resource.MustParse("1")}}
			c.Resources.Limits = corev1.ResourceList{what: resource.MustParse("2")}
			for _, p := range policy {
				c.ResizePolicy = append(c.ResizePolicy, corev1.ContainerResizePolicy{ResourceName: what, RestartPolicy: corev1.ResourceResizeRestartPolicy(p)})
			}
		}
	}
}

// rule has all containers start again when one ends with 42.
func rule(p *corev1.Pod, name string) {
	never := corev1.ContainerRestartPolicyNever
	for i := range p.Spec.Containers {
		if c := &p.Spec.Containers[i]; c.Name == name {
			c.RestartPolicy = &never
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
			}}
		}
	}
}
