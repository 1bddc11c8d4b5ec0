// Package pods is what controllers of workloads know of pods: whether one counts,
// is ready or available, what a template makes, and which ones to let go first.
//
// Everything here but Control is pure. Control creates and deletes pods for an
// owner and tells it in events, in upstream's words.
package pods

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// Active says that a pod runs or may yet run.
func Active(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && p.DeletionTimestamp == nil
}

// Terminating says that a pod is being deleted and has not ended yet.
func Terminating(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && p.DeletionTimestamp != nil
}

// Condition is a pod's condition of a type; nil when it has none.
func Condition(p *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == of {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// Ready says that a pod takes requests.
func Ready(p *corev1.Pod) bool {
	c := Condition(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// readySince is when a pod became ready; the zero time when it is not.
func readySince(p *corev1.Pod) time.Time {
	if c := Condition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// Available says that a pod has been ready for at least so many seconds.
func Available(p *corev1.Pod, minReadySeconds int32, now time.Time) bool {
	return Ready(p) && AvailableIn(p, minReadySeconds, now) == 0
}

// AvailableIn is how long a pod that is ready has to stay so until it is
// available; 0 when it is available, or not ready.
func AvailableIn(p *corev1.Pod, minReadySeconds int32, now time.Time) time.Duration {
	if minReadySeconds == 0 || !Ready(p) {
		return 0
	}
	since, wait := readySince(p), time.Duration(minReadySeconds)*time.Second
	if since.IsZero() {
		return wait
	}
	return max(0, since.Add(wait).Sub(now))
}

// Filter returns those of pods that a test holds for.
func Filter(of []*corev1.Pod, holds func(*corev1.Pod) bool) []*corev1.Pod {
	var kept []*corev1.Pod
	for _, p := range of {
		if holds(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// FromTemplate is a pod of a template, controlled by owner, whose name begins
// with that of the owner.
func FromTemplate(t *corev1.PodTemplateSpec, owner metav1.Object, ref *metav1.OwnerReference) *corev1.Pod {
	prefix := owner.GetName() + "-"
	if len(validation.NameIsDNSSubdomain(prefix, true)) > 0 {
		prefix = owner.GetName()
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: prefix, Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations),
			Finalizers: slices.Clone(t.Finalizers),
		},
		Spec: *t.Spec.DeepCopy(),
	}
	if ref != nil {
		p.OwnerReferences = []metav1.OwnerReference{*ref}
	}
	return p
}

// Control creates and deletes pods of owners.
type Control struct {
	Client kubernetes.Interface
	Events record.EventRecorder
}

// Create creates a pod of owner. One whose namespace is going is not created, and
// nobody is told: the owner goes, too.
func (c Control) Create(ctx context.Context, p *corev1.Pod, owner runtime.Object, namespace string) (*corev1.Pod, error) {
	made, err := c.Client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.Events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	case !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		c.Events.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
	}
	return made, err
}

// Delete deletes a pod of owner. One that is gone already is not found, and
// nobody is told.
func (c Control) Delete(ctx context.Context, namespace, name string, owner runtime.Object) error {
	err := c.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	switch {
	case err == nil:
		c.Events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", name)
		return nil
	case apierrors.IsNotFound(err):
		return err
	}
	c.Events.Eventf(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	return fmt.Errorf("unable to delete pods: %w", err)
}

// atOnce bounds how many requests a controller has under way for one owner.
const atOnce = 32

// SlowStart calls do n times, first once, then twice as often each time as long
// as nothing fails, so that what cannot work is not tried n times. It returns
// how many calls were well, and an error of the others.
func SlowStart(n int, do func() error) (done int, err error) {
	for batch := min(n, 1); batch > 0; batch = min(2*batch, n-done) {
		failed, err := Each(batch, func(int) error { return do() })
		done += batch - failed
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// Each calls do with 0 up to n-1, several at once, and returns how many calls
// failed, and the first error.
func Each(n int, do func(i int) error) (failed int, err error) {
	errs := make([]error, n)
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i := range n {
		g.Go(func() error {
			errs[i] = do(i)
			return nil
		})
	}
	_ = g.Wait() // the calls' errors are in errs
	for _, e := range errs {
		if e != nil {
			failed++
			if err == nil {
				err = e
			}
		}
	}
	return failed, err
}
