package autoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	custom "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	external "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	resources "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/controller/scale"
)

// Sample is what a pod was measured at, in thousandths.
type Sample struct {
	At     time.Time
	Window time.Duration
	Value  int64
}

// Measured is what the API says of one metric of an autoscaler: of each pod by
// its name, or values that are of no pod. Err says why it says nothing.
type Measured struct {
	Pods   map[string]Sample
	Values []int64
	Err    error
}

// window is what samples of custom metrics are of that do not say. Compat: as
// upstream.
const window = time.Minute

// metrics reads the metrics APIs, which other servers serve if anybody does.
type metrics struct {
	config func(schema.GroupVersion) *rest.Config
	scales *scale.Scales
}

func newMetrics(api *client.Client, scales *scale.Scales) *metrics {
	return &metrics{scales: scales, config: func(gv schema.GroupVersion) *rest.Config {
		c := api.Config()
		c.GroupVersion, c.APIPath, c.NegotiatedSerializer = &gv, "/apis", scheme.Codecs.WithoutConversion()
		return c
	}}
}

// measure reads one metric for the pods that selector picks.
func (m *metrics) measure(ctx context.Context, namespace string, spec *autoscalingv2.MetricSpec, selector labels.Selector) Measured {
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		return m.resource(ctx, namespace, spec.Resource.Name, "", selector)
	case autoscalingv2.ContainerResourceMetricSourceType:
		return m.resource(ctx, namespace, spec.ContainerResource.Name, spec.ContainerResource.Container, selector)
	case autoscalingv2.PodsMetricSourceType:
		return m.pods(ctx, namespace, &spec.Pods.Metric, selector)
	case autoscalingv2.ObjectMetricSourceType:
		return m.object(ctx, namespace, &spec.Object.Metric, &spec.Object.DescribedObject)
	case autoscalingv2.ExternalMetricSourceType:
		return m.external(ctx, namespace, &spec.External.Metric)
	}
	return Measured{}
}

// read sends a request and reads its answer into to.
func (m *metrics) read(ctx context.Context, gv schema.GroupVersion, to any, ask func(*rest.Request) *rest.Request) error {
	c, err := rest.RESTClientFor(m.config(gv))
	if err != nil {
		return err
	}
	answer, err := ask(c.Get()).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, to)
}

func (m *metrics) resource(ctx context.Context, namespace string, name corev1.ResourceName, container string, selector labels.Selector) Measured {
	var list resources.PodMetricsList
	err := m.read(ctx, resources.SchemeGroupVersion, &list, func(r *rest.Request) *rest.Request {
		return r.Namespace(namespace).Resource("pods").Param("labelSelector", selector.String())
	})
	if err != nil {
		return Measured{Err: fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)}
	}
	if len(list.Items) == 0 {
		return Measured{Err: errors.New("no metrics returned from resource metrics API")}
	}
	of := map[string]Sample{}
	for _, p := range list.Items {
		if n, whole := usage(p.Containers, name, container); whole {
			of[p.Name] = Sample{At: p.Timestamp.Time, Window: p.Window.Duration, Value: n}
		}
	}
	return Measured{Pods: of}
}

// usage is what a container uses of a resource, or with "" all of them. It is
// not whole when one that counts is not told.
func usage(all []resources.ContainerMetrics, name corev1.ResourceName, container string) (sum int64, whole bool) {
	for _, c := range all {
		if container != "" && c.Name != container {
			continue
		}
		n, told := c.Usage[name]
		if !told {
			return 0, false
		}
		sum, whole = sum+n.MilliValue(), true
	}
	return sum, whole
}

func (m *metrics) pods(ctx context.Context, namespace string, of *autoscalingv2.MetricIdentifier, selector labels.Selector) Measured {
	list, err := m.custom(ctx, of, func(r *rest.Request) *rest.Request {
		return r.Namespace(namespace).Resource("pods").Name(custom.AllObjects).SubResource(of.Name).Param("labelSelector", selector.String())
	})
	if err != nil {
		return Measured{Err: err}
	}
	if len(list.Items) == 0 {
		return Measured{Err: errors.New("no metrics returned from custom metrics API")}
	}
	samples := map[string]Sample{}
	for _, v := range list.Items {
		s := Sample{At: v.Timestamp.Time, Window: window, Value: v.Value.MilliValue()}
		if v.WindowSeconds != nil {
			s.Window = time.Duration(*v.WindowSeconds) * time.Second
		}
		samples[v.DescribedObject.Name] = s
	}
	return Measured{Pods: samples}
}

func (m *metrics) object(ctx context.Context, namespace string, of *autoscalingv2.MetricIdentifier, about *autoscalingv2.CrossVersionObjectReference) Measured {
	kind := schema.FromAPIVersionAndKind(about.APIVersion, about.Kind).GroupKind()
	path := func(r *rest.Request) *rest.Request {
		return r.Resource("namespaces").Name(namespace).Suffix("metrics", of.Name) // Compat: a namespace is always the autoscaler's own
	}
	if kind.Kind != "Namespace" || kind.Group != "" {
		found, err := m.scales.Resources(kind)
		if err != nil {
			return Measured{Err: fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)}
		}
		path = func(r *rest.Request) *rest.Request {
			return r.Namespace(namespace).Resource(found[0].String()).Name(about.Name).SubResource(of.Name)
		}
	}
	list, err := m.custom(ctx, of, path)
	if err != nil {
		return Measured{Err: err}
	}
	if len(list.Items) != 1 {
		return Measured{Err: fmt.Errorf("unable to fetch metrics from custom metrics API: the custom metrics API server returned %d results when we asked for exactly one", len(list.Items))}
	}
	return Measured{Values: []int64{list.Items[0].Value.MilliValue()}}
}

func (m *metrics) custom(ctx context.Context, of *autoscalingv2.MetricIdentifier, path func(*rest.Request) *rest.Request) (*custom.MetricValueList, error) {
	selector, err := metav1.LabelSelectorAsSelector(of.Selector)
	if err != nil {
		return nil, err
	}
	if of.Selector == nil {
		selector = labels.Everything()
	}
	var list custom.MetricValueList
	if err := m.read(ctx, custom.SchemeGroupVersion, &list, func(r *rest.Request) *rest.Request {
		return path(r).Param("metricLabelSelector", selector.String())
	}); err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	return &list, nil
}

func (m *metrics) external(ctx context.Context, namespace string, of *autoscalingv2.MetricIdentifier) Measured {
	selector, err := metav1.LabelSelectorAsSelector(of.Selector)
	if err != nil {
		return Measured{Err: err}
	}
	if of.Selector == nil {
		selector = labels.Everything()
	}
	var list external.ExternalMetricValueList
	if err := m.read(ctx, external.SchemeGroupVersion, &list, func(r *rest.Request) *rest.Request {
		return r.Namespace(namespace).Resource(of.Name).Param("labelSelector", selector.String())
	}); err != nil {
		return Measured{Err: fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)}
	}
	if len(list.Items) == 0 {
		return Measured{Err: errors.New("no metrics returned from external metrics API")}
	}
	values := make([]int64, len(list.Items))
	for i, v := range list.Items {
		values[i] = v.Value.MilliValue()
	}
	return Measured{Values: values}
}
