package replicaset

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"setpoint.dev/setpoint/controller/pods"
)

// burst bounds how many pods one round creates or deletes. Compat: as upstream.
const burst = 500

// Plan is what a round does.
type Plan struct {
	Create int
	Delete []*corev1.Pod
}

// plan says how many pods to create, or which to delete, so that set has its
// replicas. active are the set's pods; related are those of the sets beside it,
// with whose pods the set's share nodes.
func plan(set *appsv1.ReplicaSet, active, related []*corev1.Pod, now time.Time) Plan {
	missing := int(replicas(set)) - len(active)
	if missing >= 0 {
		return Plan{Create: min(missing, burst)}
	}
	excess := min(-missing, burst)
	if excess < len(active) {
		onNode := map[string]int{}
		for _, p := range related {
			if pods.Active(p) {
				onNode[p.Spec.NodeName]++
			}
		}
		active = slices.Clone(active)
		pods.LeastFirst(active, func(p *corev1.Pod) int { return onNode[p.Spec.NodeName] }, now)
	}
	return Plan{Delete: active[:excess]}
}

func replicas(set *appsv1.ReplicaSet) int32 {
	if set.Spec.Replicas == nil {
		return 1
	}
	return *set.Spec.Replicas
}

// status is what set's status should say. failure is why its pods could not be
// created or deleted, if so.
func status(set *appsv1.ReplicaSet, active, going []*corev1.Pod, failure error, now time.Time) appsv1.ReplicaSetStatus {
	s := *set.Status.DeepCopy()
	s.ObservedGeneration = set.Generation
	s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas = int32(len(active)), 0, 0, 0
	terminating := int32(len(going))
	s.TerminatingReplicas = &terminating
	template := labels.SelectorFromValidatedSet(set.Spec.Template.Labels)
	for _, p := range active {
		if template.Matches(labels.Set(p.Labels)) {
			s.FullyLabeledReplicas++
		}
		if pods.Ready(p) {
			s.ReadyReplicas++
		}
		if pods.Available(p, set.Spec.MinReadySeconds, now) {
			s.AvailableReplicas++
		}
	}
	s.Conditions = conditions(set, s.Conditions, len(active), failure, now)
	return s
}

// conditions are those of before with the one that says whether pods could be
// created and deleted. Compat: it keeps its first message.
func conditions(set *appsv1.ReplicaSet, before []appsv1.ReplicaSetCondition, active int, failure error, now time.Time) []appsv1.ReplicaSetCondition {
	failed := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	switch had := slices.ContainsFunc(before, failed); {
	case failure == nil:
		return slices.DeleteFunc(before, failed)
	case had:
		return before
	}
	c := appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)), Message: failure.Error(),
	}
	switch want := int(replicas(set)); {
	case active < want:
		c.Reason = "FailedCreate"
	case active > want:
		c.Reason = "FailedDelete"
	}
	return append(before, c)
}

// nextCheck is when the next pod that is ready becomes available; 0 for never.
func nextCheck(set *appsv1.ReplicaSet, active []*corev1.Pod, now time.Time) time.Duration {
	var next time.Duration
	for _, p := range active {
		if in := pods.AvailableIn(p, set.Spec.MinReadySeconds, now); in > 0 && (next == 0 || in < next) {
			next = in
		}
	}
	return next
}
