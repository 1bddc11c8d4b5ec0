package autoscaler

import (
	"errors"
	"fmt"
	"math"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

// failed is why a metric proposes nothing: the condition's reason, the error
// that it names, and what the whole is called, which may say more.
type failed struct {
	reason string
	inner  error
	what   string
}

// Error implements error.
func (f *failed) Error() string { return fmt.Sprintf("failed to get %s: %v", f.what, f.inner) }

// by proposes replicas from one metric, says what the metric is called, and fills
// in what it says now.
func (s scope) by(spec *autoscalingv2.MetricSpec, m Measured, status *autoscalingv2.MetricStatus) (name string, replicas int32, err *failed) {
	var p proposal
	now := autoscalingv2.MetricStatus{Type: spec.Type}
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		name, p, err = s.resource(spec.Resource, m)
		now.Resource = &autoscalingv2.ResourceMetricStatus{Name: spec.Resource.Name, Current: p.current}
	case autoscalingv2.ContainerResourceMetricSourceType:
		of := spec.ContainerResource
		name, p, err = s.container(of, m)
		now.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{Name: of.Name, Container: of.Container, Current: p.current}
	case autoscalingv2.PodsMetricSourceType:
		name, p, err = s.eachPod(spec.Pods, m)
		now.Pods = &autoscalingv2.PodsMetricStatus{Metric: spec.Pods.Metric, Current: p.current}
	case autoscalingv2.ObjectMetricSourceType:
		name, p, err = s.object(spec.Object, m)
		now.Object = &autoscalingv2.ObjectMetricStatus{Metric: spec.Object.Metric, DescribedObject: spec.Object.DescribedObject, Current: p.current}
	case autoscalingv2.ExternalMetricSourceType:
		name, p, err = s.external(spec.External, m)
		now.External = &autoscalingv2.ExternalMetricStatus{Metric: spec.External.Metric, Current: p.current}
	default:
		err = &failed{"InvalidMetricSourceType", fmt.Errorf("unknown metric source type %q", string(spec.Type)), "metric value"}
	}
	if err != nil {
		return "", 0, err
	}
	*status = now
	return name, p.replicas, nil
}

func (s scope) resource(of *autoscalingv2.ResourceMetricSource, m Measured) (string, proposal, *failed) {
	name, p, err := s.usage(m, of.Name, "", of.Target, "resource")
	if err != nil {
		return "", p, &failed{"FailedGetResourceMetric", err, fmt.Sprintf("%s resource metric value", of.Name)}
	}
	return name, p, nil
}

func (s scope) container(of *autoscalingv2.ContainerResourceMetricSource, m Measured) (string, proposal, *failed) {
	name, p, err := s.usage(m, of.Name, of.Container, of.Target, "container resource")
	if err != nil {
		return "", p, &failed{"FailedGetContainerResourceMetric", err, fmt.Sprintf("%s container metric value", of.Container)}
	}
	return name, p, nil
}

// usage proposes replicas from what pods use of a resource.
func (s scope) usage(m Measured, name corev1.ResourceName, container string, target autoscalingv2.MetricTarget, called string) (string, proposal, error) {
	what := "utilization"
	if target.AverageValue != nil {
		what = "usage"
	}
	var p proposal
	var err error
	switch {
	case target.AverageValue == nil && target.AverageUtilization == nil:
		return "", p, errors.New("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")
	case m.Err != nil:
		err = fmt.Errorf("unable to get metrics for resource %s: %w", name, m.Err)
	case target.AverageValue != nil:
		called = fmt.Sprintf("%s resource", name)
		p, err = s.byAverage(m.Pods, target.AverageValue.MilliValue(), name)
	default:
		called = fmt.Sprintf("%s %s utilization (percentage of request)", name, called)
		p, err = s.byUtilization(m.Pods, *target.AverageUtilization, name, container)
	}
	if err != nil {
		return "", p, fmt.Errorf("failed to get %s %s: %w", name, what, err)
	}
	return called, p, nil
}

func (s scope) eachPod(of *autoscalingv2.PodsMetricSource, m Measured) (string, proposal, *failed) {
	var p proposal
	err := m.Err
	if err != nil {
		err = fmt.Errorf("unable to get metric %s: %w", of.Metric.Name, err)
	} else {
		p, err = s.byAverage(m.Pods, of.Target.AverageValue.MilliValue(), "")
	}
	if err != nil {
		return "", p, &failed{"FailedGetPodsMetric", err, "pods metric value"}
	}
	return "pods metric " + of.Metric.Name, p, nil
}

func (s scope) object(of *autoscalingv2.ObjectMetricSource, m Measured) (string, proposal, *failed) {
	if m.Err != nil {
		// Compat: the order of the words is upstream's.
		m.Err = fmt.Errorf("unable to get metric %s: %s on %s %s/%w", of.Metric.Name, of.DescribedObject.Kind, s.namespace, of.DescribedObject.Name, m.Err)
	}
	p, err := s.values(m, of.Target, "object")
	if err != nil {
		what := "object metric value"
		if of.Target.AverageValue != nil {
			what = fmt.Sprintf("object metric value: failed to get %s object metric", of.Metric.Name)
		}
		return "", p, &failed{"FailedGetObjectMetric", err, what}
	}
	if of.Target.AverageValue != nil {
		return fmt.Sprintf("external metric %s(%+v)", of.Metric.Name, of.Metric.Selector), p, nil // Compat: upstream calls it so
	}
	return fmt.Sprintf("%s metric %s", of.DescribedObject.Kind, of.Metric.Name), p, nil
}

func (s scope) external(of *autoscalingv2.ExternalMetricSource, m Measured) (string, proposal, *failed) {
	if m.Err != nil {
		m.Err = fmt.Errorf("unable to get external metric %s/%s/%+v: %w", s.namespace, of.Metric.Name, of.Metric.Selector, m.Err)
	}
	p, err := s.values(m, of.Target, "external")
	if err != nil {
		what := fmt.Sprintf("%s external metric value", of.Metric.Name)
		switch {
		case of.Target.AverageValue != nil:
			what += fmt.Sprintf(": failed to get %s external metric", of.Metric.Name)
		case of.Target.Value != nil:
			what += fmt.Sprintf(": failed to get external metric %s", of.Metric.Name)
		}
		return "", p, &failed{"FailedGetExternalMetric", err, what}
	}
	return fmt.Sprintf("external metric %s(%+v)", of.Metric.Name, of.Metric.Selector), p, nil
}

// values proposes replicas from values that are of no pod.
func (s scope) values(m Measured, target autoscalingv2.MetricTarget, called string) (proposal, error) {
	if m.Err != nil {
		return proposal{}, m.Err
	}
	total := int64(0)
	for _, v := range m.Values {
		if v > 0 && total > math.MaxInt64-v {
			total = math.MaxInt64
			break
		}
		total += v
	}
	switch {
	case target.AverageValue != nil:
		return s.byShare(total, target.AverageValue.MilliValue()), nil
	case target.Value != nil:
		return s.byTotal(total, target.Value.MilliValue())
	}
	return proposal{}, fmt.Errorf("invalid %s metric source: neither a value target nor an average value target was set", called)
}
