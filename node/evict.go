package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/node/status"
)

// Eviction is why a pod is ended by its node.
type Eviction struct {
	Reason, Message string
	// Grace is how many seconds its containers have; nil means as declared.
	Grace *int64
	// Disruption is the condition that says so.
	Disruption corev1.PodCondition
}

// Evict ends a pod as failed and returns when its containers have ended. One that
// is not there has.
func (a *Agent) Evict(ctx context.Context, uid types.UID, e Eviction) error {
	a.mu.Lock()
	w := a.workers[uid]
	a.mu.Unlock()
	if w == nil {
		return nil
	}
	ended := w.drive(&e)
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drive has the pod evicted; what it returns is closed when its containers have
// ended.
func (w *worker) drive(e *Eviction) <-chan struct{} {
	w.mu.Lock()
	if w.eviction == nil {
		w.eviction = e
	}
	if w.cancel != nil && (w.grace < 0 || e.Grace != nil && *e.Grace < w.grace) {
		w.cancel()
	}
	w.mu.Unlock()
	w.nudge()
	return w.quiet
}

// evicted takes an eviction over, and returns its grace.
func (w *worker) evicted() *int64 {
	w.mu.Lock()
	e := w.eviction
	w.mu.Unlock()
	if e == nil {
		return nil
	}
	if w.failed == nil && !w.stopped {
		w.failed = &status.Why{Reason: e.Reason, Message: e.Message}
		if e.Disruption.Type != "" {
			w.old.Conditions = append(w.old.Conditions, e.Disruption)
		}
	}
	return e.Grace
}
