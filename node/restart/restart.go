// Package restart says whether a container that has ended is started again.
//
// In come a container's declaration, its pod's, and an exit code; out comes yes
// or no. Rules of the container come first, then its own policy, then the pod's.
// Nothing is read and nothing is kept.
package restart

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Sidecar says whether an init container runs beside the main ones.
func Sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// HasSidecars says whether a pod has any.
func HasSidecars(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.InitContainers, func(c corev1.Container) bool { return Sidecar(&c) })
}

// After says whether a container is started again after it ended with code.
func After(c *corev1.Container, spec *corev1.PodSpec, code int32) bool {
	if c.RestartPolicy != nil {
		if action, ok := Rule(c, code); ok && (action == corev1.ContainerRestartRuleActionRestart || action == corev1.ContainerRestartRuleActionRestartAllContainers) {
			return true
		}
		switch *c.RestartPolicy {
		case corev1.ContainerRestartPolicyAlways:
			return true
		case corev1.ContainerRestartPolicyOnFailure:
			return code != 0
		case corev1.ContainerRestartPolicyNever:
			return false
		}
	}
	switch spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	default:
		return true
	}
}

// Rule is what the first rule of a container that is for code says.
func Rule(c *corev1.Container, code int32) (corev1.ContainerRestartRuleAction, bool) {
	for _, r := range c.RestartPolicyRules {
		if r.ExitCodes == nil {
			continue
		}
		in := slices.Contains(r.ExitCodes.Values, code)
		if in && r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn || !in && r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpNotIn {
			return r.Action, true
		}
	}
	return "", false
}

// Running says whether a container that runs and has to be stopped is started
// again. Rules say nothing about it, since there is no exit code.
func Running(c *corev1.Container, spec *corev1.PodSpec) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy != corev1.ContainerRestartPolicyNever
	}
	return spec.RestartPolicy != corev1.RestartPolicyNever
}

// Everything says whether some rule of a pod may start all its containers again.
func Everything(spec *corev1.PodSpec) bool {
	asks := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	}
	return slices.ContainsFunc(spec.InitContainers, asks) || slices.ContainsFunc(spec.Containers, asks)
}
