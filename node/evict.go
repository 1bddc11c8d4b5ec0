package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"setpoint.dev/setpoint/node/admit"
	"setpoint.dev/setpoint/node/evict"
	"setpoint.dev/setpoint/node/pod"
	"setpoint.dev/setpoint/node/status"
)

// Active are the pods that take up room on the node.
func (a *Agent) Active() []*corev1.Pod { return a.others("") }

// Used is what a pod's emptyDir volumes take up.
func (a *Agent) Used(p *corev1.Pod) []statsapi.VolumeStats { return a.cfg.Data.Used(p) }

// Logs is the folder of a pod's logs, with one for each container.
func (a *Agent) Logs(namespace, name string, uid types.UID) string {
	return pod.LogFolder(a.cfg.Logs, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}})
}

// Evict ends a pod as failed and returns when its containers have ended. One that
// is not there has.
func (a *Agent) Evict(ctx context.Context, p *corev1.Pod, e evict.Eviction) error {
	a.mu.Lock()
	w := a.workers[p.UID]
	a.mu.Unlock()
	if w == nil {
		return nil
	}
	a.events.AnnotatedEventf(reference(p), e.Annotations, corev1.EventTypeWarning, evict.Reason, "%s", e.Message)
	ended := w.drive(&e)
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refusal is why the node does not take a pod, nil when it does.
func (a *Agent) refusal(p *corev1.Pod, self *corev1.Node) *admit.Refusal {
	if a.cfg.Admit != nil {
		if no := a.cfg.Admit(p); no != nil {
			return no
		}
	}
	return admit.Pod(p, self, a.others(p.UID))
}

// drive has the pod evicted; what it returns is closed when its containers have
// ended.
func (w *worker) drive(e *evict.Eviction) <-chan struct{} {
	w.mu.Lock()
	if w.eviction == nil {
		w.eviction = e
	}
	if w.cancel != nil && (w.grace < 0 || seconds(e.Grace) < w.grace) {
		w.cancel()
	}
	w.mu.Unlock()
	w.nudge()
	return w.quiet
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// evicted takes an eviction over, and returns its grace; nil when there is none.
func (w *worker) evicted() *int64 {
	w.mu.Lock()
	e := w.eviction
	w.mu.Unlock()
	if e == nil {
		return nil
	}
	if w.failed == nil && !w.stopped {
		w.failed = &status.Why{Reason: evict.Reason, Message: e.Message}
		if e.Condition != nil {
			c := *e.Condition
			c.LastTransitionTime = metav1.NewTime(time.Now()).Rfc3339Copy()
			w.old.Conditions = append(w.old.Conditions, c)
		}
	}
	grace := seconds(e.Grace)
	return &grace
}
