package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	crierrors "k8s.io/cri-api/pkg/errors"

	"setpoint.dev/setpoint/node/observe"
	"setpoint.dev/setpoint/node/restart"
)

// shortestGrace is what every container gets before it is killed. Compat: it is
// kubelet's.
const shortestGrace = 2

// Kill stops all containers of a pod, sidecars last, and then its sandboxes. grace
// is instead of the pod's own, if it is not nil. A pod whose declaration is gone is
// stopped by what is written on its containers: pod is nil then.
func (r *Runner) Kill(ctx context.Context, pod *corev1.Pod, seen *observe.Pod, grace *int64) error {
	running := seen.Running()
	var turns *order
	if pod != nil && restart.HasSidecars(&pod.Spec) {
		turns = newOrder(pod, running)
	}
	errs := make([]error, len(running))
	var all sync.WaitGroup
	for i, c := range running {
		all.Go(func() {
			defer turns.done(c.Name)
			errs[i] = r.stop(ctx, pod, seen, Stop{ID: c.ID, Name: c.Name}, grace, turns)
		})
	}
	all.Wait()
	for _, s := range seen.Sandboxes {
		if err := r.cfg.Runtime.StopPodSandbox(ctx, s.Id); err != nil && !crierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("stop sandbox: %w", err))
		}
	}
	return errors.Join(errs...)
}

// stop stops one container: its hook first, for as long as its grace lasts, then
// its process.
func (r *Runner) stop(ctx context.Context, pod *corev1.Pod, seen *observe.Pod, s Stop, grace *int64, turns *order) error {
	pod, c := known(pod, seen, s)
	left := graceOf(pod, c, s.Cause)
	message := s.Message
	if message == "" {
		message = "Stopping container " + c.Name
	}
	r.cfg.Say(pod, c, corev1.EventTypeNormal, "Killing", message)
	if grace != nil {
		left = *grace
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && left > 0 {
		left -= r.preStop(ctx, pod, c, s.ID, seen.IPs, left)
	}
	if left > 0 {
		left -= turns.wait(ctx, c.Name, time.Duration(left)*time.Second)
	}
	if err := r.cfg.Runtime.StopContainer(ctx, s.ID, max(left, shortestGrace)); err != nil && !crierrors.IsNotFound(err) {
		return fmt.Errorf("stop container %s: %w", c.Name, err)
	}
	return nil
}

// known are the declarations of a pod and its container: where they are gone,
// what of them is written on the container.
func known(pod *corev1.Pod, seen *observe.Pod, s Stop) (*corev1.Pod, *corev1.Container) {
	if pod != nil {
		if c := declared(pod, s.Name); c != nil {
			return pod, c
		}
	}
	c := &corev1.Container{Name: s.Name}
	restored := &corev1.Pod{}
	restored.Name, restored.Namespace, restored.UID = seen.Name, seen.Namespace, types.UID(seen.UID)
	for _, o := range seen.Containers {
		if o.ID != s.ID {
			continue
		}
		restored.DeletionGracePeriodSeconds, restored.Spec.TerminationGracePeriodSeconds, c.Ports = o.DeletionGrace, o.TerminationGrace, o.Ports
		if o.PreStop != nil {
			c.Lifecycle = &corev1.Lifecycle{PreStop: o.PreStop}
		}
	}
	if pod != nil {
		restored = pod
	}
	return restored, c
}

// declared is a container of a pod by name, nil when there is none.
func declared(pod *corev1.Pod, name string) *corev1.Container {
	for _, all := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		if i := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
			return &all[i]
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name {
			return (*corev1.Container)(&e.EphemeralContainerCommon)
		}
	}
	return nil
}

// graceOf is how many seconds a container has to end by itself.
func graceOf(pod *corev1.Pod, c *corev1.Container, cause Cause) int64 {
	if pod.DeletionGracePeriodSeconds != nil {
		return *pod.DeletionGracePeriodSeconds
	}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		return shortestGrace
	}
	probe := map[Cause]*corev1.Probe{ByStartup: c.StartupProbe, ByLiveness: c.LivenessProbe}[cause]
	if probe != nil && probe.TerminationGracePeriodSeconds != nil {
		return *probe.TerminationGracePeriodSeconds
	}
	return *pod.Spec.TerminationGracePeriodSeconds
}

// preStop runs a container's hook for at most so many seconds, and returns how
// many it took.
func (r *Runner) preStop(ctx context.Context, pod *corev1.Pod, c *corev1.Container, id string, ips []string, seconds int64) int64 {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
	defer cancel()
	if err := r.hooks.Run(ctx, r.call(pod, c, c.Lifecycle.PreStop, id, ips)); err != nil && ctx.Err() == nil {
		r.cfg.Say(pod, c, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
	return int64(time.Since(begun).Seconds())
}

// order makes sidecars wait for who uses them: the main containers, and the
// sidecars that were started later. The zero pointer makes nobody wait.
type order struct {
	mu    sync.Mutex // guards ended
	ended map[string]chan struct{}
	after map[string][]chan struct{}
}

func newOrder(pod *corev1.Pod, running []*observe.Container) *order {
	o := &order{ended: map[string]chan struct{}{}, after: map[string][]chan struct{}{}}
	open := func(name string) chan struct{} {
		ch := make(chan struct{})
		if slices.ContainsFunc(running, func(c *observe.Container) bool { return c.Name == name }) {
			o.ended[name] = ch
		} else {
			close(ch)
		}
		return ch
	}
	var before []chan struct{}
	for i := range pod.Spec.Containers {
		before = append(before, open(pod.Spec.Containers[i].Name))
	}
	for _, c := range slices.Backward(pod.Spec.InitContainers) {
		ch := open(c.Name)
		if restart.Sidecar(&c) {
			o.after[c.Name] = slices.Clone(before)
			before = append(before, ch)
		}
	}
	return o
}

// wait waits for a container's turn and returns how many seconds that took.
func (o *order) wait(ctx context.Context, name string, most time.Duration) int64 {
	if o == nil {
		return 0
	}
	begun, late := time.Now(), time.After(most)
	for _, ch := range o.after[name] {
		select {
		case <-ch:
		case <-late:
			return int64(time.Since(begun).Seconds())
		case <-ctx.Done():
			return int64(time.Since(begun).Seconds())
		}
	}
	return int64(time.Since(begun).Seconds())
}

// done says that a container has ended.
func (o *order) done(name string) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if ch, ok := o.ended[name]; ok {
		close(ch)
		delete(o.ended, name)
	}
}

// Remove removes what is left of a pod in the runtime, once it is stopped.
func (r *Runner) Remove(ctx context.Context, seen *observe.Pod) error {
	var errs []error
	for _, c := range seen.Containers {
		if err := r.cfg.Runtime.RemoveContainer(ctx, c.ID); err != nil && !crierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove container: %w", err))
		}
	}
	for _, s := range seen.Sandboxes {
		if err := r.cfg.Runtime.RemovePodSandbox(ctx, s.Id); err != nil && !crierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove sandbox: %w", err))
		}
	}
	return errors.Join(errs...)
}
