package ttl

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLeft(t *testing.T) {
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	minute := int32(60)
	finished := func(kind batchv1.JobConditionType, ago time.Duration) batchv1.JobCondition {
		return batchv1.JobCondition{Type: kind, Status: "True", LastTransitionTime: metav1.NewTime(noon.Add(-ago))}
	}
	for _, c := range []struct {
		name    string
		ttl     *int32
		deleted bool
		is      []batchv1.JobCondition
		left    time.Duration
		expires bool
	}{
		{name: "no time to live", is: []batchv1.JobCondition{finished(batchv1.JobComplete, time.Hour)}},
		{name: "not finished", ttl: &minute, is: []batchv1.JobCondition{finished(batchv1.JobSuspended, time.Hour)}},
		{name: "being deleted", ttl: &minute, deleted: true, is: []batchv1.JobCondition{finished(batchv1.JobComplete, time.Hour)}},
		{name: "just finished", ttl: &minute, is: []batchv1.JobCondition{finished(batchv1.JobFailed, 10*time.Second)}, left: 50 * time.Second, expires: true},
		{name: "long finished", ttl: &minute, is: []batchv1.JobCondition{finished(batchv1.JobComplete, time.Hour)}, expires: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := &batchv1.Job{Spec: batchv1.JobSpec{TTLSecondsAfterFinished: c.ttl}, Status: batchv1.JobStatus{Conditions: c.is}}
			if c.deleted {
				now := metav1.NewTime(noon)
				job.DeletionTimestamp = &now
			}
			if d, expires := left(job, noon); d != c.left || expires != c.expires {
				t.Errorf("left %v, %v", d, expires)
			}
		})
	}
}
