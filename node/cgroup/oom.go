package cgroup

import (
	corev1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"
)

const (
	guaranteedScore = -997
	bestEffortScore = 1000
	nodeCritical    = 2000001000 // the priority of system-node-critical
)

// OOMScore says how early a container's processes are killed when memory is
// short: those of pods that ask for nothing first, those that have all they
// ask for last, and in between the earlier, the less of the node's memory a
// container asks for, so that one which uses more than that goes before others.
func OOMScore(pod *corev1.Pod, c *corev1.Container, memory int64) int64 {
	class := QOS(pod)
	switch {
	case class == corev1.PodQOSGuaranteed || pod.Spec.Priority != nil && *pod.Spec.Priority >= nodeCritical:
		return guaranteedScore
	case class == corev1.PodQOSBestEffort || memory <= 0:
		return bestEffortScore
	}
	rest := unclaimed(pod)
	asked := c.Resources.Requests.Memory().Value() + rest
	if sidecar(pod, c) {
		// A sidecar lives at least as long as those it serves.
		asked = max(asked, leastAsked(pod)+rest)
	}
	return min(max(1000-1000*asked/memory, 1000+guaranteedScore), bestEffortScore-1)
}

func sidecar(pod *corev1.Pod, c *corev1.Container) bool {
	if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		return false
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return true
		}
	}
	return false
}

func leastAsked(pod *corev1.Pod) int64 {
	least := int64(-1)
	for _, c := range pod.Spec.Containers {
		if asked := c.Resources.Requests.Memory().Value(); least < 0 || asked < least {
			least = asked
		}
	}
	return max(least, 0)
}

// unclaimed is each container's part of what the pod asks for beyond what its
// containers do.
func unclaimed(pod *corev1.Pod) int64 {
	if !helper.IsPodLevelRequestsSet(pod) {
		return 0
	}
	containers := helper.AggregateContainerRequests(pod, helper.PodResourcesOptions{})
	rest := pod.Spec.Resources.Requests.Memory().Value() - containers.Memory().Value()
	return max(rest, 0) / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}
