// Package disruption says how many pods may be taken away: a PodDisruptionBudget
// has a status that the eviction subresource goes by.
//
// In come budgets, pods, and how many replicas those who control the pods are to
// have; out goes each budget's status. Who evicts charges the same status, so it
// is written on condition of its revision, and whoever comes second looks again.
// A status that cannot be told allows nothing. Besides, a pod that was said to
// be taken away and never was is told of so.
package disruption

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	appslisters "k8s.io/client-go/listers/apps/v1"
	listers "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/scale"
)

// Controller keeps the status of budgets.
type Controller struct {
	actor        *loop.Actor
	budgets      policylisters.PodDisruptionBudgetLister
	pods         listers.PodLister
	replications listers.ReplicationControllerLister
	sets         appslisters.ReplicaSetLister
	deployments  appslisters.DeploymentLister
	stateful     appslisters.StatefulSetLister
	scales       *scale.Scales

	loop  *loop.Loop[loop.Key] // budgets
	stale *loop.Loop[loop.Key] // pods
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	core, apps, policy := a.Informers.Core().V1(), a.Informers.Apps().V1(), a.Informers.Policy().V1()
	c := &Controller{
		actor: a, budgets: policy.PodDisruptionBudgets().Lister(), pods: core.Pods().Lister(), replications: core.ReplicationControllers().Lister(),
		sets: apps.ReplicaSets().Lister(), deployments: apps.Deployments().Lister(), stateful: apps.StatefulSets().Lister(), scales: scale.New(a.API),
	}
	c.loop = loop.New(a, "disruption", 1, c.reconcile)
	loop.Watch(c.loop, "poddisruptionbudgets.policy", policy.PodDisruptionBudgets().Informer(), loop.Self[*policyv1.PodDisruptionBudget])
	loop.Watch(c.loop, "pods", core.Pods().Informer(), c.concerned)
	loop.Watch[loop.Key, *corev1.ReplicationController](c.loop, "replicationcontrollers", core.ReplicationControllers().Informer(), nil)
	loop.Watch[loop.Key, *appsv1.ReplicaSet](c.loop, "replicasets.apps", apps.ReplicaSets().Informer(), nil)
	loop.Watch[loop.Key, *appsv1.Deployment](c.loop, "deployments.apps", apps.Deployments().Informer(), nil)
	loop.Watch[loop.Key, *appsv1.StatefulSet](c.loop, "statefulsets.apps", apps.StatefulSets().Informer(), nil)
	c.stale = loop.New(a, "stale_pod_disruption", 1, c.forget)
	loop.Watch(c.stale, "pods", core.Pods().Informer(), targets)
	return c
}

// Run implements loop.Runner.
func (c *Controller) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return c.loop.Run(ctx) })
	g.Go(func() error { return c.stale.Run(ctx) })
	return g.Wait()
}

// concerned are the budgets that select a pod, or did. A pod of several is told
// so.
func (c *Controller) concerned(before, after *corev1.Pod) []loop.Key {
	var keys []loop.Key
	for _, p := range []*corev1.Pod{before, after} {
		if p == nil {
			continue
		}
		found := c.selecting(p)
		for _, b := range found {
			keys = append(keys, loop.KeyOf(b))
		}
		if len(found) > 1 && p == after {
			c.actor.Events.Eventf(p, corev1.EventTypeWarning, "MultiplePodDisruptionBudgets", "Pod %q/%q matches multiple PodDisruptionBudgets.  Chose %q arbitrarily.", p.Namespace, p.Name, found[0].Name)
		}
	}
	return keys
}

