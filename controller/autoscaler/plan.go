package autoscaler

import (
	"errors"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Observed is an autoscaler and its target. Failure says why the target's scale
// is not known. Measured is what is known of each of its metrics, nil when it
// does not matter; Ambiguous names all autoscalers of the pods when there are
// several.
type Observed struct {
	Autoscaler *autoscalingv2.HorizontalPodAutoscaler
	Scale      *autoscalingv1.Scale
	Failure    error
	Selector   error // why the target's selector cannot be used
	Pods       []*corev1.Pod
	Ambiguous  []string
	Measured   []Measured
	History    History
	Now        time.Time
}

// Plan is what to write and tell. Next is the autoscaler with its status. With a
// Reason the target is to have as many replicas as the status desires.
type Plan struct {
	Next    *autoscalingv2.HorizontalPodAutoscaler
	Rescale bool
	Reason  string
	Events  []Event
	History History

	current int32
	now     time.Time
}

// Event is one about the autoscaler.
type Event struct{ Type, Reason, Message string }

func (p *Plan) tell(kind, reason, message string) {
	p.Events = append(p.Events, Event{kind, reason, message})
}

// least is how many replicas an autoscaler wants at least.
func least(h *autoscalingv2.HorizontalPodAutoscaler) int32 {
	if h.Spec.MinReplicas == nil {
		return 1
	}
	return *h.Spec.MinReplicas
}

// measures says that metrics matter to how many replicas there should be.
func measures(h *autoscalingv2.HorizontalPodAutoscaler, s *autoscalingv1.Scale) bool {
	n := s.Spec.Replicas
	return n != 0 && n <= h.Spec.MaxReplicas && n >= least(h)
}

// plan says how many replicas an autoscaler's target should have.
func plan(seen Observed) Plan {
	p := Plan{Next: seen.Autoscaler.DeepCopy(), History: seen.History, now: seen.Now}
	if seen.Failure != nil {
		p.tell(corev1.EventTypeWarning, "FailedGetScale", seen.Failure.Error())
		p.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale", fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", seen.Failure))
		return p
	}
	p.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
	p.current = seen.Scale.Spec.Replicas
	if len(p.History.recommended) == 0 {
		p.History = p.History.recommend(p.current, seen.Now)
	}
	h := seen.Autoscaler
	switch {
	case p.current == 0:
		p.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
		p.settle(0, nil)
	case p.current > h.Spec.MaxReplicas:
		p.Rescale, p.Reason = true, "Current number of replicas above Spec.MaxReplicas"
		p.settle(h.Spec.MaxReplicas, nil)
	case p.current < least(h):
		p.Rescale, p.Reason = true, "Current number of replicas below Spec.MinReplicas"
		p.settle(least(h), nil)
	default:
		p.byMetrics(seen)
	}
	return p
}

// byMetrics settles for as many replicas as the metric asks for that asks for the
// most, kept within the bounds and rates of the autoscaler.
func (p *Plan) byMetrics(seen Observed) {
	wanted, name, statuses, err := p.propose(seen)
	if err != nil {
		p.settle(p.Next.Status.DesiredReplicas, statuses)
		p.tell(corev1.EventTypeWarning, "FailedComputeMetricsReplicas", err.Error())
		return
	}
	switch {
	case wanted > p.current:
		p.Reason = name + " above target"
	case wanted < p.current:
		p.Reason = "All metrics below target"
	}
	n := p.normalize(seen, wanted)
	p.Rescale = n != p.current
	p.settle(n, statuses)
}

// settle writes the status.
func (p *Plan) settle(desired int32, metrics []autoscalingv2.MetricStatus) {
	s := &p.Next.Status
	s.CurrentReplicas, s.DesiredReplicas, s.CurrentMetrics = p.current, desired, metrics
	if p.Rescale {
		s.LastScaleTime = new(metav1.NewTime(p.now))
	}
}

// done is the plan after its target was written, or was not.
func (p *Plan) done(err error, before *metav1.Time, desired int32) {
	n := p.Next.Status.DesiredReplicas
	if err != nil {
		p.tell(corev1.EventTypeWarning, "FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", n, p.Reason, err))
		p.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale", fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
		p.Next.Status.DesiredReplicas, p.Next.Status.LastScaleTime = desired, before
		return
	}
	p.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", n))
	p.tell(corev1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", n, p.Reason))
	if p.Next.Spec.Behavior != nil {
		p.History = p.History.change(p.current, n, p.now)
	}
}

