package cronjob

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/controller/plantest"
)

// now is ten seconds after a minute.
var now = time.Date(2030, 1, 1, 12, 0, 10, 0, time.UTC)

type edit = func(*batchv1.CronJob)

func cronOf(schedule string, edits ...edit) *batchv1.CronJob {
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "tick", Namespace: "default", UID: "c", CreationTimestamp: metav1.NewTime(now.Add(-30 * time.Second))},
		Spec:       batchv1.CronJobSpec{Schedule: schedule, ConcurrencyPolicy: batchv1.AllowConcurrent, SuccessfulJobsHistoryLimit: new(int32(3)), FailedJobsHistoryLimit: new(int32(1))},
	}
	for _, e := range edits {
		e(c)
	}
	return c
}

func policy(p batchv1.ConcurrencyPolicy) edit {
	return func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = p }
}
func zone(z string) edit    { return func(c *batchv1.CronJob) { c.Spec.TimeZone = &z } }
func deadline(s int64) edit { return func(c *batchv1.CronJob) { c.Spec.StartingDeadlineSeconds = &s } }

func last(ago time.Duration) edit {
	return func(c *batchv1.CronJob) { c.Status.LastScheduleTime = &metav1.Time{Time: now.Add(-ago)} }
}

func made(ago time.Duration) edit {
	return func(c *batchv1.CronJob) { c.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
}

func active(names ...string) edit {
	return func(c *batchv1.CronJob) {
		for _, n := range names {
			c.Status.Active = append(c.Status.Active, corev1.ObjectReference{Name: n, UID: types.UID(n)})
		}
	}
}

// jobOf is "name[ end minutes-ago]".
func jobOf(text string) *batchv1.Job {
	fields := strings.Fields(text)
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fields[0], UID: types.UID(fields[0])}}
	if len(fields) > 1 {
		var ago int
		_, _ = fmt.Sscan(fields[2], &ago)
		at := metav1.NewTime(now.Add(-time.Duration(ago) * time.Minute))
		j.Status.StartTime, j.Status.CompletionTime = &at, &at
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobConditionType(fields[1]), Status: corev1.ConditionTrue}}
	}
	return j
}

func TestPlan(t *testing.T) {
	cases := []struct {
		name string
		cron *batchv1.CronJob
		jobs string // one on each line
	}{
		{name: "due", cron: cronOf("* * * * *")},
		{name: "not due yet", cron: cronOf("30 * * * *")},
		{name: "done already", cron: cronOf("* * * * *", last(10*time.Second))},
		{name: "made already, not noted", cron: cronOf("* * * * *", active("tick-31558320")), jobs: "tick-31558320"},
		{name: "missed a few: the last is made up for", cron: cronOf("*/5 * * * *", made(time.Hour))},
		{name: "missed many", cron: cronOf("* * * * *", made(10*time.Hour))},
		{name: "missed, and too late", cron: cronOf("0 11 * * *", made(24*time.Hour), deadline(600))},
		{name: "missed, and still in time", cron: cronOf("55 11 * * *", made(24*time.Hour), deadline(600))},
		{name: "unequal times", cron: cronOf("30 6-16/4 * * 1-5", made(100*time.Hour))},
		{name: "allow: another beside", cron: cronOf("* * * * *", active("a")), jobs: "a"},
		{name: "forbid: not now", cron: cronOf("* * * * *", policy(batchv1.ForbidConcurrent), active("a")), jobs: "a"},
		{name: "replace", cron: cronOf("* * * * *", policy(batchv1.ReplaceConcurrent), active("a")), jobs: "a"},
		{name: "suspended", cron: cronOf("* * * * *", func(c *batchv1.CronJob) { c.Spec.Suspend = new(true) }, active("a")), jobs: "a Complete 1"},
		{name: "time zone", cron: cronOf("0 13 * * *", zone("Europe/Berlin"))},
		{name: "no such time zone", cron: cronOf("* * * * *", zone("Europe/Nowhere"))},
		{name: "no schedule", cron: cronOf("every now and then")},
		{name: "a day that never comes", cron: cronOf("59 23 31 2 *", made(100*24*time.Hour))},
		{name: "ended, gone and unknown", cron: cronOf("30 * * * *", active("a", "gone")), jobs: "a Complete 1\nb"},
		{name: "history", cron: cronOf("30 * * * *", last(time.Minute)), jobs: "a Complete 9\nb Complete 8\nc Complete 7\nd Complete 6\ne Failed 5\nf Failed 4"},
		{name: "on its way out", cron: cronOf("* * * * *", func(c *batchv1.CronJob) { c.DeletionTimestamp = new(metav1.NewTime(now)) }, active("a")), jobs: "a Failed 1"},
	}
	var b strings.Builder
	for _, c := range cases {
		seen := Observed{CronJob: c.cron, Now: now}
		for line := range strings.Lines(c.jobs) {
			seen.Jobs = append(seen.Jobs, jobOf(line))
		}
		fmt.Fprintf(&b, "# %s\n%s\n", c.name, describe(plan(seen)))
	}
	plantest.Golden(t, "plan.txt", b.String())
}

// describe writes a plan down for people.
func describe(p Plan) string {
	var b strings.Builder
	for _, j := range p.Delete {
		fmt.Fprintf(&b, "delete %s\n", j.Name)
	}
	if p.Create != nil {
		fmt.Fprintf(&b, "create %s %v\n", p.Create.Name, p.Create.Annotations)
	}
	if p.Status != nil {
		st := p.Status.Status
		fmt.Fprint(&b, "status active=[")
		for _, r := range st.Active {
			fmt.Fprint(&b, r.Name)
		}
		fmt.Fprintf(&b, "] last=%v succeeded=%v\n", st.LastScheduleTime, st.LastSuccessfulTime)
	}
	for _, e := range p.Events {
		fmt.Fprintf(&b, "tell %s %s: %s\n", e.Type, e.Reason, e.Message)
	}
	if p.Again > 0 {
		fmt.Fprintf(&b, "again in %s\n", p.Again)
	}
	return b.String()
}
