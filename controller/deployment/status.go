package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Reasons of the Progressing and Available conditions, as clients know them.
const (
	reasonCreated     = "NewReplicaSetCreated"
	reasonFound       = "FoundNewReplicaSet"
	reasonFailed      = "ReplicaSetCreateError"
	reasonUpdated     = "ReplicaSetUpdated"
	reasonDone        = "NewReplicaSetAvailable"
	reasonLate        = "ProgressDeadlineExceeded"
	reasonPaused      = "DeploymentPaused"
	reasonResumed     = "DeploymentResumed"
	reasonAvailable   = "MinimumReplicasAvailable"
	reasonUnavailable = "MinimumReplicasUnavailable"
)

// count says in the status how many pods there are, and whether they are enough.
func (s *scope) count() {
	all, before := s.all(), s.deployment.Status
	status := appsv1.DeploymentStatus{
		ObservedGeneration:  s.deployment.Generation,
		Replicas:            sum(all, actual),
		ReadyReplicas:       sum(all, func(set *appsv1.ReplicaSet) int32 { return set.Status.ReadyReplicas }),
		AvailableReplicas:   sum(all, func(set *appsv1.ReplicaSet) int32 { return set.Status.AvailableReplicas }),
		TerminatingReplicas: terminating(all),
		CollisionCount:      before.CollisionCount,
		Conditions:          before.Conditions,
	}
	if s.current != nil {
		status.UpdatedReplicas = actual(s.current)
	}
	status.UnavailableReplicas = max(0, sum(all, replicas)-status.AvailableReplicas)
	s.deployment.Status = status
	if status.AvailableReplicas >= s.least() {
		s.setCondition(appsv1.DeploymentAvailable, corev1.ConditionTrue, reasonAvailable, "Deployment has minimum availability.")
	} else {
		s.setCondition(appsv1.DeploymentAvailable, corev1.ConditionFalse, reasonUnavailable, "Deployment does not have minimum availability.")
	}
}

func actual(set *appsv1.ReplicaSet) int32 { return set.Status.Replicas }

// terminating is how many pods are on their way out, nil when a set does not say.
func terminating(sets []*appsv1.ReplicaSet) *int32 {
	total := int32(0)
	for _, set := range sets {
		switch n := set.Status.TerminatingReplicas; {
		case n != nil:
			total += *n
		case set.Status.ObservedGeneration != 0:
			return nil
		}
	}
	return &total
}

// progress says in the status how far the rollout is.
func (s *scope) progress() {
	// What was known before this plan, but for a set that it creates.
	before, known := s.Deployment.Status, s.condition(appsv1.DeploymentProgressing)
	s.count()
	status := &s.deployment.Status
	if !hasDeadline(s.deployment) {
		s.dropCondition(appsv1.DeploymentProgressing)
	}
	over := known != nil && known.Reason == reasonDone && status.Replicas == status.UpdatedReplicas
	if hasDeadline(s.deployment) && !over {
		switch {
		case complete(s.deployment, status):
			s.setProgress(corev1.ConditionTrue, reasonDone, s.subject()+" has successfully progressed.")
		case advanced(&before, status):
			if known != nil {
				// Each sign of progress counts from now on, also one like the last.
				s.dropCondition(appsv1.DeploymentProgressing)
			}
			s.setProgress(corev1.ConditionTrue, reasonUpdated, s.subject()+" is progressing.")
			if known != nil && known.Status == corev1.ConditionTrue {
				s.deployment.Status.Conditions[len(s.deployment.Status.Conditions)-1].LastTransitionTime = known.LastTransitionTime
			}
		case s.late():
			s.setProgress(corev1.ConditionFalse, reasonLate, s.subject()+" has timed out progressing.")
		}
	}
	s.dropOrSetFailure()
}

// subject is what makes progress.
func (s *scope) subject() string {
	if s.current != nil {
		return fmt.Sprintf("ReplicaSet %q", s.current.Name)
	}
	return fmt.Sprintf("Deployment %q", s.deployment.Name)
}

// dropOrSetFailure passes on why a set, the current one before others, could not
// make pods.
func (s *scope) dropOrSetFailure() {
	sets := s.old
	if s.current != nil {
		sets = append([]*appsv1.ReplicaSet{s.current}, s.old...)
	}
	for _, set := range sets {
		for _, c := range set.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				s.put(appsv1.DeploymentCondition{
					Type: appsv1.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
					LastUpdateTime: c.LastTransitionTime, LastTransitionTime: c.LastTransitionTime,
				})
				return
			}
		}
	}
	s.dropCondition(appsv1.DeploymentReplicaFailure)
}