func (c *Controller) selecting(p *corev1.Pod) []*policyv1.PodDisruptionBudget {
	all, _ := c.budgets.PodDisruptionBudgets(p.Namespace).List(labels.Everything()) // a cache has no errors
	var found []*policyv1.PodDisruptionBudget
	for _, b := range all {
		if s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && s.Matches(labels.Set(p.Labels)) {
			found = append(found, b)
		}
	}
	return found
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	budget, err := c.budgets.PodDisruptionBudgets(key.Namespace).Get(key.Name)
	if err != nil {
		return 0, nil //nolint:nilerr // it is not there: a cache has no other error
	}
	seen, err := c.observe(ctx, budget)
	var p Plan
	if err == nil {
		p, err = plan(seen)
	}
	if err != nil {
		p.Events = append(p.Events, Event{corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", fmt.Sprintf("Failed to calculate the number of expected pods: %v", err)})
		p.Status = failed(budget, err)
	}
	return p.Again, c.act(ctx, budget, p, err)
}

// act writes what is planned. why is the reason for a plan that allows nothing,
// which is looked at again.
func (c *Controller) act(ctx context.Context, budget *policyv1.PodDisruptionBudget, p Plan, why error) error {
	for _, e := range p.Events {
		c.actor.Events.Event(budget, e.Type, e.Reason, e.Message)
	}
	for _, pod := range p.Kept {
		// Compat: upstream names the namespace twice.
		c.actor.Events.Eventf(pod, corev1.EventTypeWarning, "NotDeleted", "Pod was expected by PDB %s/%s to be deleted but it wasn't", budget.Namespace, budget.Namespace)
	}
	if p.Status != nil {
		if _, err := c.actor.Client.PolicyV1().PodDisruptionBudgets(budget.Namespace).UpdateStatus(ctx, p.Status, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return why
}

// observe returns a budget's pods and, where it counts in shares of them, how
// many there are to be.
func (c *Controller) observe(ctx context.Context, budget *policyv1.PodDisruptionBudget) (Observed, error) {
	seen := Observed{Budget: budget, Now: time.Now(), Scales: map[types.UID]Scale{}}
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return seen, err
	}
	seen.Pods, _ = c.pods.Pods(budget.Namespace).List(selector) // a cache has no errors
	if !counted(budget) {
		return seen, nil
	}
	for _, p := range seen.Pods {
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil {
			continue
		}
		if _, known := seen.Scales[ref.UID]; known {
			continue
		}
		s, err := c.scale(ctx, p.Namespace, ref)
		if err != nil {
			return seen, err
		}
		if s != nil {
			seen.Scales[ref.UID] = *s
		}
	}
	return seen, nil
}

// scale is that of a pod's controller, or of the deployment behind it; nil when
// it is gone. Caches answer for what they have.
func (c *Controller) scale(ctx context.Context, namespace string, ref *metav1.OwnerReference) (*Scale, error) {
	switch kind := ref.APIVersion + " " + ref.Kind; kind {
	case "v1 ReplicationController":
		rc, err := c.replications.ReplicationControllers(namespace).Get(ref.Name)
		return found(ref, rc, err, func() *int32 { return rc.Spec.Replicas }), nil
	case "apps/v1 StatefulSet":
		set, err := c.stateful.StatefulSets(namespace).Get(ref.Name)
		return found(ref, set, err, func() *int32 { return set.Spec.Replicas }), nil
	case "apps/v1 ReplicaSet":
		set, err := c.sets.ReplicaSets(namespace).Get(ref.Name)
		if err == nil && set.UID == ref.UID {
			if up := metav1.GetControllerOfNoCopy(set); up != nil && up.APIVersion == "apps/v1" && up.Kind == "Deployment" {
				d, err := c.deployments.Deployments(namespace).Get(up.Name)
				return found(up, d, err, func() *int32 { return d.Spec.Replicas }), nil
			}
		}
		return found(ref, set, err, func() *int32 { return set.Spec.Replicas }), nil
	}
	s, err := c.scales.Of(ctx, namespace, ref)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return found(ref, s, nil, func() *int32 { return &s.Spec.Replicas }), nil
}

// found is the scale of an object if it is the one that is referred to.
func found(ref *metav1.OwnerReference, obj metav1.Object, err error, replicas func() *int32) *Scale {
	if err != nil || obj.GetUID() != ref.UID {
		return nil
	}
	n := replicas()
	if n == nil {
		n = new(int32(1))
	}
	return &Scale{UID: obj.GetUID(), Replicas: *n}
}
