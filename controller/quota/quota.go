// Package quota counts what the objects of a namespace use, and writes it into
// the status of its resource quotas.
//
// In come quotas and objects of the kinds that they count; out goes their usage.
// Whoever makes an object charges its quotas in the same commit; what is deleted,
// ends or shrinks is counted anew here. A count is never less than what has been
// charged: the quota is read before the objects, and its status written on
// condition that nobody has charged it since.
package quota

import (
	"context"
	"errors"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/quota/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/quota/v1/install"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/controller/loop"
)

// workers is how many quotas are counted at once; recount is how often one is
// counted although nothing is known to have changed. Compat: as upstream.
// lookUp is when a kind that nobody serves is looked up again.
const (
	workers = 5
	recount = 5 * time.Minute
	lookUp  = 30 * time.Second
)

// Controller counts quotas.
type Controller struct {
	*loop.Loop[loop.Key]
	actor  *loop.Actor
	quotas listers.ResourceQuotaLister
	pods   listers.PodLister
	kinds  *kinds
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	core := a.Informers.Core().V1()
	c := &Controller{actor: a, quotas: core.ResourceQuotas().Lister(), pods: core.Pods().Lister()}
	c.kinds = newKinds(a, c.replenish)
	c.Loop = loop.New(a, "resourcequota_primary", workers, c.reconcile)
	loop.Watch(c.Loop, "resourcequotas", core.ResourceQuotas().Informer(), c.uncounted)
	loop.Watch(c.Loop, "pods", core.Pods().Informer(), replenished[*corev1.Pod](c, "pods"))
	loop.Watch(c.Loop, "services", core.Services().Informer(), replenished[*corev1.Service](c, "services"))
	loop.Watch(c.Loop, "persistentvolumeclaims", core.PersistentVolumeClaims().Informer(), replenished[*corev1.PersistentVolumeClaim](c, "persistentvolumeclaims"))
	return c
}

// Run implements loop.Runner.
func (c *Controller) Run(ctx context.Context) error {
	c.kinds.begin(ctx)
	defer c.kinds.wait()
	return c.Loop.Run(ctx)
}

// uncounted is a quota that is new or gone, limits other things than before, or
// is one of several whose number is limited.
func (c *Controller) uncounted(before, after *corev1.ResourceQuota) []loop.Key {
	if before != nil && after != nil && upstream.Equals(before.Spec.Hard, after.Spec.Hard) {
		return nil
	}
	keys := loop.Self(before, after)
	if after == nil {
		keys = append(keys, c.counting(before.Namespace, schema.GroupResource{Resource: "resourcequotas"})...)
	}
	return keys
}

var changes = install.DefaultUpdateFilter()

// replenished are the quotas that count a resource whose objects use less when
// they go, and may when they change.
func replenished[T interface {
	comparable
	metav1.Object
}](c *Controller, resource string) func(before, after T) []loop.Key {
	of := corev1.SchemeGroupVersion.WithResource(resource)
	var none T
	return func(before, after T) []loop.Key {
		if before == none || after != none && !changes(of, before, after) {
			return nil
		}
		return c.counting(before.GetNamespace(), of.GroupResource())
	}
}

// counting are the quotas of a namespace, or of all with "", that count a
// resource.
func (c *Controller) counting(namespace string, of schema.GroupResource) []loop.Key {
	all, _ := c.quotas.ResourceQuotas(namespace).List(labels.Everything()) // a cache has no errors
	var keys []loop.Key
	for _, q := range all {
		if counts(q.Spec.Hard, of) {
			keys = append(keys, loop.KeyOf(q))
		}
	}
	return keys
}

// replenish counts the quotas of a namespace that count a resource.
func (c *Controller) replenish(namespace string, of schema.GroupResource) {
	for _, key := range c.counting(namespace, of) {
		c.Add(key)
	}
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	if _, err := c.quotas.ResourceQuotas(key.Namespace).Get(key.Name); err != nil {
		c.kinds.keep(c.named())
		return 0, nil //nolint:nilerr // it is not there: a cache has no other error
	}
	ctx = client.Uninitialized(ctx) // what waits has been charged, too
	found, err := c.actor.Client.CoreV1().ResourceQuotas(key.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", key.Name).String()})
	if err != nil || len(found.Items) == 0 {
		return 0, err
	}
	q := &found.Items[0]
	again := recount
	resources, unknown := c.kinds.follow(counted(q.Spec.Hard))
	if unknown {
		again = lookUp
	}
	used, failure := c.measure(ctx, q, resources)
	if next := plan(q, used); next != nil {
		if _, err := c.actor.Client.CoreV1().ResourceQuotas(key.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
			return 0, errors.Join(failure, err)
		}
	}
	return again, failure
}

// named are the resources that quotas count.
func (c *Controller) named() map[schema.GroupResource]bool {
	all, _ := c.quotas.List(labels.Everything()) // a cache has no errors
	named := map[schema.GroupResource]bool{}
	for _, q := range all {
		for _, r := range counted(q.Spec.Hard) {
			named[r] = true
		}
	}
	return named
}

// plan is the quota with the usage that was measured; nil when it has that. What
// could not be measured stays as it was.
func plan(q *corev1.ResourceQuota, measured corev1.ResourceList) *corev1.ResourceQuota {
	used := upstream.Add(corev1.ResourceList{}, q.Status.Used)
	maps.Copy(used, measured)
	hard := upstream.Add(corev1.ResourceList{}, q.Spec.Hard)
	used = upstream.Mask(used, upstream.ResourceNames(hard))
	if q.Status.Hard != nil && q.Status.Used != nil && apiequality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) && upstream.Equals(used, q.Status.Used) {
		return nil
	}
	next := q.DeepCopy()
	next.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: used}
	return next
}
