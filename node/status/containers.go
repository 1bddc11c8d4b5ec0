package status

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/node/observe"
	"setpoint.dev/setpoint/node/restart"
)

// Words of containers that wait or were lost. Compat: they are kubelet's.
const (
	creating     = "ContainerCreating"
	initializing = "PodInitializing"
	unknown      = "ContainerStatusUnknown"
	lostOnEnd    = "The container could not be located when the pod was terminated"
	lostRunning  = "The container could not be located when the pod was deleted.  The container used to be Running"
	goneInit     = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally"
	lostCode     = 137
)

// containers are the statuses of some of a pod's containers: those of init
// containers as declared, all others by name.
func (in *Input) containers(declared []corev1.Container, old []corev1.ContainerStatus, init bool) []corev1.ContainerStatus {
	var all []corev1.ContainerStatus
	for i := range declared {
		all = append(all, in.container(&declared[i], find(old, declared[i].Name), init))
	}
	if !init {
		slices.SortFunc(all, func(a, b corev1.ContainerStatus) int { return cmp.Compare(a.Name, b.Name) })
	}
	return all
}

// container is the status of one container.
func (in *Input) container(c *corev1.Container, old *corev1.ContainerStatus, init bool) corev1.ContainerStatus {
	var tries []*observe.Container
	for _, seen := range in.Seen.Containers {
		if seen.Name == c.Name && len(tries) < 2 {
			tries = append(tries, seen)
		}
	}
	s := in.unseen(c, old)
	if len(tries) > 0 {
		s = in.seen(c, tries[0], old)
		if len(tries) > 1 {
			s.LastTerminationState = in.seen(c, tries[1], nil).State
		}
	}
	if init && in.initDone(c, &s, tries) {
		return s
	}
	if why, failed := in.Waiting[c.Name]; failed && in.Seen.Starts(c, in.Pod) {
		if s.State.Terminated != nil {
			s.LastTerminationState = s.State
		}
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}}
	}
	return s
}

// initDone says whether an init container has done its work, and words it for one
// whose traces are gone.
func (in *Input) initDone(c *corev1.Container, s *corev1.ContainerStatus, tries []*observe.Container) bool {
	if len(tries) > 0 {
		return tries[0].State == observe.Exited && tries[0].ExitCode == 0 && !restart.Sidecar(c)
	}
	if restart.Sidecar(c) || s.State.Waiting == nil || !in.Seen.Began(in.Pod) {
		return false
	}
	s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", Message: goneInit}}
	return true
}

// unseen is the status of a container that the runtime does not have.
func (in *Input) unseen(c *corev1.Container, old *corev1.ContainerStatus) corev1.ContainerStatus {
	if old != nil && old.State.Terminated != nil {
		return *old.DeepCopy()
	}
	s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, VolumeMounts: in.mounts(c)}
	s.State.Waiting = &corev1.ContainerStateWaiting{Reason: creating}
	if len(in.Pod.Spec.InitContainers) > 0 {
		s.State.Waiting.Reason = initializing
	}
	if old == nil {
		return s
	}
	s.RestartCount, s.LastTerminationState = old.RestartCount, *old.LastTerminationState.DeepCopy()
	if old.State.Running != nil && s.LastTerminationState.Terminated == nil { // it ran, so it is not new
		s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: unknown, Message: lostRunning, ExitCode: lostCode}
		if in.Pod.DeletionTimestamp == nil {
			s.RestartCount++
		}
	}
	return s
}

// seen is the status of a container as the runtime has it.
func (in *Input) seen(c *corev1.Container, seen *observe.Container, old *corev1.ContainerStatus) corev1.ContainerStatus {
	id := in.Runtime + "://" + seen.ID
	s := corev1.ContainerStatus{
		Name: seen.Name, RestartCount: seen.Restarts, Image: seen.Image, ImageID: seen.ImageRef, ContainerID: id, VolumeMounts: in.mounts(c), User: seen.User,
		AllocatedResources: c.Resources.Requests,
	}
	if old != nil {
		s.RestartCount = max(s.RestartCount, old.RestartCount)
		if old.LastTerminationState.Terminated != nil {
			s.LastTerminationState = *old.LastTerminationState.DeepCopy()
		}
		if old.ContainerID != id && old.State.Terminated != nil {
			s.LastTerminationState = corev1.ContainerState{Terminated: old.State.Terminated.DeepCopy()}
		}
	}
	switch {
	case seen.State == observe.Running:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: second(seen.Started)}
		if old != nil && old.ContainerID == id {
			s.Started = old.Started
		}
	case seen.State == observe.Exited:
		s.State.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: seen.ExitCode, Reason: seen.Reason, Message: seen.Message, StartedAt: second(seen.Started), FinishedAt: second(seen.Finished), ContainerID: id,
		}
	case seen.State == observe.Unknown && old != nil && old.State.Running != nil:
		s.State.Terminated = &corev1.ContainerStateTerminated{Reason: unknown, Message: lostOnEnd, ExitCode: lostCode}
		s.RestartCount = old.RestartCount + 1
	default:
		s.State.Waiting = &corev1.ContainerStateWaiting{}
	}
	s.Resources = in.resources(c, seen)
	return s
}

