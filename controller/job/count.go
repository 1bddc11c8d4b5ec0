package job

import (
	"cmp"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/controller/pods"
)

// count brings the status up to date, says which pods need not be kept for it any
// more, and ends the job when there is nothing left to wait for.
func (s *scope) count() {
	status := &s.job.Status
	status.Active = int32(s.running())
	going := s.terminating + int32(len(s.plan.Delete))
	status.Terminating = &going
	ready := int32(0)
	for _, p := range s.active {
		if pods.Ready(p) && !slices.Contains(s.plan.Delete, p) {
			ready++
		}
	}
	status.Ready = &ready
	s.settle()
	more := s.register()
	if s.indexed() {
		status.Succeeded = int32(s.done.total())
		status.CompletedIndexes = s.done.String()
		status.FailedIndexes = nil
		if s.perIndex() {
			status.FailedIndexes = new(s.lost.String())
		}
	}
	if s.outcome == nil {
		return
	}
	if find(status.Conditions, s.outcome.Type) == nil {
		s.set(*s.outcome)
	}
	uncounted := status.UncountedTerminatedPods
	if !more && len(s.plan.Release) == 0 && len(uncounted.Succeeded)+len(uncounted.Failed) == 0 && going == 0 {
		s.conclude()
	}
}

// settle turns those of the uncounted pods into numbers that have lost their
// finalizer.
func (s *scope) settle() {
	status := &s.job.Status
	kept := map[types.UID]bool{}
	for _, p := range s.Pods {
		if tracked(p) {
			kept[p.UID] = true
		}
	}
	drop := func(uids []types.UID, number *int32) []types.UID {
		left := slices.DeleteFunc(slices.Clone(uids), func(u types.UID) bool { return !kept[u] })
		*number += int32(len(uids) - len(left))
		return left
	}
	u := status.UncountedTerminatedPods
	u.Succeeded, u.Failed = drop(u.Succeeded, &status.Succeeded), drop(u.Failed, &status.Failed)
}

// register enters pods that have ended into the status and releases them. It
// says whether there are more than fit.
func (s *scope) register() (more bool) {
	u := s.job.Status.UncountedTerminatedPods
	pods := slices.Clone(s.Pods)
	if s.indexed() {
		slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(indexOf(a), indexOf(b)) })
	}
	before := parseIndexes(s.job.Status.CompletedIndexes, s.completions())
	added := 0
	for _, p := range pods {
		if !tracked(p) || !s.countable(p) {
			continue
		}
		if added+len(u.Succeeded)+len(u.Failed) >= maxUncounted {
			return true
		}
		s.plan.Release = append(s.plan.Release, p)
		switch {
		case p.Status.Phase == corev1.PodSucceeded && !slices.Contains(u.Failed, p.UID):
			if s.indexed() {
				if s.belongs(p) && !before.has(indexOf(p)) {
					added++
				}
			} else if !slices.Contains(u.Succeeded, p.UID) {
				u.Succeeded = append(u.Succeeded, p.UID)
			}
		case s.failed(p) || s.outcome != nil && s.outcome.Type == batchv1.JobFailureTarget:
			// When a job has failed, so has what still runs.
			if s.belongs(p) && !slices.Contains(u.Failed, p.UID) && judge(s.job.Spec.PodFailurePolicy, p).counts() {
				u.Failed = append(u.Failed, p.UID)
			}
		}
	}
	return false
}

// countable says that the pod's end is known, and that nobody needs the pod.
func (s *scope) countable(p *corev1.Pod) bool {
	if s.job.DeletionTimestamp != nil || s.outcome != nil || p.Status.Phase == corev1.PodSucceeded {
		return true
	}
	return s.failed(p) && s.held[indexOf(p)] != p
}

// conclude ends the job.
func (s *scope) conclude() {
	last := *s.outcome
	last.LastProbeTime, last.LastTransitionTime = s.now(), s.now()
	if s.outcome.Type == batchv1.JobFailureTarget {
		last.Type = batchv1.JobFailed
		s.tell(corev1.EventTypeWarning, last.Reason, last.Message)
	} else {
		last.Type = batchv1.JobComplete
		s.job.Status.CompletionTime = new(s.now())
		if s.job.Spec.Completions != nil && int(s.job.Status.Succeeded) > s.completions() {
			s.tell(corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
		}
		s.tell(corev1.EventTypeNormal, "Completed", "Job completed")
	}
	s.set(last)
}
