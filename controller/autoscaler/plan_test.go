package autoscaler

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/plantest"
)

var began = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type hpa = autoscalingv2.HorizontalPodAutoscaler

// scalerOf is an autoscaler between 2 and 10 that wants processors used to a
// half.
func scalerOf(edits ...func(*hpa)) *hpa {
	h := &hpa{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			MinReplicas: new(int32(2)), MaxReplicas: 10,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(50))},
			}}},
		},
	}
	for _, edit := range edits {
		edit(h)
	}
	return h
}

func rules(edit func(b *autoscalingv2.HorizontalPodAutoscalerBehavior)) func(*hpa) {
	return func(h *hpa) {
		most := autoscalingv2.MaxChangePolicySelect
		b := &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32), SelectPolicy: &most, Policies: []autoscalingv2.HPAScalingPolicy{
				{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 60}, {Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 60},
			}},
			ScaleDown: &autoscalingv2.HPAScalingRules{SelectPolicy: &most, Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 60}}},
		}
		edit(b)
		h.Spec.Behavior = b
	}
}

// asks makes an autoscaler look at other metrics.
func asks(specs ...autoscalingv2.MetricSpec) func(*hpa) {
	return func(h *hpa) { h.Spec.Metrics = specs }
}

func outside(value, average string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: target(value, average)}}
}

func object(value, average string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "hits"}, DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "web"}, Target: target(value, average),
	}}
}

func eachPod(average string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "hits"}, Target: target("", average)}}
}

func container(name string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
		Name: corev1.ResourceCPU, Container: name, Target: autoscalingv2.MetricTarget{AverageUtilization: new(int32(50))},
	}}
}

func target(value, average string) autoscalingv2.MetricTarget {
	if value != "" {
		return autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: new(resource.MustParse(value))}
	}
	return autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse(average))}
}

// usesOf are n pods that request a processor each and use so many thousandths.
func usesOf(n int, thousandths int64) ([]*corev1.Pod, Measured) {
	m := Measured{Pods: map[string]Sample{}}
	var all []*corev1.Pod
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		all = append(all, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}},
			Status: corev1.PodStatus{
				Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: began.Add(-time.Hour)},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(began.Add(-time.Hour))}},
			},
		})
		m.Pods[name] = Sample{At: began, Window: time.Minute, Value: thousandths}
	}
	return all, m
}

// seenOf is a target of so many replicas whose pods use so much.
func seenOf(h *hpa, replicas int, thousandths int64) Observed {
	pods, m := usesOf(replicas, thousandths)
	return Observed{
		Autoscaler: h, Pods: pods, Now: began, Measured: []Measured{m},
		Scale: &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: int32(replicas)}, Status: autoscalingv1.ScaleStatus{Replicas: int32(replicas), Selector: "app=web"}},
	}
}

func edited(seen Observed, edit func(*Observed)) Observed {
	edit(&seen)
	return seen
}

func past(list func(*History) *[]event, replicas int32, ago time.Duration) func(*Observed) {
	return func(o *Observed) { *list(&o.History) = append(*list(&o.History), event{replicas, began.Add(-ago)}) }
}