// complete says that all pods are of the current template and available.
func complete(d *appsv1.Deployment, status *appsv1.DeploymentStatus) bool {
	wanted := valueOf(d.Spec.Replicas)
	return status.UpdatedReplicas == wanted && status.Replicas == wanted && status.AvailableReplicas == wanted && status.ObservedGeneration >= d.Generation
}

// advanced says that the rollout has come further.
func advanced(before, now *appsv1.DeploymentStatus) bool {
	return now.UpdatedReplicas > before.UpdatedReplicas ||
		now.Replicas-now.UpdatedReplicas < before.Replicas-before.UpdatedReplicas ||
		now.ReadyReplicas > before.ReadyReplicas || now.AvailableReplicas > before.AvailableReplicas
}

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != math.MaxInt32
}

// late says that nothing has moved for longer than the deadline.
func (s *scope) late() bool {
	known := s.condition(appsv1.DeploymentProgressing)
	if known == nil || known.Reason == reasonDone {
		return false
	}
	return known.Reason == reasonLate || s.deadline(known).Before(s.Now)
}

func (s *scope) deadline(since *appsv1.DeploymentCondition) time.Time {
	return since.LastUpdateTime.Add(time.Duration(*s.deployment.Spec.ProgressDeadlineSeconds) * time.Second)
}

// stuckAfter is when a rollout that does not move is late; 0 when it cannot be.
func (s *scope) stuckAfter() time.Duration {
	known := s.condition(appsv1.DeploymentProgressing)
	if s.deployment.Spec.Paused || !hasDeadline(s.deployment) || known == nil || known.Reason == reasonLate || known.Reason == reasonDone || complete(s.deployment, &s.deployment.Status) {
		return 0
	}
	// One second more: the deadline is over when it lies in the past, and the API
	// keeps whole seconds.
	return max(0, s.deadline(known).Sub(s.Now)) + time.Second
}

// notePause says that a deployment pauses, or goes on: time that it was paused
// does not count against the deadline.
func (s *scope) notePause() {
	known := s.condition(appsv1.DeploymentProgressing)
	if !hasDeadline(s.deployment) || known != nil && known.Reason == reasonLate {
		return
	}
	paused := known != nil && known.Reason == reasonPaused
	switch {
	case s.deployment.Spec.Paused && !paused:
		s.setProgress(corev1.ConditionUnknown, reasonPaused, "Deployment is paused")
	case !s.deployment.Spec.Paused && paused:
		s.setProgress(corev1.ConditionUnknown, reasonResumed, "Deployment is resumed")
	}
}

// failedToCreate is the deployment with the reason why it has no new set.
func failedToCreate(seen Observed, set string, err error) (d *appsv1.Deployment, told Event) {
	message := fmt.Sprintf("Failed to create new replica set %q: %v", set, err)
	s := &scope{Observed: seen, deployment: seen.Deployment.DeepCopy()}
	if hasDeadline(s.deployment) {
		s.setProgress(corev1.ConditionFalse, reasonFailed, message)
	}
	return s.deployment, Event{corev1.EventTypeWarning, reasonFailed, message}
}

func (s *scope) condition(of appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i, c := range s.deployment.Status.Conditions {
		if c.Type == of {
			return &s.deployment.Status.Conditions[i]
		}
	}
	return nil
}

func (s *scope) setProgress(status corev1.ConditionStatus, reason, message string) {
	s.setCondition(appsv1.DeploymentProgressing, status, reason, message)
}

func (s *scope) setCondition(of appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) {
	s.put(appsv1.DeploymentCondition{
		Type: of, Status: status, Reason: reason, Message: message, LastUpdateTime: s.now(), LastTransitionTime: s.now(),
	})
}

// put sets a condition, unless it says the same already. Compat: what says
// something new comes last.
func (s *scope) put(c appsv1.DeploymentCondition) {
	if have := s.condition(c.Type); have != nil && have.Status == c.Status {
		if have.Reason == c.Reason {
			return
		}
		c.LastTransitionTime = have.LastTransitionTime
	}
	s.dropCondition(c.Type)
	s.deployment.Status.Conditions = append(s.deployment.Status.Conditions, c)
}

func (s *scope) dropCondition(of appsv1.DeploymentConditionType) {
	s.deployment.Status.Conditions = slices.DeleteFunc(slices.Clone(s.deployment.Status.Conditions), func(c appsv1.DeploymentCondition) bool { return c.Type == of })
}
