// Package ttl deletes jobs some time after they have finished.
//
// In come jobs; out come deletions, dependents first, of those that have a
// ttlSecondsAfterFinished and finished so long ago. Before one is deleted the
// API is asked whether it still is so.
package ttl

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/loop"
)

const workers = 5

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	jobs := a.Informers.Batch().V1().Jobs()
	l := loop.New(a, "ttl_jobs_to_delete", workers, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		job, err := jobs.Lister().Jobs(key.Namespace).Get(key.Name)
		if err != nil {
			return 0, nil //nolint:nilerr // it is not there
		}
		if wait, expires := left(job, time.Now()); !expires || wait > 0 {
			return wait, nil
		}
		job, err = a.Client.BatchV1().Jobs(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if err != nil {
			return 0, gone(err)
		}
		if wait, expires := left(job, time.Now()); !expires || wait > 0 {
			return wait, nil
		}
		foreground := metav1.DeletePropagationForeground
		return 0, gone(a.Client.BatchV1().Jobs(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
			PropagationPolicy: &foreground, Preconditions: &metav1.Preconditions{UID: &job.UID},
		}))
	})
	loop.Watch(l, "jobs.batch", jobs.Informer(), func(_, after *batchv1.Job) []loop.Key {
		if after == nil || after.Spec.TTLSecondsAfterFinished == nil {
			return nil
		}
		return []loop.Key{loop.KeyOf(after)}
	})
	return l
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// left is how long a job may still stay; false when it may stay forever.
func left(job *batchv1.Job, now time.Time) (time.Duration, bool) {
	if job.DeletionTimestamp != nil || job.Spec.TTLSecondsAfterFinished == nil {
		return 0, false
	}
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			end := c.LastTransitionTime.Add(time.Duration(*job.Spec.TTLSecondsAfterFinished) * time.Second)
			return max(0, end.Sub(now)), true
		}
	}
	return 0, false
}