// normalize keeps a number of replicas within the bounds and rates of the
// autoscaler.
func (p *Plan) normalize(seen Observed, wanted int32) int32 {
	h, b := seen.Autoscaler, seen.Autoscaler.Spec.Behavior
	var steady, allowed limited
	if b == nil {
		steady = p.History.stabilize(wanted, seen.Now)
		allowed = within(p.current, steady.replicas, least(h), h.Spec.MaxReplicas)
	} else {
		steady = p.History.stabilizeBy(b, p.current, wanted, seen.Now)
		allowed = p.History.withinBy(b, p.current, steady.replicas, least(h), h.Spec.MaxReplicas, seen.Now)
	}
	p.History = p.History.recommend(wanted, seen.Now)
	if steady.replicas != wanted {
		p.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, steady.reason, steady.message)
	} else {
		p.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "ReadyForNewScale", "recommended size matches current size")
	}
	is := corev1.ConditionFalse
	if allowed.replicas != steady.replicas {
		is = corev1.ConditionTrue
	}
	p.condition(autoscalingv2.ScalingLimited, is, allowed.reason, allowed.message)
	return allowed.replicas
}

// propose returns how many replicas the metric asks for that asks for the most,
// and what it is called. Where some metrics fail, others may ask for more
// replicas and not for fewer.
func (p *Plan) propose(seen Observed) (replicas int32, name string, statuses []autoscalingv2.MetricStatus, err error) {
	if err := p.selector(seen); err != nil {
		return 0, "", nil, err
	}
	s := scope{namespace: seen.Autoscaler.Namespace, pods: seen.Pods, spec: p.current, have: seen.Scale.Status.Replicas, tolerances: tolerancesOf(seen.Autoscaler), now: seen.Now}
	specs := seen.Autoscaler.Spec.Metrics
	statuses = make([]autoscalingv2.MetricStatus, len(specs))
	var failures int
	var first error
	var why failed
	for i := range specs {
		called, n, err := s.by(&specs[i], seen.Measured[i], &statuses[i])
		if err == nil {
			if replicas == 0 || n > replicas {
				replicas, name = n, called
			}
			continue
		}
		p.tell(corev1.EventTypeWarning, err.reason, err.inner.Error())
		if failures++; first == nil {
			first, why = err, *err
		}
	}
	if first != nil {
		first = fmt.Errorf("invalid metrics (%v invalid out of %v), first error is: %w", failures, len(specs), first)
	}
	if failures >= len(specs) || failures > 0 && replicas < p.current {
		p.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, why.reason, fmt.Sprintf("the HPA was unable to compute the replica count: %v", why.inner))
		return 0, "", statuses, first
	}
	p.condition(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound", "the HPA was able to successfully calculate a replica count from "+name)
	return replicas, name, statuses, nil
}

// selector says what is wrong with how the target picks pods.
func (p *Plan) selector(seen Observed) error {
	var reason, message string
	var err error
	switch {
	case seen.Scale.Status.Selector == "":
		err = errors.New("selector is required")
		p.tell(corev1.EventTypeWarning, "SelectorRequired", err.Error())
		p.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "InvalidSelector", "the HPA target's scale is missing a selector")
		return err
	case seen.Selector != nil:
		err = fmt.Errorf("couldn't convert selector into a corresponding internal selector object: %w", seen.Selector)
		reason = "InvalidSelector"
	case len(seen.Ambiguous) > 1:
		err = fmt.Errorf("pods by selector %v are controlled by multiple HPAs: %v", seen.Scale.Status.Selector, seen.Ambiguous)
		reason = "AmbiguousSelector"
	default:
		return nil
	}
	message = err.Error()
	p.tell(corev1.EventTypeWarning, reason, message)
	p.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, reason, message)
	return err
}

// condition sets a condition. When it changes is when its status does.
func (p *Plan) condition(of autoscalingv2.HorizontalPodAutoscalerConditionType, is corev1.ConditionStatus, reason, message string) {
	all := p.Next.Status.Conditions
	for i := range all {
		if all[i].Type == of {
			if all[i].Status != is {
				all[i].LastTransitionTime = metav1.NewTime(p.now)
			}
			all[i].Status, all[i].Reason, all[i].Message = is, reason, message
			return
		}
	}
	p.Next.Status.Conditions = append(p.Next.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{Type: of, Status: is, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(p.now)})
}

// changed says that there is a status to write.
func (p *Plan) changed(before *autoscalingv2.HorizontalPodAutoscaler) bool {
	return !apiequality.Semantic.DeepEqual(before.Status, p.Next.Status)
}
