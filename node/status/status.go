// Package status says how a pod is, as the API words it.
//
// In come a pod, what its runtime has of it, what its probes say and what failed
// when containers were to be started; out comes a PodStatus. Of is a pure
// function: the same pod in the same state has the same status, whichever agent
// looks. Writer is the one who tells the API. What always holds: a pod that has
// succeeded or failed stays so, and is not said to have ended while something of
// it may still run.
package status

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"setpoint.dev/setpoint/node/observe"
)

// Why says why something is not as it should be.
type Why struct{ Reason, Message string }

// Probes say what probes of containers found last.
type Probes interface {
	// Started and Ready say what was found, and whether anything was.
	Started(containerID string) (yes, known bool)
	Ready(containerID string) (yes, known bool)
}

// Input is what a status is made of. Pod and Seen are needed.
type Input struct {
	// Pod is as declared, with the resources that were allocated to it.
	Pod *corev1.Pod
	// Old is the status before this one.
	Old corev1.PodStatus
	// Seen is what the runtime has.
	Seen *observe.Pod
	// Runtime is the name of the runtime, which container IDs begin with.
	Runtime string
	// Waiting says why containers could not be started, by name.
	Waiting map[string]Why
	// Probes say what probes found; nil means that there are none yet.
	Probes Probes
	// Ended says that nothing of the pod is started any more.
	Ended bool
	// Failed is why the agent ended the pod itself; nil when it did not.
	Failed *Why
	// HostIPs are the node's addresses.
	HostIPs []string
	// Actuated are the resources that containers were given last, by name.
	Actuated map[string]corev1.ResourceRequirements
	// Resize are the conditions of a resize that is under way.
	Resize []corev1.PodCondition
	// RecursiveReadOnly says whether the runtime can mount so.
	RecursiveReadOnly bool
	// Now is the time.
	Now time.Time
}

// Terminal says whether a phase is a pod's last.
func Terminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// Of is the status of a pod.
func Of(in Input) corev1.PodStatus {
	pod := in.Pod
	s := corev1.PodStatus{
		ObservedGeneration: max(pod.Generation, in.Old.ObservedGeneration), QOSClass: pod.Status.QOSClass, NominatedNodeName: pod.Status.NominatedNodeName,
		ResourceClaimStatuses: pod.Status.ResourceClaimStatuses, ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: pod.Status.NodeAllocatableResourceClaimStatuses,
	}
	s.ContainerStatuses = in.containers(pod.Spec.Containers, in.Old.ContainerStatuses, false)
	s.InitContainerStatuses = in.containers(pod.Spec.InitContainers, in.Old.InitContainerStatuses, true)
	s.EphemeralContainerStatuses = in.containers(ephemeral(pod), in.Old.EphemeralContainerStatuses, false)
	in.addResources(&s)
	in.addPhase(&s)
	in.addProbes(&s)
	in.addAddresses(&s)
	in.addConditions(&s)
	in.addTimes(&s)
	return s
}

func ephemeral(pod *corev1.Pod) []corev1.Container {
	var all []corev1.Container
	for _, c := range pod.Spec.EphemeralContainers {
		all = append(all, corev1.Container(c.EphemeralContainerCommon))
	}
	return all
}

// addPhase adds the phase and why the pod is in it.
func (in *Input) addPhase(s *corev1.PodStatus) {
	s.Phase = in.phase(slices.Concat(s.ContainerStatuses, s.InitContainerStatuses))
	switch before := in.Pod.Status.Phase; {
	case Terminal(before): // a pod does not come back
		s.Phase = before
	case Terminal(in.Old.Phase) && !Terminal(s.Phase):
		s.Phase = in.Old.Phase
	}
	if s.Phase == in.Old.Phase {
		s.Reason, s.Message = in.Old.Reason, in.Old.Message
	}
	if s.Phase == in.Pod.Status.Phase {
		s.Reason, s.Message = or(s.Reason, in.Pod.Status.Reason), or(s.Message, in.Pod.Status.Message)
	}
	if in.Failed != nil && !Terminal(in.Pod.Status.Phase) {
		s.Phase, s.Reason, s.Message = corev1.PodFailed, in.Failed.Reason, in.Failed.Message
	}
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// addResources adds what the whole pod has been given.
func (in *Input) addResources(s *corev1.PodStatus) {
	opts := resourcehelper.PodResourcesOptions{}
	requests := resourcehelper.PodRequests(in.Pod, opts)
	if len(requests) > 0 {
		s.AllocatedResources = requests
	}
	limits := resourcehelper.PodLimits(in.Pod, opts)
	if in.Old.Resources != nil && len(in.Resize) > 0 { // not there yet
		s.Resources = in.Old.Resources
		return
	}
	if len(requests)+len(limits) > 0 {
		s.Resources = &corev1.ResourceRequirements{Requests: requests, Limits: limits}
	}
}

// addAddresses adds the node's addresses and the pod's.
func (in *Input) addAddresses(s *corev1.PodStatus) {
	for _, ip := range in.HostIPs {
		s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
	}
	ips := in.Seen.IPs
	switch {
	case in.Pod.Spec.HostNetwork && len(in.Old.PodIPs) > 0: // they never change
		s.PodIPs, ips = in.Old.PodIPs, nil
	case in.Pod.Spec.HostNetwork:
		ips = in.HostIPs
	case len(ips) == 0 && !Terminal(s.Phase) && in.Pod.DeletionTimestamp == nil:
	case len(ips) == 0: // it had them until its end
		s.PodIPs, ips = in.Old.PodIPs, nil
	}
	for _, ip := range ips {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(s.HostIPs) > 0 {
		s.HostIP = s.HostIPs[0].IP
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
}

// addTimes adds since when the pod is known, and since when its conditions hold.
func (in *Input) addTimes(s *corev1.PodStatus) {
	now := metav1.NewTime(in.Now).Rfc3339Copy()
	s.StartTime = in.Old.StartTime
	if s.StartTime == nil {
		s.StartTime = &now
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if !ours(c.Type) && c.Type != corev1.DisruptionTarget || resizing(c.Type) {
			continue
		}
		if old := condition(in.Old.Conditions, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		} else {
			c.LastTransitionTime = now
		}
	}
}
