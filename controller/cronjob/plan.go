package cronjob

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

// manyMissed is from how many missed starts on somebody should look at the clocks.
const manyMissed = 100

// slack is how long after a start the controller looks: clocks differ.
const slack = 100 * time.Millisecond

// Observed is what a cron job is decided by.
type Observed struct {
	CronJob *batchv1.CronJob
	// Jobs are those that it controls.
	Jobs []*batchv1.Job
	Now  time.Time
}

// Plan is what to write, in this order. Everything in it is a copy, but for what
// is deleted.
type Plan struct {
	// Delete are jobs that are replaced, or are more than the history keeps.
	Delete []*batchv1.Job
	// Create is the job of a start. It is to be added to the status's active
	// ones.
	Create *batchv1.Job
	// Status is the cron job with another status; it is there when Create is.
	Status *batchv1.CronJob
	Events []Event
	// Again is when the next start is; 0 means that there is none to wait for.
	Again time.Duration
}

// Event is told about the cron job.
type Event struct {
	Type, Reason, Message string
}

// scope is one decision on its way.
type scope struct {
	Observed
	cron *batchv1.CronJob // a copy that collects the status
	plan Plan
}

// plan says which jobs to start and to forget, as the schedule asks for.
func plan(seen Observed) Plan {
	s := &scope{Observed: seen, cron: seen.CronJob.DeepCopy()}
	s.look()
	if s.cron.DeletionTimestamp == nil {
		s.schedule()
		s.forget()
	}
	if s.plan.Create != nil || !apiequality.Semantic.DeepEqual(seen.CronJob.Status, s.cron.Status) {
		s.plan.Status = s.cron
	}
	return s.plan
}

