package job

import (
	"cmp"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/pods"
)

// act plans pods to make and to remove, and notes what that says of the job.
func (s *scope) act() {
	if s.outcome != nil {
		s.remove(s.active)
		return
	}
	lives := s.job.DeletionTimestamp == nil
	if lives {
		s.manage()
	}
	switch {
	case s.completes() && s.running() == 0:
		s.end(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	case !lives:
	case s.suspended():
		if s.note(corev1.ConditionTrue, "JobSuspended", "Job suspended") {
			s.tell(corev1.EventTypeNormal, "Suspended", "Job suspended")
			s.job.Status.StartTime = nil
		}
	default:
		if s.note(corev1.ConditionFalse, "JobResumed", "Job resumed") {
			s.tell(corev1.EventTypeNormal, "Resumed", "Job resumed")
			s.job.Status.StartTime = new(s.now()) // its deadline counts from here
		}
	}
}

// completes says that as many pods have succeeded as the job asks for: any, when
// it does not say.
func (s *scope) completes() bool {
	if s.job.Spec.Completions == nil {
		return s.succeeded > 0
	}
	return int(s.succeeded) >= s.completions()
}

// running is how many pods there will be.
func (s *scope) running() int { return len(s.active) - len(s.plan.Delete) + len(s.plan.Create) }

// manage removes pods that are too many, or else makes those that are missing.
func (s *scope) manage() {
	if s.suspended() {
		s.remove(s.active)
		return
	}
	wanted := s.wanted()
	if surplus := s.surplus(len(s.active) - wanted); len(surplus) > 0 {
		s.remove(surplus[:min(len(surplus), maxPods)])
		return
	}
	missing := wanted - len(s.active)
	if s.waitsForEnd() {
		missing -= int(s.terminating)
	}
	if missing <= 0 {
		return
	}
	if !s.perIndex() {
		n, last := s.failuresInARow()
		if wait := pause(n, last, s.Now); wait > 0 {
			s.again(wait)
			return
		}
	}
	s.make(min(missing, maxPods))
}

// wanted is how many pods should run now.
func (s *scope) wanted() int {
	parallelism := 1
	if s.job.Spec.Parallelism != nil {
		parallelism = int(*s.job.Spec.Parallelism)
	}
	if s.job.Spec.Completions == nil {
		if s.succeeded > 0 {
			return len(s.active) // nothing new starts after the first success
		}
		return parallelism
	}
	return max(0, min(s.completions()-int(s.succeeded), parallelism))
}

// surplus are pods that must go, at least so many: of an indexed job those
// without an index of it and all but one of each index, then those that have
// come least far.
func (s *scope) surplus(least int) []*corev1.Pod {
	var gone []*corev1.Pod
	left := slices.Clone(s.active)
	pods.LeastFirst(left, func(*corev1.Pod) int { return 0 }, s.Now)
	if s.indexed() {
		// The one that has come farthest is the last.
		kept := map[int]bool{}
		var ones []*corev1.Pod
		for _, p := range slices.Backward(left) {
			if i := indexOf(p); !s.belongs(p) || kept[i] {
				gone = append(gone, p)
			} else {
				kept[i] = true
				ones = append(ones, p)
			}
		}
		slices.Reverse(ones)
		slices.SortStableFunc(gone, func(a, b *corev1.Pod) int { return cmp.Compare(indexOf(a), indexOf(b)) })
		left = ones
	}
	if more := least - len(gone); more > 0 {
		gone = append(gone, left[:min(more, len(left))]...)
	}
	return gone
}

func (s *scope) remove(pods []*corev1.Pod) {
	s.plan.Delete = append(s.plan.Delete, pods...)
}

// make plans n pods, of an indexed job for the first indexes that lack one.
func (s *scope) make(n int) {
	if !s.indexed() {
		for range n {
			s.plan.Create = append(s.plan.Create, s.pod())
		}
		return
	}
	taken := s.done.and(s.lost).and(s.indexesOf(s.active))
	if s.waitsForEnd() {
		taken = taken.and(s.indexesOf(slices.DeleteFunc(slices.Clone(s.Pods), func(p *corev1.Pod) bool { return !pods.Terminating(p) })))
	}
	for _, i := range taken.missing(n, s.completions()) {
		if last := s.held[i]; last != nil {
			counted, ignored := attempts(last)
			if wait := pause(int(counted+ignored)+1, endOf(last), s.Now); wait > 0 {
				s.again(wait)
				continue
			}
		}
		s.plan.Create = append(s.plan.Create, s.podOf(i))
	}
}

// pod is a new pod of the job.
func (s *scope) pod() *corev1.Pod {
	p := pods.FromTemplate(&s.job.Spec.Template, s.job, metav1.NewControllerRef(s.job, kind))
	if !tracked(p) {
		p.Finalizers = append(p.Finalizers, batchv1.JobTrackingFinalizer)
	}
	return p
}

// maxPrefix is how long the part of a name before its random end can be.
const maxPrefix = 58

// podOf is a new pod for an index, which it knows as annotation, label, host
// name and variable.
func (s *scope) podOf(index int) *corev1.Pod {
	p, text := s.pod(), strconv.Itoa(index)
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, batchv1.JobCompletionIndexAnnotation, text)
	metav1.SetMetaDataLabel(&p.ObjectMeta, batchv1.JobCompletionIndexAnnotation, text)
	p.Spec.Hostname = s.job.Name + "-" + text
	end := "-" + text + "-"
	p.GenerateName = s.job.Name[:min(len(s.job.Name), maxPrefix-len(end))] + end
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			tellIndex(&containers[i])
		}
	}
	if s.perIndex() {
		counted, ignored := s.attemptsBefore(index)
		p.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(counted))
		if ignored > 0 {
			p.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(int(ignored))
		}
	}
	return p
}

func (s *scope) attemptsBefore(index int) (counted, ignored int32) {
	last := s.held[index]
	if last == nil {
		return 0, 0
	}
	counted, ignored = attempts(last)
	if judge(s.job.Spec.PodFailurePolicy, last).counts() {
		return counted + 1, ignored
	}
	return counted, ignored + 1
}

const indexVariable = "JOB_COMPLETION_INDEX"

// tellIndex gives the container the pod's index, unless it has a variable of
// that name.
func tellIndex(c *corev1.Container) {
	if slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == indexVariable }) {
		return
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: indexVariable, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation + "']"},
	}})
}

// note says in the status whether the job is suspended, and whether that is new.
func (s *scope) note(status corev1.ConditionStatus, reason, message string) bool {
	have := find(s.job.Status.Conditions, batchv1.JobSuspended)
	if have == nil && status == corev1.ConditionFalse || have != nil && have.Status == status && have.Reason == reason && have.Message == message {
		return false
	}
	s.set(batchv1.JobCondition{Type: batchv1.JobSuspended, Status: status, Reason: reason, Message: message, LastProbeTime: s.now(), LastTransitionTime: s.now()})
	return true
}

// set puts a condition in the place of that of its type.
func (s *scope) set(c batchv1.JobCondition) {
	if have := find(s.job.Status.Conditions, c.Type); have != nil {
		*have = c
	} else {
		s.job.Status.Conditions = append(s.job.Status.Conditions, c)
	}
}

func (s *scope) tell(of, reason, message string) {
	s.plan.Events = append(s.plan.Events, Event{of, reason, message})
}
