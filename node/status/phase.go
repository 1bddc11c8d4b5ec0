package status

import (
	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/node/observe"
	"setpoint.dev/setpoint/node/restart"
)

// counts is how many containers of a pod are in which state.
type counts struct {
	initPending, initFailed, sidecarPending                    int
	unknown, running, waiting, stopped, stoppedGood, succeeded int
}

// phase is the phase that containers make.
func (in *Input) phase(all []corev1.ContainerStatus) corev1.PodPhase {
	var n counts
	for i := range in.Pod.Spec.InitContainers {
		c := &in.Pod.Spec.InitContainers[i]
		if restart.Sidecar(c) {
			n.addSidecar(find(all, c.Name))
		} else {
			n.addInit(c, &in.Pod.Spec, find(all, c.Name))
		}
	}
	for i := range in.Pod.Spec.Containers {
		c := &in.Pod.Spec.Containers[i]
		n.addMain(c, &in.Pod.Spec, find(all, c.Name))
	}
	switch {
	case n.initFailed > 0:
		return corev1.PodFailed
	case n.initPending > 0, n.sidecarPending > 0 && !in.mainStarted(), n.waiting > 0:
		return corev1.PodPending
	case n.running > 0 && n.unknown == 0:
		return corev1.PodRunning
	case n.stopped == 0 || n.unknown > 0:
		return corev1.PodPending
	case !in.Ended && n.stopped != n.stoppedGood: // one of them is started again
		return corev1.PodRunning
	case n.stopped == n.succeeded:
		return corev1.PodSucceeded
	default:
		return corev1.PodFailed
	}
}

// mainStarted says whether a main container of the newest sandbox ever started.
func (in *Input) mainStarted() bool {
	for i := range in.Pod.Spec.Containers {
		c := in.Seen.Container(in.Pod.Spec.Containers[i].Name)
		if c != nil && len(in.Seen.Sandboxes) > 0 && c.Sandbox == in.Seen.Sandboxes[0].Id && (c.State == observe.Running || c.State == observe.Exited) {
			return true
		}
	}
	return false
}

// last is how a container ended last, nil when it runs or never ran.
func last(s *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	switch {
	case s.State.Terminated != nil:
		return s.State.Terminated
	case s.State.Waiting != nil:
		return s.LastTerminationState.Terminated
	default:
		return nil
	}
}

func (n *counts) addInit(c *corev1.Container, spec *corev1.PodSpec, s *corev1.ContainerStatus) {
	var end *corev1.ContainerStateTerminated
	if s != nil {
		end = last(s)
	}
	switch {
	case end == nil:
		n.initPending++
	case end.ExitCode != 0 && !restart.After(c, spec, end.ExitCode):
		n.initFailed++
	}
}

func (n *counts) addSidecar(s *corev1.ContainerStatus) {
	switch {
	case s == nil:
		n.unknown++
	case s.State.Running != nil:
		n.running++
		if s.Started == nil || !*s.Started {
			n.sidecarPending++
		}
	case s.State.Terminated != nil, s.State.Waiting != nil && s.LastTerminationState.Terminated != nil: // they do not decide
	case s.State.Waiting != nil:
		n.sidecarPending++
		n.waiting++
	default:
		n.sidecarPending++
		n.unknown++
	}
}

func (n *counts) addMain(c *corev1.Container, spec *corev1.PodSpec, s *corev1.ContainerStatus) {
	if s == nil {
		n.unknown++
		return
	}
	end := last(s)
	switch {
	case s.State.Running != nil:
		n.running++
	case end != nil:
		n.stopped++
		if !restart.After(c, spec, end.ExitCode) {
			n.stoppedGood++
		}
		if s.State.Terminated != nil && end.ExitCode == 0 {
			n.succeeded++
		}
	case s.State.Waiting != nil:
		n.waiting++
	default:
		n.unknown++
	}
}

func find(all []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}
