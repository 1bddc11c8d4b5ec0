package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	upstream "k8s.io/kubernetes/pkg/controller/podautoscaler"
	upstreammetrics "k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
)

// answers tells upstream's calculator with what we are given.
type answers struct{ m Measured }

func (a answers) samples() (upstreammetrics.PodMetricsInfo, time.Time, error) {
	if a.m.Err != nil {
		return nil, time.Time{}, a.m.Err
	}
	all := upstreammetrics.PodMetricsInfo{}
	for name, s := range a.m.Pods {
		all[name] = upstreammetrics.PodMetric{Timestamp: s.At, Window: s.Window, Value: s.Value}
	}
	return all, time.Time{}, nil
}

func (a answers) GetResourceMetric(context.Context, corev1.ResourceName, string, labels.Selector, string) (upstreammetrics.PodMetricsInfo, time.Time, error) {
	return a.samples()
}

func (a answers) GetRawMetric(string, string, labels.Selector, labels.Selector) (upstreammetrics.PodMetricsInfo, time.Time, error) {
	return a.samples()
}

func (a answers) GetObjectMetric(string, string, *autoscalingv2.CrossVersionObjectReference, labels.Selector) (int64, time.Time, error) {
	return a.m.Values[0], time.Time{}, a.m.Err
}

func (a answers) GetExternalMetric(string, string, labels.Selector) ([]int64, time.Time, error) {
	return a.m.Values, time.Time{}, a.m.Err
}

// world is a target with pods in many states.
func world(r *rand.Rand, now time.Time) (scope, Measured) {
	s := scope{namespace: "default", spec: 1 + r.Int32N(20), have: 1 + r.Int32N(20), now: now}
	m := Measured{Pods: map[string]Sample{}, Values: []int64{r.Int64N(100000), r.Int64N(100000)}}
	for i := range r.IntN(12) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i), Namespace: "default"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		container := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
		if r.IntN(40) > 0 {
			container.Resources.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(100+r.Int64N(1000), resource.DecimalSI)
		}
		p.Spec.Containers = []corev1.Container{container}
		switch r.IntN(12) {
		case 0:
			p.Status.Phase = corev1.PodPending
		case 1:
			p.Status.Phase = corev1.PodFailed
		case 2:
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		started := now.Add(-time.Duration(r.IntN(600)) * time.Second)
		if r.IntN(10) > 0 {
			p.Status.StartTime = &metav1.Time{Time: started}
			ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(started.Add(time.Duration(r.IntN(90)) * time.Second))}
			if r.IntN(3) == 0 {
				ready.Status = corev1.ConditionFalse
			}
			p.Status.Conditions = []corev1.PodCondition{ready}
		}
		if r.IntN(8) > 0 {
			m.Pods[p.Name] = Sample{At: now.Add(-time.Duration(r.IntN(60)) * time.Second), Window: time.Minute, Value: r.Int64N(2000)}
		}
		s.pods = append(s.pods, p)
	}
	return s, m
}

// Upstream's calculator is the judge of what metrics ask for: in many worlds both
// say the same. Its tolerances are its own, so none are compared.
func TestProposalsAreUpstreams(t *testing.T) {
	synctest.Test(t, compare) // upstream asks the clock, which must not go on
}

func compare(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	compared := 0
	for i := range 5000 {
		s, m := world(r, now)
		index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		for _, p := range s.pods {
			if err := index.Add(p); err != nil {
				t.Fatal(err)
			}
		}
		judge := upstream.NewReplicaCalculator(answers{Measured{Pods: maps.Clone(m.Pods), Values: m.Values}}, listers.NewPodLister(index), beginning, readyIn)
		everything, none := labels.Everything(), upstream.Tolerances{}
		percent, target := 10+r.Int32N(150), 100+r.Int64N(3000)
		check := func(what string, want int32, wantNow int64, wantErr error, got proposal, now *resource.Quantity, err error) {
			t.Helper()
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%d: by %s: error %v, want %v", i, what, err, wantErr)
			}
			if err == nil && (got.replicas != want || now.MilliValue() != wantNow) {
				t.Fatalf("%d: by %s: %d replicas at %d, want %d at %d", i, what, got.replicas, now.MilliValue(), want, wantNow)
			}
			if err == nil {
				compared++
			}
		}
		n, utilization, raw, _, wantErr := judge.GetResourceReplicas(t.Context(), s.spec, percent, corev1.ResourceCPU, none, "default", everything, "")
		p, err := s.byUtilization(m.Pods, percent, corev1.ResourceCPU, "")
		check("utilization", n, raw, wantErr, p, p.current.AverageValue, err)
		if err == nil && *p.current.AverageUtilization != utilization {
			t.Fatalf("%d: utilization is %d, want %d", i, *p.current.AverageUtilization, utilization)
		}
		n, raw, _, wantErr = judge.GetRawResourceReplicas(t.Context(), s.spec, target, corev1.ResourceCPU, none, "default", everything, "")
		p, err = s.byAverage(m.Pods, target, corev1.ResourceCPU)
		check("average use", n, raw, wantErr, p, p.current.AverageValue, err)
		n, raw, _, wantErr = judge.GetMetricReplicas(s.spec, target, "m", none, "default", everything, everything)
		p, err = s.byAverage(m.Pods, target, "")
		check("average", n, raw, wantErr, p, p.current.AverageValue, err)
		n, raw, _, wantErr = judge.GetExternalMetricReplicas(s.spec, target, "m", none, "default", nil, everything)
		p, err = s.values(m, autoscalingv2.MetricTarget{Value: resource.NewMilliQuantity(target, resource.DecimalSI)}, "external")
		check("total", n, raw, wantErr, p, p.current.Value, err)
		n, raw, _, wantErr = judge.GetExternalPerPodMetricReplicas(s.have, target, "m", none, "default", nil)
		p, err = s.values(m, autoscalingv2.MetricTarget{AverageValue: resource.NewMilliQuantity(target, resource.DecimalSI)}, "external")
		check("share", n, raw, wantErr, p, p.current.AverageValue, err)
	}
	if compared < 15000 {
		t.Errorf("only %d proposals were compared", compared)
	}
}

var errDown = errors.New("nobody answers")
