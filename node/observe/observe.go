// Package observe reads what a container runtime has of a pod.
//
// In come a CRI runtime and a pod's UID; out comes a Pod: its sandboxes and
// containers, newest first, with what was written on them when they were made. A
// Relister tells which pods have changed since it last looked, at the price of two
// lists. What always holds: nothing is kept here that the runtime does not know,
// so an agent that starts anew sees what the one before it saw.
package observe

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/restart"
)

// State is how far a container is.
type State int

// The states of a container. Unknown is that of one the runtime lost sight of.
const (
	Unknown State = iota
	Created
	Running
	Exited
)

// String is the word that events and messages use.
func (s State) String() string {
	return [...]string{"unknown", "created", "running", "exited"}[s]
}

// Container is one try at running a container of a pod.
type Container struct {
	ID, Name, Sandbox               string
	State                           State
	Created, Started, Finished      time.Time
	ExitCode                        int32
	Reason, Message                 string
	Image, ImageRef                 string
	Hash                            string
	Restarts                        int32
	LogPath                         string
	Resources                       *Resources // nil when the runtime does not say
	User                            *corev1.ContainerUser
	Mounts                          []*runtimeapi.Mount
	DeletionGrace, TerminationGrace *int64
	PreStop                         *corev1.LifecycleHandler
	Ports                           []corev1.ContainerPort
	// BrokenOff says that whoever asked for its start was gone before it ran. It is
	// Created to all but the runtime, which does not start it any more.
	BrokenOff bool
}

// Resources are those that a runtime says a container has; nil is what it does
// not say.
type Resources struct {
	CPURequest, CPULimit, MemoryLimit *resource.Quantity
}

// Pod is what a runtime has of a pod.
type Pod struct {
	UID, Namespace, Name string
	Sandboxes            []*runtimeapi.PodSandboxStatus // newest first
	Containers           []*Container                   // newest first
	// IPs are those of the newest sandbox, if it is ready.
	IPs []string
}

// Container is the newest try at a container, nil when there is none.
func (p *Pod) Container(name string) *Container {
	for _, c := range p.Containers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Running are the containers that may run.
func (p *Pod) Running() []*Container {
	var all []*Container
	for _, c := range p.Containers {
		if c.State == Running || c.State == Unknown {
			all = append(all, c)
		}
	}
	return all
}

// Stopped says whether nothing of the pod runs any more.
func (p *Pod) Stopped() bool {
	for _, s := range p.Sandboxes {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			return false
		}
	}
	return len(p.Running()) == 0
}

// Sandbox says whether a pod needs a new sandbox, as which attempt, and which one
// it has; "" where it has none.
func (p *Pod) Sandbox(pod *corev1.Pod) (fresh bool, attempt uint32, id string) {
	if len(p.Sandboxes) == 0 {
		return true, 0, ""
	}
	ready, next := 0, uint32(0)
	for _, s := range p.Sandboxes {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready++
		}
		// The newest one has not always the last number: containerd does not say when
		// one was made whose start failed, but keeps its name.
		next = max(next, s.GetMetadata().GetAttempt()+1)
	}
	newest := p.Sandboxes[0]
	network := runtimeapi.NamespaceMode_POD
	if pod.Spec.HostNetwork {
		network = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case ready > 1, newest.State != runtimeapi.PodSandboxState_SANDBOX_READY:
		return true, next, newest.Id
	case newest.GetLinux().GetNamespaces().GetOptions().GetNetwork() != network:
		return true, next, ""
	case !pod.Spec.HostNetwork && newest.Network != nil && newest.Network.Ip == "":
		return true, next, newest.Id
	}
	return false, newest.GetMetadata().GetAttempt(), newest.Id
}

// Starts says whether a container of a pod is to be started: it was never, or its
// last try ended in a way that asks for another.
func (p *Pod) Starts(c *corev1.Container, pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	last := p.Container(c.Name)
	if last == nil {
		return true
	}
	switch last.State {
	case Running:
		return false
	case Unknown, Created:
		return true
	default:
		return restart.After(c, &pod.Spec, last.ExitCode)
	}
}

// Began says whether any of a pod's main containers was ever created.
func (p *Pod) Began(pod *corev1.Pod) bool {
	for i := range pod.Spec.Containers {
		if c := p.Container(pod.Spec.Containers[i].Name); c != nil && c.State != Unknown {
			return true
		}
	}
	return false
}

// Ran says whether anything of the pod ever ran, as far as the runtime knows.
func (p *Pod) Ran() bool {
	return slices.ContainsFunc(p.Containers, func(c *Container) bool { return c.State != Created })
}
