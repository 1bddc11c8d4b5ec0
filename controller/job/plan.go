package job

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/pods"
)

// Bounds of one plan, so that a large job does not keep small ones waiting and
// its status stays small.
const (
	maxPods      = 500
	maxUncounted = 500
)

// Observed is what a job is decided by.
type Observed struct {
	Job *batchv1.Job
	// Pods are those that the job controls.
	Pods []*corev1.Pod
	Now  time.Time
}

// Plan is what to write, in this order. A pod is counted in two steps that can
// be repeated: its UID goes into the status, then its finalizer comes off. Once
// it is seen without, it is a number.
type Plan struct {
	Delete []*corev1.Pod
	Create []*corev1.Pod
	// Status is the job with another status; Active counts on Create and Delete.
	Status *batchv1.Job
	// Release are pods whose finalizer can come off once Status is written.
	Release []*corev1.Pod
	Events  []Event
	// Again is when to look again though nothing has changed; 0 means never.
	Again time.Duration
}

// Event is told about the job.
type Event struct {
	Type, Reason, Message string
}

// scope is one decision on its way.
type scope struct {
	Observed
	job         *batchv1.Job // a copy that collects the status
	active      []*corev1.Pod
	terminating int32
	succeeded   int32
	failures    int32
	done        indexes // of an indexed job: those that succeeded
	lost        indexes // and those that failed, when each has its own limit
	held        map[int]*corev1.Pod
	outcome     *batchv1.JobCondition // how the job ends, when it does
	plan        Plan
}

// plan says what to write so that the job has the pods that it still needs, and
// tells how far it is.
func plan(seen Observed) Plan {
	s := &scope{Observed: seen, job: seen.Job.DeepCopy()}
	if isFinished(seen.Job) {
		s.plan.Release = slices.DeleteFunc(slices.Clone(seen.Pods), func(p *corev1.Pod) bool { return !tracked(p) })
		return s.plan
	}
	s.look()
	s.start()
	s.decide()
	s.act()
	s.count()
	return s.finish()
}

// look sorts the pods.
func (s *scope) look() {
	if s.job.Status.UncountedTerminatedPods == nil {
		s.job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	uncounted := s.job.Status.UncountedTerminatedPods
	for _, p := range s.Pods {
		if pods.Active(p) {
			s.active = append(s.active, p)
		} else if pods.Terminating(p) {
			s.terminating++
		}
	}
	s.succeeded = s.job.Status.Succeeded + int32(len(uncounted.Succeeded))
	s.failures = s.job.Status.Failed + int32(len(uncounted.Failed))
	for _, p := range s.uncounted() {
		switch {
		case p.Status.Phase == corev1.PodSucceeded && !slices.Contains(uncounted.Succeeded, p.UID):
			s.succeeded++
		case s.failed(p) && !slices.Contains(uncounted.Failed, p.UID) && judge(s.job.Spec.PodFailurePolicy, p).counts():
			s.failures++
		}
	}
	if s.indexed() {
		s.lookAtIndexes()
	}
}

func (s *scope) lookAtIndexes() {
	n := s.completions()
	s.done = parseIndexes(s.job.Status.CompletedIndexes, n)
	if s.job.Status.FailedIndexes != nil {
		s.lost = parseIndexes(*s.job.Status.FailedIndexes, n)
	}
	for _, p := range s.uncounted() {
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
			s.done = s.done.with(indexOf(p))
		case s.perIndex() && s.indexFailed(p):
			s.lost = s.lost.with(indexOf(p))
		}
	}
	s.succeeded = int32(s.done.total())
	if s.perIndex() {
		s.hold()
	}
}

// indexFailed says that the pod's failure is the last that its index may have.
func (s *scope) indexFailed(p *corev1.Pod) bool {
	if !s.failed(p) {
		return false
	}
	v := judge(s.job.Spec.PodFailurePolicy, p)
	counted, _ := attempts(p)
	return v.action == batchv1.PodFailurePolicyActionFailIndex || v.counts() && counted >= *s.job.Spec.BackoffLimitPerIndex
}

// hold finds, for each index that waits for its next pod, the last that failed:
// it stays until then, because it knows how often the index has failed.
func (s *scope) hold() {
	s.held = map[int]*corev1.Pod{}
	busy := s.indexesOf(s.active)
	for _, p := range s.uncounted() {
		i := indexOf(p)
		if !s.failed(p) || s.done.has(i) || s.lost.has(i) || busy.has(i) {
			continue
		}
		if have := s.held[i]; have == nil || later(p, have) {
			s.held[i] = p
		}
	}
}

// later says that p is the later attempt at an index.
func later(p, than *corev1.Pod) bool {
	pc, pi := attempts(p)
	tc, ti := attempts(than)
	return pc+pi >= tc+ti && !endOf(p).Before(endOf(than))
}

func (s *scope) indexesOf(pods []*corev1.Pod) indexes {
	var all indexes
	for _, p := range pods {
		if i := indexOf(p); i != noIndex {
			all = append(all, span{i, i})
		}
	}
	return all.normal()
}

// uncounted are the pods with the finalizer, of an indexed job those that have an
// index that it asks for.
func (s *scope) uncounted() []*corev1.Pod {
	var some []*corev1.Pod
	for _, p := range s.Pods {
		if tracked(p) && s.belongs(p) {
			some = append(some, p)
		}
	}
	return some
}

// belongs says that the pod has an index, where it needs one.
func (s *scope) belongs(p *corev1.Pod) bool {
	i := indexOf(p)
	return !s.indexed() || i != noIndex && i < s.completions()
}