// look brings the list of active jobs up to date.
func (s *scope) look() {
	st := &s.cron.Status
	for _, j := range s.Jobs {
		listed := slices.ContainsFunc(st.Active, func(r corev1.ObjectReference) bool { return r.UID == j.UID })
		end := endOf(j)
		switch {
		case end == "" && !listed:
			s.tell(corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: "+j.Name)
		case end != "" && listed:
			s.drop(j.UID)
			s.tell(corev1.EventTypeNormal, "SawCompletedJob", fmt.Sprintf("Saw completed job: %s, condition: %v", j.Name, end))
		}
		if at := j.Status.CompletionTime; end == batchv1.JobComplete && at != nil && (st.LastSuccessfulTime == nil || at.After(st.LastSuccessfulTime.Time)) {
			st.LastSuccessfulTime = at
		}
	}
	for _, r := range slices.Clone(st.Active) {
		if !slices.ContainsFunc(s.Jobs, func(j *batchv1.Job) bool { return j.UID == r.UID }) {
			s.tell(corev1.EventTypeNormal, "MissingJob", "Active job went missing: "+r.Name)
			s.drop(r.UID)
		}
	}
}

// schedule plans the start that is due, if one is.
func (s *scope) schedule() {
	if zone := s.cron.Spec.TimeZone; zone != nil {
		if _, err := time.LoadLocation(*zone); err != nil {
			s.tell(corev1.EventTypeWarning, "UnknownTimeZone", fmt.Sprintf("invalid timeZone: %q: %s", *zone, err))
			return
		}
	}
	if s.cron.Spec.Suspend != nil && *s.cron.Spec.Suspend {
		return
	}
	times, err := s.parse()
	if err != nil {
		s.tell(corev1.EventTypeWarning, "UnparseableSchedule", fmt.Sprintf("unparseable schedule: %q : %s", s.cron.Spec.Schedule, err))
		return
	}
	due, missed, err := s.due(times, s.earliest())
	switch {
	case err != nil:
		s.tell(corev1.EventTypeWarning, "InvalidSchedule", fmt.Sprintf("invalid schedule: %s : %s", s.cron.Spec.Schedule, err))
		return
	case missed > manyMissed:
		s.tell(corev1.EventTypeWarning, "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	if !due.IsZero() {
		s.start(due)
	}
	s.wait(times)
}

// parse reads the schedule, which may have come from elsewhere with its time
// zone in front. Compat: the reader panics at some that are malformed.
func (s *scope) parse() (times cron.Schedule, err error) {
	text := s.cron.Spec.Schedule
	switch {
	case strings.Contains(text, "TZ"):
		s.tell(corev1.EventTypeWarning, "UnsupportedSchedule", fmt.Sprintf("CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", text))
	case s.cron.Spec.TimeZone != nil:
		text = "TZ=" + *s.cron.Spec.TimeZone + " " + text
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	return cron.ParseStandard(text)
}

// since is the last start, or when the cron job was made.
func (s *scope) since() time.Time {
	if at := s.CronJob.Status.LastScheduleTime; at != nil {
		return at.Time
	}
	return s.cron.CreationTimestamp.Time
}

// earliest is after when a start that was missed is still made up for.
func (s *scope) earliest() time.Time {
	since := s.since()
	if limit := s.cron.Spec.StartingDeadlineSeconds; limit != nil {
		if bound := s.Now.Add(-time.Duration(*limit) * time.Second); bound.After(since) {
			return bound
		}
	}
	return since
}

// due is the last start between since and now, zero when there is none, and
// about how many there were. The error is for a schedule that never comes.
func (s *scope) due(times cron.Schedule, since time.Time) (last time.Time, missed int64, err error) {
	first := times.Next(since)
	second := times.Next(first)
	switch {
	case s.Now.Before(first):
		return time.Time{}, 0, nil
	case s.Now.Before(second):
		return first, 0, nil
	}
	apart := second.Sub(first).Round(time.Second)
	if apart < time.Second {
		return time.Time{}, 0, errors.New("time difference between two schedules is less than 1 second")
	}
	missed = int64(s.Now.Sub(first)/apart) + 1
	// Near the end first, because there may be very many; one further back,
	// because they need not be equally far apart.
	for at := times.Next(first.Add(time.Duration(missed-2) * apart)); !at.After(s.Now); at = times.Next(at) {
		last = at
	}
	return last, missed, nil
}

// wait says when the next start is.
func (s *scope) wait(times cron.Schedule) {
	since := s.since()
	last, missed, err := s.due(times, since)
	switch {
	case err != nil, last.IsZero() && missed > 0:
		last = s.Now
	case last.IsZero():
		last = since
	}
	if next := times.Next(last); !next.IsZero() {
		s.plan.Again = next.Add(slack).Sub(s.Now)
	}
}

// start plans the job of a start, unless it is too late, already there, or in
// the way of another.
func (s *scope) start(at time.Time) {
	name := s.cron.Name + "-" + strconv.FormatInt(at.Unix()/60, 10)
	active := s.cron.Status.Active
	if limit := s.cron.Spec.StartingDeadlineSeconds; limit != nil && at.Add(time.Duration(*limit)*time.Second).Before(s.Now) {
		s.tell(corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: "+at.UTC().Format(time.RFC1123Z))
		return
	}
	if last := s.cron.Status.LastScheduleTime; last != nil && last.Time.Equal(at) || slices.ContainsFunc(active, func(r corev1.ObjectReference) bool { return r.Name == name }) {
		return
	}
	switch s.cron.Spec.ConcurrencyPolicy {
	case batchv1.ForbidConcurrent:
		if len(active) > 0 {
			s.tell(corev1.EventTypeNormal, "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
			return
		}
	case batchv1.ReplaceConcurrent:
		for _, j := range s.Jobs {
			if slices.ContainsFunc(active, func(r corev1.ObjectReference) bool { return r.UID == j.UID }) {
				s.plan.Delete = append(s.plan.Delete, j)
				s.drop(j.UID)
			}
		}
	}
	s.plan.Create = s.job(name, at)
	s.cron.Status.LastScheduleTime = &metav1.Time{Time: at}
}

// job is the job of a start, whose name tells which, so that it is made once.
func (s *scope) job(name string, at time.Time) *batchv1.Job {
	zone := time.UTC
	if s.cron.Spec.TimeZone != nil {
		if z, err := time.LoadLocation(*s.cron.Spec.TimeZone); err == nil { // it has been looked at
			zone = z
		}
	}
	template := s.cron.Spec.JobTemplate.DeepCopy()
	annotations := maps.Clone(template.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[batchv1.CronJobScheduledTimestampAnnotation] = at.In(zone).Format(time.RFC3339)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: s.cron.Namespace, Labels: template.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.cron, kind)},
		},
		Spec: template.Spec,
	}
}

// forget plans the end of jobs that have ended, the first to start first, beyond
// what the history keeps.
func (s *scope) forget() {
	keep := func(limit *int32, as batchv1.JobConditionType) {
		if limit == nil {
			return
		}
		ended := slices.DeleteFunc(slices.Clone(s.Jobs), func(j *batchv1.Job) bool { return endOf(j) != as || j.DeletionTimestamp != nil })
		slices.SortFunc(ended, firstStarted)
		s.plan.Delete = append(s.plan.Delete, ended[:max(0, len(ended)-int(*limit))]...)
	}
	keep(s.cron.Spec.SuccessfulJobsHistoryLimit, batchv1.JobComplete)
	keep(s.cron.Spec.FailedJobsHistoryLimit, batchv1.JobFailed)
}

// firstStarted orders jobs by their start; those that never did are the last.
func firstStarted(a, b *batchv1.Job) int {
	switch {
	case a.Status.StartTime == nil && b.Status.StartTime == nil:
		return strings.Compare(a.Name, b.Name)
	case a.Status.StartTime == nil:
		return 1
	case b.Status.StartTime == nil:
		return -1
	}
	return cmp.Or(a.Status.StartTime.Compare(b.Status.StartTime.Time), strings.Compare(a.Name, b.Name))
}

// endOf is how the job ended, "" while it has not.
func endOf(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// drop takes a job off the active ones.
func (s *scope) drop(uid types.UID) {
	s.cron.Status.Active = slices.DeleteFunc(slices.Clone(s.cron.Status.Active), func(r corev1.ObjectReference) bool { return r.UID == uid })
}

func (s *scope) tell(of, reason, message string) {
	s.plan.Events = append(s.plan.Events, Event{of, reason, message})
}
