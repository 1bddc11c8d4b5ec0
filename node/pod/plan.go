// Package pod runs a pod: it decides what is to be done next and does it.
//
// In come a pod as declared, what the runtime has of it and what its probes say;
// Make decides, without touching anything, what the next step is: a sandbox,
// containers to stop, to start or to change. Runner takes the step through CRI. A
// round that ends in the middle, however it ends, is followed by one that goes on
// from what is there.
package pod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/node/observe"
	"setpoint.dev/setpoint/node/restart"
)

// Cause is why a container is stopped, where it matters for how.
type Cause string

// The causes that have grace periods of their own.
const (
	ByStartup  Cause = "StartupProbe"
	ByLiveness Cause = "LivenessProbe"
	ByPolicy   Cause = ""
)

// Probes say what probes of containers found; IDs are the runtime's.
type Probes interface {
	// Alive is false for a container whose liveness probe failed.
	Alive(id string) bool
	// Started says whether the startup probe succeeded, and whether it is decided.
	Started(id string) (yes, known bool)
	// StartFailed says that the startup probe failed.
	StartFailed(id string) bool
}

// Input is what a plan is made of.
type Input struct {
	// Pod is as declared, with the resources that are allocated to it.
	Pod *corev1.Pod
	// Seen is what the runtime has.
	Seen *observe.Pod
	// Probes say what was found.
	Probes Probes
	// Actuated are the resources that containers were given last, by name. A
	// container that is not there has what is declared.
	Actuated map[string]corev1.ResourceRequirements
}

// Stop is a container to stop.
type Stop struct {
	ID, Name, Message string
	Cause             Cause
}

// Update is a container to give other resources to while it runs.
type Update struct {
	ID        string
	Container *corev1.Container
}

// Plan is what is to be done next, in this order.
type Plan struct {
	// Kill stops everything that runs, and the sandboxes. Lost says that the pod has
	// failed by that: its sandbox ended before its containers had, and what ran must
	// not run again.
	Kill, Lost bool
	// Reset are containers to remove, whether they run or not, so that all of the
	// pod begins again.
	Reset []*observe.Container
	// Stop are containers to stop.
	Stop []Stop
	// Sandbox makes a sandbox, as which Attempt. Without it SandboxID is the one
	// there is; with it, the one that is replaced.
	Sandbox   bool
	Attempt   uint32
	SandboxID string
	// Ephemeral, Init and Main are what to start, by place in the declaration.
	Ephemeral, Init, Main []int
	// Update are containers to change.
	Update []Update
}

// Nothing says whether there is nothing to do.
func (p *Plan) Nothing() bool {
	return !p.Kill && !p.Sandbox && len(p.Reset)+len(p.Stop)+len(p.Ephemeral)+len(p.Init)+len(p.Main)+len(p.Update) == 0
}

