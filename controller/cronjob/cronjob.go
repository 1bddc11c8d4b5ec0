// Package cronjob starts jobs by the clock: a CronJob says when, and what happens
// when one start comes before the last has ended.
//
// In come cron jobs and the jobs that they control; out go jobs, each named for
// the minute of its start, so that no start is made twice.
package cronjob

import (
	"context"
	"time"
	_ "time/tzdata" // for machines that do not know time zones

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/own"
)

// workers is how many cron jobs are worked on at once. Compat: as upstream.
const workers = 5

// Controller starts jobs.
type Controller struct {
	*loop.Loop[loop.Key]
	actor *loop.Actor
	crons listers.CronJobLister
	jobs  cache.Indexer
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	batch := a.Informers.Batch().V1()
	jobs := batch.Jobs().Informer()
	c := &Controller{actor: a, crons: batch.CronJobs().Lister(), jobs: own.Index(jobs)}
	c.Loop = loop.New(a, "cronjob", workers, c.reconcile)
	loop.Watch(c.Loop, "cronjobs.batch", batch.CronJobs().Informer(), loop.Self[*batchv1.CronJob])
	loop.Watch(c.Loop, "jobs.batch", jobs, own.Concerned[*batchv1.Job](kind, func(string) []own.Selecting { return nil })) // nothing is adopted
	return c
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	cron, err := c.crons.CronJobs(key.Namespace).Get(key.Name)
	if err != nil {
		return 0, nil //nolint:nilerr // a cache knows no other error than that it is not there
	}
	p := plan(Observed{CronJob: cron, Jobs: own.By[*batchv1.Job](c.jobs, cron.UID), Now: time.Now()})
	return p.Again, c.act(ctx, cron, p)
}

// act writes what is planned. What fails is planned anew.
func (c *Controller) act(ctx context.Context, cron *batchv1.CronJob, p Plan) error {
	for _, e := range p.Events {
		c.actor.Events.Event(cron, e.Type, e.Reason, e.Message)
	}
	jobs := c.actor.Client.BatchV1().Jobs(cron.Namespace)
	background := metav1.DeletePropagationBackground
	for _, j := range p.Delete {
		if err := jobs.Delete(ctx, j.Name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil && !apierrors.IsNotFound(err) {
			c.actor.Events.Eventf(cron, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
			return err
		}
		c.actor.Events.Eventf(cron, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", j.Name)
	}
	if p.Create != nil {
		made, err := c.create(ctx, cron, p.Create)
		if made == nil {
			return err
		}
		p.Status.Status.Active = append(p.Status.Status.Active, corev1.ObjectReference{
			APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Namespace: made.Namespace, Name: made.Name, UID: made.UID, ResourceVersion: made.ResourceVersion,
		})
	}
	if p.Status == nil {
		return nil
	}
	_, err := c.actor.Client.BatchV1().CronJobs(cron.Namespace).UpdateStatus(ctx, p.Status, metav1.UpdateOptions{})
	return err
}

// create makes the job of a start, or finds the one that an earlier try made. It
// is nil where neither is the cron job's.
func (c *Controller) create(ctx context.Context, cron *batchv1.CronJob, j *batchv1.Job) (*batchv1.Job, error) {
	made, err := c.actor.Client.BatchV1().Jobs(cron.Namespace).Create(ctx, j, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.actor.Events.Eventf(cron, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", made.Name)
		return made, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, nil //nolint:nilnil // the cron job goes, too
	case !apierrors.IsAlreadyExists(err):
		c.actor.Events.Eventf(cron, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return nil, err
	}
	have, err := c.actor.Client.BatchV1().Jobs(cron.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
	if err != nil || !metav1.IsControlledBy(have, cron) {
		return nil, err
	}
	return have, nil
}