// smallest are the requests and limits of CPU below which a kernel knows no
// differences.
const smallestRequest, smallestLimit = 2, 10

// resources are those that a container has: what was allocated to one that does
// not run, and what it was given last or the runtime says otherwise.
func (in *Input) resources(c *corev1.Container, seen *observe.Container) *corev1.ResourceRequirements {
	r := c.Resources.DeepCopy()
	if seen.State != observe.Running {
		return r
	}
	if given, ok := in.Actuated[c.Name]; ok {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			take(r.Limits, given.Limits, name)
			take(r.Requests, given.Requests, name)
		}
		return r
	}
	if said := seen.Resources; said != nil {
		if l := said.CPULimit; l != nil && r.Limits != nil && (l.MilliValue() > smallestLimit || r.Limits.Cpu().MilliValue() > smallestLimit) {
			r.Limits[corev1.ResourceCPU] = *l
		}
		if l := said.MemoryLimit; l != nil && r.Limits != nil {
			r.Limits[corev1.ResourceMemory] = *l
		}
		if l := said.CPURequest; l != nil && r.Requests != nil && (l.MilliValue() > smallestRequest || r.Requests.Cpu().MilliValue() > smallestRequest) {
			r.Requests[corev1.ResourceCPU] = *l
		}
	}
	return r
}

// take copies one resource where both lists have it.
func take(to, from corev1.ResourceList, name corev1.ResourceName) {
	if q, ok := from[name]; ok && to != nil {
		to[name] = q
	}
}

// mounts are how the volumes of a container are mounted.
func (in *Input) mounts(c *corev1.Container) []corev1.VolumeMountStatus {
	var all []corev1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		s := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			if wish := m.RecursiveReadOnly; wish != nil && (*wish == corev1.RecursiveReadOnlyEnabled || *wish == corev1.RecursiveReadOnlyIfPossible && in.RecursiveReadOnly) {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &mode
		}
		all = append(all, s)
	}
	return all
}

// addProbes adds which containers have started and which are ready.
func (in *Input) addProbes(s *corev1.PodStatus) {
	for i := range s.ContainerStatuses {
		cs := &s.ContainerStatuses[i]
		in.probed(cs, spec(in.Pod.Spec.Containers, cs.Name), find(in.Old.ContainerStatuses, cs.Name))
	}
	for i := range s.InitContainerStatuses {
		cs, c := &s.InitContainerStatuses[i], &in.Pod.Spec.InitContainers[i]
		in.probed(cs, c, find(in.Old.InitContainerStatuses, cs.Name))
		if !restart.Sidecar(c) {
			cs.Ready = cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0
		}
	}
}

func spec(all []corev1.Container, name string) *corev1.Container {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// probed adds whether a container has started and is ready. What no probe has
// said yet is as it was, so that an agent's start changes nothing.
func (in *Input) probed(s *corev1.ContainerStatus, c *corev1.Container, old *corev1.ContainerStatus) {
	started, ready := s.State.Running != nil, false
	same := old != nil && old.ContainerID == s.ContainerID
	if started {
		if yes, known := in.asked(Probes.Started, s.ContainerID); known {
			started = yes
		} else if c.StartupProbe != nil {
			started = same && old.Started != nil && *old.Started
		}
	}
	if started {
		if yes, known := in.asked(Probes.Ready, s.ContainerID); known {
			ready = yes
		} else {
			ready = c.ReadinessProbe == nil || same && old.Ready
		}
	}
	s.Started, s.Ready = &started, ready
}

func (in *Input) asked(what func(Probes, string) (bool, bool), id string) (yes, known bool) {
	if in.Probes == nil {
		return false, false
	}
	_, bare, _ := strings.Cut(id, "://")
	return what(in.Probes, bare)
}

func second[T interface{ Unix() int64 }](t T) metav1.Time { return metav1.Unix(t.Unix(), 0) }
