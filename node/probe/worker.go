package probe

import (
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/node/restart"
)

// worker is one probe of one container.
type worker struct {
	set       *Set
	key       key
	container *corev1.Container
	probe     *corev1.Probe
	now       chan struct{} // looks at once
	gone      chan struct{} // closed when the pod is

	id    string  // the container that was asked last
	last  outcome // what it answered
	count int     // how often in a row
	held  bool    // whether it is asked no more
}

// run asks until the pod is gone.
func (w *worker) run() {
	defer func() { w.set.forget(about{w.key.kind, w.id}) }()
	period := time.Duration(w.probe.PeriodSeconds) * time.Second
	if v, ok := w.set.view(w.key.uid); ok && w.adopted(w.status(&v.status)) {
		if !w.pause(time.Duration(rand.Float64() * float64(period))) { // many are asked after an agent's start
			return
		}
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for w.ask() {
		select {
		case <-w.gone:
			return
		case <-w.set.ctx.Done():
			return
		case <-tick.C:
		case <-w.now:
			tick.Reset(period)
		}
	}
}

func (w *worker) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-w.gone:
	case <-w.set.ctx.Done():
	}
	return false
}

// status is that of the worker's container, nil when there is none yet.
func (w *worker) status(s *corev1.PodStatus) *corev1.ContainerStatus {
	for _, all := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses} {
		for i := range all {
			if all[i].Name == w.key.name && all[i].ContainerID != "" {
				return &all[i]
			}
		}
	}
	return nil
}

// adopted says whether a container ran before the agent did.
func (w *worker) adopted(s *corev1.ContainerStatus) bool {
	return s != nil && s.State.Running != nil && s.State.Running.StartedAt.Time.Before(w.set.begun.Add(-time.Second))
}

// ask asks once, if it is time, and says whether to go on.
func (w *worker) ask() bool {
	v, ok := w.set.view(w.key.uid)
	if !ok {
		return true
	}
	if v.status.Phase == corev1.PodSucceeded || v.status.Phase == corev1.PodFailed {
		return false
	}
	s := w.status(&v.status)
	if s == nil {
		return true
	}
	w.meet(s)
	if s.State.Running == nil {
		// One that is there and waits may be about to run: it has failed nothing that it
		// would be stopped for.
		if s.State.Terminated != nil || w.key.kind == Readiness {
			w.set.set(w.key.uid, w.about(), failure)
		}
		return s.State.Terminated == nil || restart.After(w.container, &v.pod.Spec, s.State.Terminated.ExitCode) || restart.Everything(&v.pod.Spec)
	}
	switch {
	case w.held, int32(time.Since(s.State.Running.StartedAt.Time).Seconds()) < w.probe.InitialDelaySeconds, started(s) == (w.key.kind == Startup):
		return true
	}
	w.keep(w.set.check(v, w.key.kind, w.container, w.probe, w.id))
	return true
}

func (w *worker) about() about { return about{w.key.kind, w.id} }

// meet begins with another container.
func (w *worker) meet(s *corev1.ContainerStatus) {
	_, id, _ := strings.Cut(s.ContainerID, "://")
	if id == w.id {
		return
	}
	if w.id != "" {
		w.set.forget(w.about())
	}
	w.id, w.held, w.last, w.count = id, false, unknown, 0
	switch {
	case w.adopted(s) && w.key.kind == Startup && started(s):
		w.set.set(w.key.uid, w.about(), success)
	case w.adopted(s):
	default:
		w.set.set(w.key.uid, w.about(), map[Kind]outcome{Liveness: success, Readiness: failure, Startup: unknown}[w.key.kind])
	}
}

// keep takes an answer into account: it counts once it came as often in a row as
// was asked for.
func (w *worker) keep(o outcome) {
	if o == unknown {
		return
	}
	if w.last == o {
		w.count++
	} else {
		w.last, w.count = o, 1
	}
	if o == failure && w.count < int(w.probe.FailureThreshold) || o == success && w.count < int(w.probe.SuccessThreshold) {
		return
	}
	w.set.set(w.key.uid, w.about(), o)
	if w.key.kind == Liveness && o == failure || w.key.kind == Startup {
		w.held, w.count = true, 0
	}
}
