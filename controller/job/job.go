// Package job runs pods to their end: a Job asks for a number of them to succeed.
//
// In come jobs and their pods; out go pods, and a status in which every pod that
// has ended is counted once. A pod keeps a finalizer until it is: first its UID
// is in the status, then the finalizer comes off, then it is a number. Each of
// these can be repeated, so the controller may be cut off anywhere.
package job

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	listers "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/own"
	"setpoint.dev/setpoint/controller/pods"
)

// workers is how many jobs are worked on at once. Compat: as upstream.
const workers = 5

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

// index finds pods that are not counted yet by the name of their job, which may
// be gone.
const index = "setpoint.dev/job"

// Controller runs jobs.
type Controller struct {
	*loop.Loop[loop.Key]
	actor   *loop.Actor
	jobs    listers.JobLister
	pods    cache.Indexer
	control pods.Control
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	jobs, podInformer := a.Informers.Batch().V1().Jobs(), a.Informers.Core().V1().Pods().Informer()
	c := &Controller{actor: a, jobs: jobs.Lister(), pods: own.Index(podInformer), control: pods.Control{Client: a.Client, Events: a.Events}}
	if _, has := c.pods.GetIndexers()[index]; !has {
		if err := podInformer.AddIndexers(cache.Indexers{index: uncountedOf}); err != nil {
			panic("index by job: " + err.Error()) // the informer has been stopped, and so have we
		}
	}
	c.Loop = loop.New(a, "job", workers, c.reconcile)
	loop.Watch(c.Loop, "jobs.batch", jobs.Informer(), loop.Self[*batchv1.Job])
	loop.Watch(c.Loop, "pods", podInformer, own.Concerned[*corev1.Pod](kind, c.selecting))
	return c
}

// uncountedOf is the job that a pod has not been counted for.
func uncountedOf(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok || !tracked(p) {
		return nil, nil
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil && ref.Kind == kind.Kind && ref.APIVersion == batchv1.SchemeGroupVersion.String() {
		return []string{p.Namespace + "/" + ref.Name}, nil
	}
	return nil, nil
}

// selecting are the jobs of a namespace.
func (c *Controller) selecting(namespace string) []own.Selecting {
	all, _ := c.jobs.Jobs(namespace).List(labels.Everything()) // a cache has no errors
	some := make([]own.Selecting, len(all))
	for i, j := range all {
		some[i] = own.Selecting{Object: j, Selector: j.Spec.Selector}
	}
	return some
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	j, err := c.jobs.Jobs(key.Namespace).Get(key.Name)
	if err != nil {
		j = nil // a cache knows no other error than that it is not there
	}
	if err := c.letGo(ctx, key, j); err != nil {
		return 0, err
	}
	switch {
	case j == nil, isOthers(j):
		return 0, nil
	case j.Spec.CompletionMode != nil && *j.Spec.CompletionMode != batchv1.NonIndexedCompletion && *j.Spec.CompletionMode != batchv1.IndexedCompletion:
		c.actor.Events.Event(j, corev1.EventTypeWarning, "UnknownCompletionMode", "Skipped Job sync because completion mode is unknown")
		return 0, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil {
		return 0, err
	}
	mine, err := pods.Claim(ctx, c.actor.Client, c.pods, own.Owner{
		Object: j, Kind: kind, Finalizers: []string{batchv1.JobTrackingFinalizer},
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return c.actor.Client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
		},
	}, selector)
	if err != nil {
		return 0, err
	}
	p := plan(Observed{Job: j, Pods: mine, Now: time.Now()})
	return p.Again, c.act(ctx, j, p)
}

// isOthers says that another controller runs the job.
func isOthers(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName
}

// letGo takes the finalizer off pods whose job is gone: nobody will count them.
func (c *Controller) letGo(ctx context.Context, key loop.Key, j *batchv1.Job) error {
	left, err := c.pods.ByIndex(index, key.String())
	if err != nil {
		return err
	}
	for _, obj := range left {
		p, ok := obj.(*corev1.Pod)
		if !ok || j != nil && metav1.IsControlledBy(p, j) {
			continue
		}
		if err := c.release(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// act writes what is planned. What fails is planned anew.
func (c *Controller) act(ctx context.Context, j *batchv1.Job, p Plan) error {
	_, err := pods.Each(len(p.Delete), func(i int) error {
		return ignoreNotFound(c.control.Delete(ctx, j.Namespace, p.Delete[i].Name, j))
	})
	if err != nil {
		return err
	}
	made, failure := c.create(ctx, j, p.Create)
	if p.Status != nil {
		p.Status.Status.Active -= int32(len(p.Create) - made)
		if _, err := c.actor.Client.BatchV1().Jobs(j.Namespace).UpdateStatus(ctx, p.Status, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	for _, e := range p.Events {
		c.actor.Events.Event(j, e.Type, e.Reason, e.Message)
	}
	if _, err := pods.Each(len(p.Release), func(i int) error { return c.release(ctx, p.Release[i]) }); err != nil {
		return err
	}
	return failure
}

// create makes pods, and says how many.
func (c *Controller) create(ctx context.Context, j *batchv1.Job, wanted []*corev1.Pod) (made int, err error) {
	var next atomic.Int32
	return pods.SlowStart(len(wanted), func() error {
		_, err := c.control.Create(ctx, wanted[next.Add(1)-1], j, j.Namespace)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil // the job goes, too
		}
		return err
	})
}

// release takes the finalizer off a pod that has been counted.
func (c *Controller) release(ctx context.Context, p *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": p.UID, "$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer},
	}})
	if err != nil {
		return err
	}
	_, err = c.actor.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsInvalid(err) || apierrors.IsConflict(err) {
		return nil // another pod has its name
	}
	return ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
