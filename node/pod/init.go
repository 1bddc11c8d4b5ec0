package pod

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/node/observe"
	"setpoint.dev/setpoint/node/restart"
)

// init plans the init containers and says whether the pod is initialized. They are
// looked at from the last one on: those before it may be gone from the runtime
// once they have done their work.
func (in *Input) init(p *Plan) bool {
	all := in.Pod.Spec.InitContainers
	if len(all) == 0 {
		return true
	}
	initialized := in.mainThere()
	passed := initialized // whether a later one was begun, so that this one was through
	for i := len(all) - 1; i >= 0; i-- {
		c := &all[i]
		last := in.Seen.Container(c.Name)
		switch {
		case last == nil:
			if passed && restart.Sidecar(c) {
				p.Init = append(p.Init, i)
			}
			continue
		case passed && !restart.Sidecar(c):
			continue
		}
		if in.initOne(p, i, last, passed) {
			initialized = initialized || i == len(all)-1
		}
		if p.Kill {
			return false
		}
		passed = true
	}
	if !passed {
		p.Init = append(p.Init, 0)
	}
	slices.Reverse(p.Init)
	return initialized
}

// mainThere says whether a main container of this sandbox is there.
func (in *Input) mainThere() bool {
	for i := range in.Pod.Spec.Containers {
		if c := in.Seen.Container(in.Pod.Spec.Containers[i].Name); c != nil && (c.State == observe.Created || c.State == observe.Running) {
			return true
		}
	}
	return false
}

// initOne plans one init container and says whether it is through: it has done its
// work, or runs and has started. The next one is begun then, unless one that comes
// later was.
func (in *Input) initOne(p *Plan, i int, last *observe.Container, passed bool) bool {
	c := &in.Pod.Spec.InitContainers[i]
	switch last.State {
	case observe.Created: // its start failed
		p.Init = append(p.Init, i)
		return false
	case observe.Running:
		return in.initRunning(p, i, last, passed)
	case observe.Exited:
		switch {
		case restart.Sidecar(c):
			p.Init = append(p.Init, i)
			return false
		case last.ExitCode != 0:
			in.initFailed(p, i, in.Seen.Starts(c, in.Pod))
			return false
		}
		p.next(in, i)
		return true
	default:
		again := restart.Sidecar(c) || restart.Running(c, &in.Pod.Spec)
		if again {
			p.Stop = append(p.Stop, Stop{last.ID, c.Name, fmt.Sprintf("Init container is in %q state, try killing it before restart", last.State), ByPolicy})
		}
		in.initFailed(p, i, again)
		return false
	}
}

// next begins the init container after one, if there is one.
func (p *Plan) next(in *Input, i int) {
	if i+1 < len(in.Pod.Spec.InitContainers) {
		p.Init = append(p.Init, i+1)
	}
}

// initFailed begins an init container that failed again, or ends the pod.
func (in *Input) initFailed(p *Plan, i int, again bool) {
	if again {
		p.Init = append(p.Init, i)
		return
	}
	p.Kill, p.Init = true, nil
}

// initRunning plans an init container that runs. Those that are no sidecars are
// waited for.
func (in *Input) initRunning(p *Plan, i int, last *observe.Container, passed bool) bool {
	c := &in.Pod.Spec.InitContainers[i]
	if !restart.Sidecar(c) {
		in.resizeInit(p, i, last)
		return false
	}
	if c.StartupProbe != nil {
		switch started, _ := in.Probes.Started(last.ID); {
		case in.Probes.StartFailed(last.ID):
			in.again(p, i, last, fmt.Sprintf("Init container %s failed startup probe", c.Name), ByStartup)
			return false
		case !started:
			return false
		}
	}
	if !passed {
		p.next(in, i)
	}
	switch {
	case last.Hash != observe.Hash(c):
		in.again(p, i, last, fmt.Sprintf("Init container %s definition changed", c.Name), ByPolicy)
	case c.LivenessProbe != nil && !in.Probes.Alive(last.ID):
		in.again(p, i, last, fmt.Sprintf("Init container %s failed liveness probe", c.Name), ByLiveness)
	default:
		in.resizeInit(p, i, last)
	}
	return true
}

func (in *Input) resizeInit(p *Plan, i int, last *observe.Container) {
	if in.resize(p, &in.Pod.Spec.InitContainers[i], last) {
		p.Init = append(p.Init, i)
	}
}

// again stops a sidecar and starts it.
func (in *Input) again(p *Plan, i int, last *observe.Container, message string, cause Cause) {
	p.Stop = append(p.Stop, Stop{last.ID, last.Name, message, cause})
	p.Init = append(p.Init, i)
}

// initContainers are the names of a pod's init containers.
func initContainers(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.InitContainers {
		names = append(names, pod.Spec.InitContainers[i].Name)
	}
	return names
}
