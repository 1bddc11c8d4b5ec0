// Package autoscaler gives a target as many replicas as its metrics ask for: a
// HorizontalPodAutoscaler names the target, the metrics, the bounds, and how
// fast its target may change.
//
// In come autoscalers, the scale of their targets, pods, and what the metrics
// APIs say, every fifteen seconds; out goes another scale, and a status that
// says why. plan.go decides; what was recommended and done lately is remembered
// here, and begins anew with the controller.
package autoscaler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	listers "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/util/retry"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/scale"
)

// workers is how many autoscalers are looked at at once, and period how often
// each is. Compat: as upstream.
const (
	workers = 5
	period  = 15 * time.Second
)

// Controller carries out autoscalers.
type Controller struct {
	*loop.Loop[loop.Key]
	actor       *loop.Actor
	autoscalers listers.HorizontalPodAutoscalerLister
	pods        corelisters.PodLister
	scales      *scale.Scales
	metrics     *metrics

	mu    sync.Mutex // guards the field below
	known map[loop.Key]memory
}

// memory is what is remembered of an autoscaler.
type memory struct {
	history  History
	selector labels.Selector // that of its target; nil before it is known
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	autoscalers, pods := a.Informers.Autoscaling().V2().HorizontalPodAutoscalers(), a.Informers.Core().V1().Pods()
	scales := scale.New(a.API)
	c := &Controller{
		actor: a, autoscalers: autoscalers.Lister(), pods: pods.Lister(), scales: scales, metrics: newMetrics(a.API, scales),
		known: map[loop.Key]memory{},
	}
	c.Loop = loop.New(a, "horizontalpodautoscaler", workers, c.reconcile)
	loop.Watch(c.Loop, "horizontalpodautoscalers.autoscaling", autoscalers.Informer(), told)
	loop.Watch[loop.Key, *corev1.Pod](c.Loop, "pods", pods.Informer(), nil)
	return c
}

// told is an autoscaler that is new, gone, or says something else.
func told(before, after *autoscalingv2.HorizontalPodAutoscaler) []loop.Key {
	if before != nil && after != nil && apiequality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil
	}
	return loop.Self(before, after)
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	h, err := c.autoscalers.HorizontalPodAutoscalers(key.Namespace).Get(key.Name)
	if err != nil {
		c.forget(key)
		return 0, nil //nolint:nilerr // it is not there: a cache has no other error
	}
	seen, resource := c.observe(ctx, h)
	p := plan(seen)
	err = c.act(ctx, seen, resource, &p)
	c.remember(key, func(m *memory) { m.history = p.History })
	for _, e := range p.Events {
		c.actor.Events.Event(h, e.Type, e.Reason, e.Message)
	}
	return period, err
}

func (c *Controller) forget(key loop.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, key)
}

func (c *Controller) remember(key loop.Key, edit func(*memory)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.known[key]
	edit(&m)
	c.known[key] = m
}

// observe returns what is known of an autoscaler's target, and which resource it
// is.
func (c *Controller) observe(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler) (Observed, schema.GroupResource) {
	key := loop.KeyOf(h)
	seen := Observed{Autoscaler: h, Now: time.Now()}
	c.mu.Lock()
	seen.History = c.known[key].history
	c.mu.Unlock()
	var resource schema.GroupResource
	seen.Scale, resource, seen.Failure = c.target(ctx, h)
	if seen.Failure != nil || !measures(h, seen.Scale) {
		return seen, resource
	}
	seen.Measured = make([]Measured, len(h.Spec.Metrics))
	selector, err := labels.Parse(seen.Scale.Status.Selector)
	if err != nil || seen.Scale.Status.Selector == "" {
		seen.Selector = err
		return seen, resource
	}
	c.remember(key, func(m *memory) { m.selector = selector })
	seen.Pods, _ = c.pods.Pods(h.Namespace).List(selector) // a cache has no errors
	if seen.Ambiguous = c.ambiguous(h.Namespace, seen.Pods); len(seen.Ambiguous) > 1 {
		return seen, resource
	}
	for i := range h.Spec.Metrics {
		seen.Measured[i] = c.metrics.measure(ctx, h.Namespace, &h.Spec.Metrics[i], selector)
	}
	return seen, resource
}

// target is the scale of an autoscaler's target, of the first version of its
// kind that has one.
func (c *Controller) target(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv1.Scale, schema.GroupResource, error) {
	ref := h.Spec.ScaleTargetRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, schema.GroupResource{}, err
	}
	found, err := c.scales.Resources(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if err != nil {
		return nil, schema.GroupResource{}, err
	}
	first := errors.New("unrecognized resource")
	for i, resource := range found {
		s, err := c.scales.Get(ctx, resource, h.Namespace, ref.Name)
		if err == nil {
			return s, resource, nil
		}
		if i == 0 {
			first = err
		}
	}
	return nil, schema.GroupResource{}, first
}

// ambiguous are the autoscalers of a namespace whose targets select some of the
// pods.
func (c *Controller) ambiguous(namespace string, pods []*corev1.Pod) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for key, m := range c.known {
		if key.Namespace == namespace && m.selector != nil && slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return m.selector.Matches(labels.Set(p.Labels)) }) {
			all = append(all, key.String())
		}
	}
	slices.Sort(all)
	return all
}

// act writes what is planned: the target's scale first, then the status.
func (c *Controller) act(ctx context.Context, seen Observed, resource schema.GroupResource, p *Plan) error {
	h := seen.Autoscaler
	if p.Rescale {
		p.done(c.rescale(ctx, resource, seen.Scale, p.Next.Status.DesiredReplicas), h.Status.LastScaleTime, h.Status.DesiredReplicas)
	}
	if !p.changed(h) {
		return nil
	}
	_, err := c.actor.Client.AutoscalingV2().HorizontalPodAutoscalers(h.Namespace).UpdateStatus(ctx, p.Next, metav1.UpdateOptions{})
	if err != nil {
		p.tell(corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
	}
	return err
}

// rescale gives a target another number of replicas, also when it has changed
// otherwise meanwhile.
func (c *Controller) rescale(ctx context.Context, resource schema.GroupResource, target *autoscalingv1.Scale, to int32) error {
	target = target.DeepCopy()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		target.Spec.Replicas = to
		_, err := c.scales.Update(ctx, resource, target)
		if apierrors.IsConflict(err) {
			if fresh, readErr := c.scales.Get(ctx, resource, target.Namespace, target.Name); readErr == nil {
				target = fresh
			}
		}
		return err
	})
}
