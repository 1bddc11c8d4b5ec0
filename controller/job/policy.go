package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// verdict is what the pod failure policy says of a failed pod.
type verdict struct {
	action  batchv1.PodFailurePolicyAction // "" when no rule is about it
	message string                         // why the job fails, when it does
}

// counts says that the failure counts towards the limits.
func (v verdict) counts() bool { return v.action != batchv1.PodFailurePolicyActionIgnore }

// judge finds the first rule that the pod's end is a case of.
func judge(policy *batchv1.PodFailurePolicy, p *corev1.Pod) verdict {
	if policy == nil {
		return verdict{}
	}
	for i, rule := range policy.Rules {
		switch {
		case rule.OnExitCodes != nil:
			if c := exitedAs(p, rule.OnExitCodes); c != nil {
				return verdict{rule.Action, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d", c.Name, p.Namespace, p.Name, c.State.Terminated.ExitCode, rule.Action, i)}
			}
		case rule.OnPodConditions != nil:
			if c := conditionAs(p, rule.OnPodConditions); c != nil {
				return verdict{rule.Action, fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d", p.Namespace, p.Name, c.Type, rule.Action, i)}
			}
		}
	}
	return verdict{}
}

// exitedAs is a container that ended with one of the codes, or not with any of them.
func exitedAs(p *corev1.Pod, codes *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, c := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses) {
		end := c.State.Terminated
		if end == nil || end.ExitCode == 0 || codes.ContainerName != nil && *codes.ContainerName != c.Name {
			continue
		}
		listed := slices.Contains(codes.Values, end.ExitCode)
		if codes.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && listed || codes.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn && !listed {
			return &c
		}
	}
	return nil
}

func conditionAs(p *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		for _, pattern := range patterns {
			if c.Type == pattern.Type && c.Status == pattern.Status {
				return &c
			}
		}
	}
	return nil
}

// succeedsBy says which rule of the success policy the indexes fulfil.
func succeedsBy(policy *batchv1.SuccessPolicy, completions int, succeeded indexes) (message string, ok bool) {
	if policy == nil || len(succeeded) == 0 {
		return "", false
	}
	for i, rule := range policy.Rules {
		have, need := succeeded.total(), -1
		if rule.SucceededCount != nil {
			need = int(*rule.SucceededCount)
		}
		if rule.SucceededIndexes != nil {
			asked := parseIndexes(*rule.SucceededIndexes, completions)
			if len(asked) == 0 {
				continue
			}
			have = succeeded.common(asked)
			if need < 0 || need > asked.total() {
				need = asked.total()
			}
		}
		if need >= 0 && have >= need {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}