// start notes when a job that is not suspended began.
func (s *scope) start() {
	if s.job.Status.StartTime == nil && !s.suspended() {
		s.job.Status.StartTime = new(s.now())
	}
}

// decide finds out whether and how the job ends. What was decided before stays;
// failure comes before success.
func (s *scope) decide() {
	conditions := s.job.Status.Conditions
	switch {
	case has(conditions, batchv1.JobSuccessCriteriaMet):
		s.outcome = find(conditions, batchv1.JobSuccessCriteriaMet)
	case has(conditions, batchv1.JobFailureTarget):
		s.outcome = find(conditions, batchv1.JobFailureTarget)
	default:
		s.decideFailure()
		if s.outcome == nil && s.indexed() {
			if message, ok := succeedsBy(s.job.Spec.SuccessPolicy, s.completions(), s.done); ok {
				s.end(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message)
			}
		}
	}
}

func (s *scope) decideFailure() {
	for _, p := range s.Pods {
		if !s.failed(p) {
			continue
		}
		if v := judge(s.job.Spec.PodFailurePolicy, p); v.action == batchv1.PodFailurePolicyActionFailJob {
			s.end(batchv1.JobFailureTarget, batchv1.JobReasonPodFailurePolicy, v.message)
			return
		}
	}
	limit := int32(6) // the API's default
	if s.job.Spec.BackoffLimit != nil {
		limit = *s.job.Spec.BackoffLimit
	}
	switch {
	case s.failures > limit || s.restartedTooOften(limit):
		s.end(batchv1.JobFailureTarget, batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	case s.timeLeft() == 0:
		s.end(batchv1.JobFailureTarget, batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	case s.timeLeft() > 0:
		s.again(s.timeLeft())
	}
	if s.outcome != nil || !s.perIndex() {
		return
	}
	most := s.job.Spec.MaxFailedIndexes
	switch lost := s.lost.total(); {
	case most != nil && lost > int(*most):
		s.end(batchv1.JobFailureTarget, batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
	case lost > 0 && lost+s.done.total() >= s.completions():
		s.end(batchv1.JobFailureTarget, batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	}
}

func (s *scope) end(as batchv1.JobConditionType, reason, message string) {
	s.outcome = &batchv1.JobCondition{
		Type: as, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastProbeTime: s.now(), LastTransitionTime: s.now(),
	}
}

// restartedTooOften says that the containers of pods that restart in place did
// so more often than the limit.
func (s *scope) restartedTooOften(limit int32) bool {
	if s.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	n := int32(0)
	for _, p := range s.Pods {
		if p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodPending {
			for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
				n += c.RestartCount
			}
		}
	}
	return n > 0 && n >= limit
}

// timeLeft is what is left of the deadline; less than 0 when there is none.
func (s *scope) timeLeft() time.Duration {
	if s.job.Spec.ActiveDeadlineSeconds == nil || s.job.Status.StartTime == nil || s.suspended() {
		return -1
	}
	return max(0, time.Duration(*s.job.Spec.ActiveDeadlineSeconds)*time.Second-s.Now.Sub(s.job.Status.StartTime.Time))
}

// again asks for another look, the earliest that anybody asks for.
func (s *scope) again(after time.Duration) {
	if s.plan.Again == 0 || after < s.plan.Again {
		s.plan.Again = after
	}
}

// finish puts the plan together.
func (s *scope) finish() Plan {
	if !apiequality.Semantic.DeepEqual(s.Job.Status, s.job.Status) {
		s.plan.Status = s.job
	}
	return s.plan
}

// failed says that the pod has, or has been deleted before it could end.
func (s *scope) failed(p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodFailed {
		return true
	}
	return !s.waitsForEnd() && p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded
}

// waitsForEnd says that a pod is replaced only when it has really ended.
func (s *scope) waitsForEnd() bool {
	policy := s.job.Spec.PodReplacementPolicy
	return policy != nil && *policy == batchv1.Failed || s.job.Spec.PodFailurePolicy != nil
}

func (s *scope) indexed() bool {
	return s.job.Spec.CompletionMode != nil && *s.job.Spec.CompletionMode == batchv1.IndexedCompletion
}

// perIndex says that each index has its own number of failures.
func (s *scope) perIndex() bool { return s.indexed() && s.job.Spec.BackoffLimitPerIndex != nil }

func (s *scope) suspended() bool { return s.job.Spec.Suspend != nil && *s.job.Spec.Suspend }

// completions is how many successes the job asks for, 0 when it does not say.
func (s *scope) completions() int {
	if s.job.Spec.Completions == nil {
		return 0
	}
	return int(*s.job.Spec.Completions)
}

func (s *scope) now() metav1.Time { return metav1.NewTime(s.Now.Truncate(time.Second)) }

// tracked says that the pod has not been counted yet.
func tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) }

// isFinished says that the job has ended, and that its pods have.
func isFinished(j *batchv1.Job) bool {
	return has(j.Status.Conditions, batchv1.JobComplete) || has(j.Status.Conditions, batchv1.JobFailed)
}

func find(conditions []batchv1.JobCondition, of batchv1.JobConditionType) *batchv1.JobCondition {
	for i, c := range conditions {
		if c.Type == of {
			return &conditions[i]
		}
	}
	return nil
}

func has(conditions []batchv1.JobCondition, of batchv1.JobConditionType) bool {
	c := find(conditions, of)
	return c != nil && c.Status == corev1.ConditionTrue
}