func TestPlan(t *testing.T) {
	recommended := func(h *History) *[]event { return &h.recommended }
	ups := func(h *History) *[]event { return &h.ups }
	measured := func(m ...Measured) func(*Observed) { return func(o *Observed) { o.Measured = m } }
	values := func(v ...int64) Measured { return Measured{Values: v} }
	twice := func(o *Observed) { o.Measured = append(o.Measured, Measured{Err: errDown}) }
	slow := rules(func(b *autoscalingv2.HorizontalPodAutoscalerBehavior) {
		b.ScaleUp.Policies = []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: 60}}
		b.ScaleDown.Policies = b.ScaleUp.Policies
		b.ScaleDown.StabilizationWindowSeconds = new(int32)
	})
	disabled := rules(func(b *autoscalingv2.HorizontalPodAutoscalerBehavior) {
		b.ScaleDown.SelectPolicy = new(autoscalingv2.DisabledPolicySelect)
		b.ScaleDown.StabilizationWindowSeconds = new(int32)
	})
	cautious := rules(func(b *autoscalingv2.HorizontalPodAutoscalerBehavior) {
		b.ScaleUp.StabilizationWindowSeconds = new(int32(120))
		b.ScaleUp.Tolerance = new(resource.MustParse("0.5"))
	})
	plantest.Cases(t, "plan.txt", map[string]Observed{
		"as it should be":                        seenOf(scalerOf(), 4, 500),
		"within the tolerance":                   seenOf(scalerOf(), 4, 540),
		"more is used":                           seenOf(scalerOf(), 4, 900),
		"much more: no more than twice as many":  seenOf(scalerOf(), 4, 5000),
		"less is used":                           seenOf(scalerOf(), 4, 300),
		"less is used, more was lately":          edited(seenOf(scalerOf(), 4, 300), past(recommended, 5, time.Minute)),
		"less is used, more was long ago":        edited(seenOf(scalerOf(), 4, 300), past(recommended, 5, 10*time.Minute)),
		"more than the most":                     seenOf(scalerOf(), 12, 500),
		"fewer than the least":                   seenOf(scalerOf(), 1, 500),
		"asks for more than the most":            seenOf(scalerOf(), 8, 900),
		"asks for fewer than the least":          edited(seenOf(scalerOf(), 4, 10), past(recommended, 1, 10*time.Minute)),
		"switched off":                           seenOf(scalerOf(), 0, 0),
		"no target":                              {Autoscaler: scalerOf(), Failure: errors.New(`deployments.apps "web" not found`), Now: began},
		"no selector":                            edited(seenOf(scalerOf(), 4, 900), func(o *Observed) { o.Scale.Status.Selector = "" }),
		"two autoscalers":                        edited(seenOf(scalerOf(), 4, 900), func(o *Observed) { o.Ambiguous = []string{"default/a", "default/web"} }),
		"nobody answers":                         edited(seenOf(scalerOf(), 4, 900), measured(Measured{Err: errDown})),
		"no requests":                            edited(seenOf(scalerOf(), 1+1, 900), func(o *Observed) { o.Pods[0].Spec.Containers[0].Resources.Requests = nil }),
		"one metric fails, the other wants more": edited(seenOf(scalerOf(func(h *hpa) { h.Spec.Metrics = append(h.Spec.Metrics, outside("10", "")) }), 4, 900), twice),
		"one metric fails, the other wants less": edited(seenOf(scalerOf(func(h *hpa) { h.Spec.Metrics = append(h.Spec.Metrics, outside("10", "")) }), 4, 100), twice),
		"the metric that asks for more counts":   edited(seenOf(scalerOf(func(h *hpa) { h.Spec.Metrics = append(h.Spec.Metrics, eachPod("100m")) }), 4, 600), func(o *Observed) { o.Measured = append(o.Measured, o.Measured[0]) }),
		"a total":                                edited(seenOf(scalerOf(asks(outside("10", ""))), 4, 0), measured(values(10000, 5000))),
		"a share":                                edited(seenOf(scalerOf(asks(outside("", "5"))), 4, 0), measured(values(30000))),
		"an object":                              edited(seenOf(scalerOf(asks(object("10", ""))), 4, 0), measured(values(15000))),
		"an object, shared":                      edited(seenOf(scalerOf(asks(object("", "5"))), 4, 0), measured(values(30000))),
		"an object that is not measured":         edited(seenOf(scalerOf(asks(object("10", ""))), 4, 0), measured(Measured{Err: errDown})),
		"a metric of pods":                       seenOf(scalerOf(asks(eachPod("600m"))), 4, 900),
		"one container":                          seenOf(scalerOf(asks(container("c"))), 4, 900),
		"a container that is not there":          seenOf(scalerOf(asks(container("x"))), 4, 900),
		"behavior: as by default":                seenOf(scalerOf(rules(func(*autoscalingv2.HorizontalPodAutoscalerBehavior) {})), 4, 900),
		"behavior: slowly up":                    seenOf(scalerOf(slow), 4, 900),
		"behavior: slowly up, once was enough":   edited(seenOf(scalerOf(slow), 4, 900), past(ups, 1, 30*time.Second)),
		"behavior: slowly down":                  edited(seenOf(scalerOf(slow), 6, 100), past(recommended, 1, time.Hour)),
		"behavior: never down":                   edited(seenOf(scalerOf(disabled), 6, 100), past(recommended, 1, time.Hour)),
		"behavior: fewer were wanted lately":     edited(seenOf(scalerOf(cautious), 4, 900), past(recommended, 4, time.Minute)),
		"behavior: a tolerance of its own":       edited(seenOf(scalerOf(cautious), 4, 700), past(recommended, 9, 10*time.Minute)),
	}, func(seen Observed) string {
		p := plan(seen)
		if p.Rescale {
			p.done(nil, nil, 0)
		}
		return describe(p)
	})
}

func describe(p Plan) string {
	var b strings.Builder
	s := p.Next.Status
	fmt.Fprintf(&b, "status current=%d desired=%d", s.CurrentReplicas, s.DesiredReplicas)
	for _, m := range s.CurrentMetrics {
		for _, v := range currentOf(m) {
			fmt.Fprintf(&b, " %s", v)
		}
	}
	fmt.Fprintln(&b)
	for _, c := range s.Conditions {
		fmt.Fprintf(&b, "  %s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	for _, e := range p.Events {
		fmt.Fprintf(&b, "tell %s %s: %s\n", e.Type, e.Reason, e.Message)
	}
	return b.String()
}

// currentOf is what a metric says now, in words.
func currentOf(m autoscalingv2.MetricStatus) []string {
	var v autoscalingv2.MetricValueStatus
	switch {
	case m.Resource != nil:
		v = m.Resource.Current
	case m.ContainerResource != nil:
		v = m.ContainerResource.Current
	case m.Pods != nil:
		v = m.Pods.Current
	case m.Object != nil:
		v = m.Object.Current
	case m.External != nil:
		v = m.External.Current
	}
	var words []string
	if v.AverageUtilization != nil {
		words = append(words, fmt.Sprintf("%d%%", *v.AverageUtilization))
	}
	if v.AverageValue != nil {
		words = append(words, "average "+v.AverageValue.String())
	}
	if v.Value != nil {
		words = append(words, "value "+v.Value.String())
	}
	return words
}

func TestATargetThatCannotBeWrittenIsToldOf(t *testing.T) {
	p := plan(seenOf(scalerOf(), 4, 900))
	p.done(errors.New("no"), nil, 3)
	if s := p.Next.Status; s.DesiredReplicas != 3 || s.LastScaleTime != nil || s.Conditions[0].Reason != "FailedUpdateScale" {
		t.Errorf("the status is %+v", s)
	}
	if e := p.Events[len(p.Events)-1]; e.Reason != "FailedRescale" || e.Message != "New size: 8; reason: cpu resource utilization (percentage of request) above target; error: no" {
		t.Errorf("it is told as %+v", e)
	}
}
