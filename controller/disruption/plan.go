package disruption

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/apps/poddisruptionbudget"

	"setpoint.dev/setpoint/controller/pods"
)

// patience is how long a pod that was evicted may be there without being
// deleted. Compat: as upstream.
const patience = 2 * time.Minute

// Scale is how many pods someone who controls pods is to have.
type Scale struct {
	UID      types.UID
	Replicas int32
}

// Observed is a budget and its pods. Scales are those behind the pods, by the
// UID of the controller that a pod names; several may be one.
type Observed struct {
	Budget *policyv1.PodDisruptionBudget
	Pods   []*corev1.Pod
	Scales map[types.UID]Scale
	Now    time.Time
}

// Plan is what to write and to tell. Status is nil when nothing changes. Kept
// are pods that were to go and did not. Again is when to look next.
type Plan struct {
	Status *policyv1.PodDisruptionBudget
	Events []Event
	Kept   []*corev1.Pod
	Again  time.Duration
}

// Event is one about the budget.
type Event struct{ Type, Reason, Message string }

// counted says that a budget counts in shares of the pods that there are to be.
func counted(b *policyv1.PodDisruptionBudget) bool {
	return b.Spec.MaxUnavailable != nil || b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String
}

// plan says what a budget's status should be.
func plan(seen Observed) (Plan, error) {
	var p Plan
	if len(seen.Pods) == 0 {
		p.Events = append(p.Events, Event{corev1.EventTypeNormal, "NoPods", "No matching pods found"})
	}
	expected, desired, unmanaged, err := seen.expect()
	if err != nil {
		return p, err
	}
	if unmanaged {
		p.Events = append(p.Events, Event{
			corev1.EventTypeWarning, "UnmanagedPods", fmt.Sprintf("Pods selected by this PodDisruptionBudget (selector: %v) were found "+
				"to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. "+
				"To account for these pods please set \".spec.minAvailable\" "+
				"field of the PDB to an integer value.", seen.Budget.Spec.Selector),
		})
	}
	disrupted := p.disrupted(seen)
	p.Status = status(seen.Budget, policyv1.PodDisruptionBudgetStatus{
		CurrentHealthy: healthy(seen.Pods, disrupted), DesiredHealthy: desired, ExpectedPods: expected, DisruptedPods: disrupted,
	})
	return p, nil
}

// expect returns how many pods there are to be and how many of them healthy, and
// whether there are pods that nobody controls where that matters.
func (seen Observed) expect() (expected, desired int32, unmanaged bool, err error) {
	spec := seen.Budget.Spec
	if !counted(seen.Budget) {
		if spec.MinAvailable != nil {
			return int32(len(seen.Pods)), spec.MinAvailable.IntVal, false, nil
		}
		return 0, 0, false, nil
	}
	by := map[types.UID]int32{}
	for _, pod := range seen.Pods {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil {
			unmanaged = true
			continue
		}
		s, known := seen.Scales[ref.UID]
		if !known {
			return 0, 0, unmanaged, fmt.Errorf("found no controllers for pod %q", pod.Name)
		}
		by[s.UID] = s.Replicas
	}
	for _, n := range by {
		expected += n
	}
	share := spec.MinAvailable
	if spec.MaxUnavailable != nil {
		share = spec.MaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(share, int(expected), true)
	if err != nil {
		return 0, 0, unmanaged, err
	}
	desired = int32(n)
	if spec.MaxUnavailable != nil {
		desired = max(0, expected-int32(n))
	}
	return expected, desired, unmanaged, nil
}

// disrupted are the pods that have been evicted and are not being deleted yet,
// and when. What should have gone by now is put with what is kept.
func (p *Plan) disrupted(seen Observed) map[string]metav1.Time {
	still := map[string]metav1.Time{}
	for _, pod := range seen.Pods {
		at, was := seen.Budget.Status.DisruptedPods[pod.Name]
		if !was || pod.DeletionTimestamp != nil {
			continue
		}
		left := at.Add(patience).Sub(seen.Now)
		if left < 0 {
			p.Kept = append(p.Kept, pod)
			continue
		}
		still[pod.Name] = at
		if p.Again == 0 || left < p.Again {
			p.Again = max(left, time.Millisecond)
		}
	}
	return still
}

// healthy counts pods that are ready and not about to go.
func healthy(all []*corev1.Pod, disrupted map[string]metav1.Time) int32 {
	n := int32(0)
	for _, p := range all {
		if _, goes := disrupted[p.Name]; !goes && p.DeletionTimestamp == nil && pods.Ready(p) {
			n++
		}
	}
	return n
}

// status is the budget with another status; nil when it has that. Compat: one
// that expects no pods allows nothing, so that its first pods are safe.
func status(b *policyv1.PodDisruptionBudget, s policyv1.PodDisruptionBudgetStatus) *policyv1.PodDisruptionBudget {
	s.ObservedGeneration, s.Conditions = b.Generation, b.Status.Conditions
	if s.ExpectedPods > 0 {
		s.DisruptionsAllowed = max(0, s.CurrentHealthy-s.DesiredHealthy)
	}
	if apiequality.Semantic.DeepEqual(s, b.Status) && poddisruptionbudget.ConditionsAreUpToDate(b) {
		return nil
	}
	next := b.DeepCopy()
	next.Status = *s.DeepCopy()
	poddisruptionbudget.UpdateDisruptionAllowedCondition(next)
	return next
}

// failed is the budget with a status that allows nothing, and says why; nil when
// it has that.
func failed(b *policyv1.PodDisruptionBudget, why error) *policyv1.PodDisruptionBudget {
	next := b.DeepCopy()
	next.Status.DisruptionsAllowed = 0
	changed := meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: why.Error(), ObservedGeneration: next.Status.ObservedGeneration,
	})
	if !changed && b.Status.DisruptionsAllowed == 0 {
		return nil
	}
	return next
}
