package scheduler

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	podapi "k8s.io/kubernetes/pkg/api/v1/pod"

	"setpoint.dev/setpoint/scheduler/place"
	"setpoint.dev/setpoint/scheduler/queue"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// evictions is how many victims are sent away at a time.
const evictions = 16

// preempt has less important pods go, where that makes room for one that was
// refused everywhere, and has it wait.
func (l *life) preempt(ctx context.Context, item *queue.Item, d *place.Decision, now time.Time) {
	pod := item.Pod
	r := refusal{reason: corev1.PodReasonUnschedulable, by: d.By(), message: d.Message()}
	budgets, _ := l.objects.Budgets.List(labels.Everything()) // a lister does not fail
	p := d.Preempt(budgets, now)
	switch {
	case p.Node != nil:
		name := p.Node.Name()
		r.nominated = &name
	case p.Useless:
		none := "" // there is no node to wait for
		r.nominated = &none
	}
	if p.Message != "" {
		r.message += " " + p.Message
	}
	l.refuse(ctx, item, r)
	if p.Node == nil {
		return
	}
	if err := l.evict(because(ctx, pod.Object), pod, p); err != nil && ctx.Err() == nil {
		l.cfg.Logger.Warn("not all pods went that were to make room", "pod", pod.Object.Namespace+"/"+pod.Object.Name, "error", err)
		l.queue.Retry(pod.Object.UID)
	}
}

// evict sends victims away. Less important pods that wait for the same room wait
// for it no more.
func (l *life) evict(ctx context.Context, pod *snapshot.Pod, p place.Preemption) error {
	var g errgroup.Group
	g.SetLimit(evictions)
	for _, victim := range p.Victims {
		if victim.Object.DeletionTimestamp == nil {
			g.Go(func() error { return l.sendAway(ctx, pod.Object, victim.Object, p.Node.Name()) })
		}
	}
	for _, other := range l.cache.Nominated(p.Node.Name()) {
		if other.Priority >= pod.Priority {
			continue
		}
		l.cache.Nominate(other, "")
		none := ""
		if err := l.patch(ctx, other.Object, nil, &none); err != nil && !apierrors.IsNotFound(err) {
			l.cfg.Logger.Warn("a pod waits for room that another is given", "pod", other.Object.Namespace+"/"+other.Object.Name, "error", err)
		}
	}
	return g.Wait()
}

// sendAway deletes a pod, which is told why. One that is gone is gone.
func (l *life) sendAway(ctx context.Context, pod, victim *corev1.Pod, node string) error {
	condition := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message:            fmt.Sprintf("%s: preempting to accommodate a higher priority pod", pod.Spec.SchedulerName),
		ObservedGeneration: podapi.CalculatePodConditionObservedGeneration(&victim.Status, victim.Generation, corev1.DisruptionTarget),
	}
	err := l.patch(ctx, victim, &condition, nil)
	if err == nil {
		err = l.client.CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(victim.UID))})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		l.recorders[pod.Spec.SchedulerName].Eventf(victim, pod, corev1.EventTypeNormal, "Preempted", "Preempting", "Preempted by pod %v on node %v", pod.UID, node)
	}
	return err
}
