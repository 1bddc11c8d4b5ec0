package status

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/node/restart"
)

// owned are the conditions that only a node says something about.
var owned = []corev1.PodConditionType{
	corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReadyToStartContainers,
	corev1.PodResizeInProgress, corev1.PodResizePending, corev1.AllContainersRestarting,
}

func ours(kind corev1.PodConditionType) bool { return slices.Contains(owned, kind) }

func resizing(kind corev1.PodConditionType) bool {
	return kind == corev1.PodResizeInProgress || kind == corev1.PodResizePending
}

func condition(all []corev1.PodCondition, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range all {
		if all[i].Type == kind {
			return &all[i]
		}
	}
	return nil
}

// addConditions adds the conditions of others as they are, and ours.
func (in *Input) addConditions(s *corev1.PodStatus) {
	for _, c := range in.Pod.Status.Conditions {
		if !ours(c.Type) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	if !Terminal(s.Phase) {
		s.Conditions = append(s.Conditions, in.Resize...)
	}
	if c := condition(in.Old.Conditions, corev1.DisruptionTarget); c != nil && condition(s.Conditions, corev1.DisruptionTarget) == nil {
		s.Conditions = append(s.Conditions, *c)
	}
	all := slices.Concat(s.InitContainerStatuses, s.ContainerStatuses)
	ready := in.containersReady(all, s.Phase)
	fresh, _, _ := in.Seen.Sandbox(in.Pod)
	for _, c := range []corev1.PodCondition{
		{Type: corev1.PodReadyToStartContainers, Status: truth(!fresh)},
		in.initialized(all, s.Phase), in.ready(ready, s.Conditions), ready,
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	} {
		c.ObservedGeneration = in.Pod.Generation
		s.Conditions = append(s.Conditions, c)
	}
}

func truth(yes bool) corev1.ConditionStatus {
	if yes {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// containersReady says whether all containers are ready.
func (in *Input) containersReady(all []corev1.ContainerStatus, phase corev1.PodPhase) corev1.PodCondition {
	no := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	var unready []string
	for i := range in.Pod.Spec.InitContainers {
		if c := &in.Pod.Spec.InitContainers[i]; restart.Sidecar(c) && !find(all, c.Name).Ready {
			unready = append(unready, c.Name)
		}
	}
	for i := range in.Pod.Spec.Containers {
		if name := in.Pod.Spec.Containers[i].Name; !find(all, name).Ready {
			unready = append(unready, name)
		}
	}
	switch {
	case phase == corev1.PodSucceeded:
		no.Reason = "PodCompleted"
	case phase == corev1.PodFailed:
		no.Reason = "PodFailed"
	case len(unready) > 0:
		no.Reason, no.Message = "ContainersNotReady", fmt.Sprintf("containers with unready status: %s", unready)
	default:
		return corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}
	}
	return no
}

// ready says whether the pod is: its containers are, and everything else that was
// declared to count.
func (in *Input) ready(containers corev1.PodCondition, conditions []corev1.PodCondition) corev1.PodCondition {
	c := containers
	c.Type = corev1.PodReady
	if c.Status != corev1.ConditionTrue {
		return c
	}
	var closed []string
	for _, gate := range in.Pod.Spec.ReadinessGates {
		switch is := condition(conditions, gate.ConditionType); {
		case is == nil:
			closed = append(closed, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case is.Status != corev1.ConditionTrue:
			closed = append(closed, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, is.Status))
		}
	}
	if len(closed) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "ReadinessGatesNotReady", strings.Join(closed, ", ")
	}
	return c
}

// initialized says whether all init containers have done their work, and all
// sidecars have started.
func (in *Input) initialized(all []corev1.ContainerStatus, phase corev1.PodPhase) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	var incomplete []string
	for i := range in.Pod.Spec.InitContainers {
		declared := &in.Pod.Spec.InitContainers[i]
		s := find(all, declared.Name)
		if restart.Sidecar(declared) && !*s.Started || !restart.Sidecar(declared) && !s.Ready {
			incomplete = append(incomplete, declared.Name)
		}
	}
	switch {
	case phase == corev1.PodSucceeded:
		c.Reason = "PodCompleted"
	case len(incomplete) > 0 && !in.anyMainStarted(all):
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: %s", incomplete)
	}
	return c
}

// anyMainStarted says whether a main container ever ran, by the statuses.
func (in *Input) anyMainStarted(all []corev1.ContainerStatus) bool {
	for i := range in.Pod.Spec.Containers {
		s := find(all, in.Pod.Spec.Containers[i].Name)
		if s.LastTerminationState.Terminated != nil || s.State.Terminated != nil || s.State.Running != nil {
			return true
		}
	}
	return false
}