// String is the plan as text, a line for each thing to do.
func (p *Plan) String() string {
	var b strings.Builder
	switch {
	case p.Lost:
		fmt.Fprintln(&b, "kill, for it is lost")
	case p.Kill:
		fmt.Fprintln(&b, "kill")
	}
	for _, c := range p.Reset {
		fmt.Fprintln(&b, "reset", c.ID)
	}
	for _, s := range p.Stop {
		fmt.Fprintf(&b, "stop %s: %s\n", s.ID, s.Message)
	}
	if p.Sandbox {
		fmt.Fprintf(&b, "sandbox attempt %d, instead of %q\n", p.Attempt, p.SandboxID)
	}
	for _, part := range []struct {
		name string
		all  []int
	}{{"ephemeral", p.Ephemeral}, {"init", p.Init}} {
		for _, i := range part.all {
			fmt.Fprintf(&b, "start %s %d\n", part.name, i)
		}
	}
	for _, u := range p.Update {
		fmt.Fprintln(&b, "update", u.ID)
	}
	for _, i := range p.Main {
		fmt.Fprintf(&b, "start main %d\n", i)
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

// Make says what to do next so that a pod runs as declared.
func Make(in Input) Plan {
	fresh, attempt, id := in.Seen.Sandbox(in.Pod)
	p := Plan{Kill: fresh && len(in.Seen.Sandboxes) > 0, Sandbox: fresh, Attempt: attempt, SandboxID: id}
	switch {
	case fresh:
		in.anew(&p)
		return p
	case in.resets(&p):
		return p
	}
	for i := range in.Pod.Spec.EphemeralContainers {
		if in.Seen.Container(in.Pod.Spec.EphemeralContainers[i].Name) == nil {
			p.Ephemeral = append(p.Ephemeral, i)
		}
	}
	if initialized := in.init(&p); p.Kill || !initialized {
		return p
	}
	in.main(&p)
	return p
}

// anew plans a pod that needs a sandbox: everything begins again, but for what
// has done its work.
func (in *Input) anew(p *Plan) {
	spec := &in.Pod.Spec
	if spec.RestartPolicy == corev1.RestartPolicyNever && p.Attempt != 0 && in.Seen.Ran() {
		p.Sandbox, p.Lost = false, true
		return
	}
	var start []int
	for i := range spec.Containers {
		c := &spec.Containers[i]
		once := spec.RestartPolicy == corev1.RestartPolicyOnFailure
		if c.RestartPolicy != nil {
			once = *c.RestartPolicy == corev1.ContainerRestartPolicyOnFailure
		}
		if last := in.Seen.Container(c.Name); once && last != nil && last.State == observe.Exited && last.ExitCode == 0 {
			continue
		}
		start = append(start, i)
	}
	switch {
	case len(start) == 0 && in.Seen.Began(in.Pod):
		p.Sandbox = false
	case len(spec.InitContainers) > 0:
		p.Init = []int{0}
	default:
		p.Main = start
	}
}

// resets plans a pod of which one container ended in a way that starts all of
// them again: those that did so are removed last.
func (in *Input) resets(p *Plan) bool {
	var sources, others []*observe.Container
	found := false
	spec := &in.Pod.Spec
	for _, all := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range all {
			newest := true
			for _, c := range in.Seen.Containers {
				if c.Name != all[i].Name {
					continue
				}
				action, ok := restart.Rule(&all[i], c.ExitCode)
				if c.State == observe.Exited && ok && action == corev1.ContainerRestartRuleActionRestartAllContainers {
					found = found || newest
					sources = append(sources, c)
				} else {
					others = append(others, c)
				}
				newest = false
			}
		}
	}
	if found {
		p.Reset = slices.Concat(others, sources)
	}
	return found
}

// main plans the main containers of a pod that is initialized.
func (in *Input) main(p *Plan) {
	kept := 0
	for i := range in.Pod.Spec.Containers {
		c := &in.Pod.Spec.Containers[i]
		last := in.Seen.Container(c.Name)
		if last == nil || last.State != observe.Running {
			if !in.Seen.Starts(c, in.Pod) {
				continue
			}
			p.Main = append(p.Main, i)
			if last != nil && last.State == observe.Unknown {
				p.Stop = append(p.Stop, Stop{last.ID, c.Name, fmt.Sprintf("Container is in %q state, try killing it before restart", last.State), ByPolicy})
			}
			continue
		}
		again := restart.Running(c, &in.Pod.Spec)
		var stop *Stop
		switch {
		case last.Hash != observe.Hash(c):
			stop, again = &Stop{Message: fmt.Sprintf("Container %s definition changed", c.Name)}, true
		case !in.Probes.Alive(last.ID):
			stop = &Stop{Message: fmt.Sprintf("Container %s failed liveness probe", c.Name), Cause: ByLiveness}
		case in.Probes.StartFailed(last.ID):
			stop = &Stop{Message: fmt.Sprintf("Container %s failed startup probe", c.Name), Cause: ByStartup}
		default:
			if in.resize(p, c, last) {
				p.Main = append(p.Main, i)
			} else {
				kept++
			}
			continue
		}
		if again {
			stop.Message += ", will be restarted"
			p.Main = append(p.Main, i)
		}
		stop.ID, stop.Name = last.ID, c.Name
		p.Stop = append(p.Stop, *stop)
	}
	if kept == 0 && len(p.Main) == 0 {
		p.Kill, p.Init = true, nil // sidecars do not keep a pod alive
	}
}

// resize plans the resources of a container that runs, and says whether it has to
// be started again for them.
func (in *Input) resize(p *Plan, c *corev1.Container, last *observe.Container) bool {
	had, known := in.Actuated[c.Name]
	if !known {
		return false
	}
	changed := Changed(&had, &c.Resources)
	if len(changed) == 0 {
		return false
	}
	for _, name := range changed {
		for _, policy := range c.ResizePolicy {
			if policy.ResourceName == name && policy.RestartPolicy == corev1.RestartContainer {
				p.Stop = append(p.Stop, Stop{last.ID, c.Name, fmt.Sprintf("Container %s resize requires restart", c.Name), ByPolicy})
				return true
			}
		}
	}
	p.Update = append(p.Update, Update{ID: last.ID, Container: c})
	return false
}

// Changed are the resources of which requests or limits differ, of those that can
// be changed while a container runs.
func Changed(a, b *corev1.ResourceRequirements) []corev1.ResourceName {
	var all []corev1.ResourceName
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if !equal(a.Requests, b.Requests, name) || !equal(a.Limits, b.Limits, name) {
			all = append(all, name)
		}
	}
	return all
}

func equal(a, b corev1.ResourceList, name corev1.ResourceName) bool {
	x, y := a[name], b[name]
	return x.Cmp(y) == 0
}
