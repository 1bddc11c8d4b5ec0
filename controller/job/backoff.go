package job

import (
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// How long to wait before a pod replaces one that failed: this long after the
// first failure, twice as long after each further one, and never longer.
const (
	firstPause   = 10 * time.Second
	longestPause = 10 * time.Minute
)

// pause is how much of the wait after so many failures is left.
func pause(failures int, last, now time.Time) time.Duration {
	if failures == 0 {
		return 0
	}
	wait := firstPause
	for i := 1; i < failures && wait < longestPause; i++ {
		wait *= 2
	}
	return max(0, min(wait, longestPause)-now.Sub(last))
}

// failuresInARow counts the pods that failed after the last that succeeded, and
// says when the last of them did. It asks the pods that there are, so that it
// is known after a restart, too.
func (s *scope) failuresInARow() (n int, last time.Time) {
	var success time.Time
	for _, p := range s.Pods {
		if at := endOf(p); p.Status.Phase == corev1.PodSucceeded && at.After(success) {
			success = at
		}
	}
	for _, p := range s.Pods {
		if !s.failed(p) {
			continue
		}
		at := endOf(p)
		if !at.After(success) {
			continue
		}
		n++
		if at.After(last) {
			last = at
		}
	}
	return n, last
}

// endOf is when the pod ended: when its last container did, else when it stopped
// being ready, else when its deletion began, else when it was made.
func endOf(p *corev1.Pod) time.Time {
	if at := lastExit(p); !at.IsZero() {
		return at
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	if p.DeletionTimestamp != nil {
		grace := int64(0)
		if p.DeletionGracePeriodSeconds != nil {
			grace = *p.DeletionGracePeriodSeconds
		}
		return p.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	}
	return p.CreationTimestamp.Time
}

// lastExit is when the last of the containers and sidecars ended, zero while
// one runs.
func lastExit(p *corev1.Pod) time.Time {
	sidecars := map[string]bool{}
	for _, c := range p.Spec.InitContainers {
		sidecars[c.Name] = c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	ended := append([]corev1.ContainerStatus{}, p.Status.ContainerStatuses...)
	for _, c := range p.Status.InitContainerStatuses {
		if sidecars[c.Name] {
			ended = append(ended, c)
		}
	}
	var last time.Time
	for _, c := range ended {
		if c.State.Terminated == nil || c.State.Terminated.FinishedAt.IsZero() {
			return time.Time{}
		}
		if at := c.State.Terminated.FinishedAt.Time; at.After(last) {
			last = at
		}
	}
	return last
}

// attempts are how often pods of the index failed before this one, those that
// count and those that do not.
func attempts(p *corev1.Pod) (counted, ignored int32) {
	return number(p.Annotations[batchv1.JobIndexFailureCountAnnotation]), number(p.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation])
}

// number reads an annotation that anybody may have written: 0 if it is none.
func number(text string) int32 {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0
	}
	return int32(n)
}
