// Package namespace empties namespaces that are being deleted, and lets go of
// them.
//
// In come namespaces; out come deletions of everything in those that are being
// deleted, conditions that say what remains and why, and in the end the
// finalizer taken off. Pods go first; other objects go when no pod is left that
// might need them.
package namespace

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/controller/loop"
)

// workers is how many namespaces are emptied at once. Compat: as upstream.
const workers = 10

// Controller empties namespaces.
type Controller struct {
	*loop.Loop[loop.Key]
	actor *loop.Actor
}

// New returns the controller of namespaces.
func New(a *loop.Actor) loop.Runner {
	c := &Controller{actor: a}
	c.Loop = loop.New(a, "namespace", workers, c.reconcile)
	loop.Watch(c.Loop, "namespaces", a.Informers.Core().V1().Namespaces().Informer(), func(_, after *corev1.Namespace) []loop.Key {
		if after == nil || after.DeletionTimestamp == nil {
			return nil
		}
		return []loop.Key{loop.KeyOf(after)}
	})
	return c
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	ns, err := c.actor.Client.CoreV1().Namespaces().Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return 0, err
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		ns.Status.Phase = corev1.NamespaceTerminating
		if ns, err = c.actor.Client.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return 0, gone(err)
		}
	}
	left, err := c.empty(ctx, ns)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if told, changed := conditions(ns.Status.Conditions, left, now); changed {
		ns.Status.Conditions = told
		if ns, err = c.actor.Client.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return 0, gone(err)
		}
	}
	if left.done() {
		return 0, gone(c.release(ctx, ns))
	}
	return lookAgain(ns.DeletionTimestamp.Time, now), nil
}

// lookAgain is when to look whether what remains has gone: soon after the
// deletion, then ever more seldom.
func lookAgain(deleted, now time.Time) time.Duration {
	return min(max(now.Sub(deleted)/4, 250*time.Millisecond), 8*time.Second)
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// release takes the finalizer off.
func (c *Controller) release(ctx context.Context, ns *corev1.Namespace) error {
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err := c.actor.Client.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	return err
}

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// empty deletes everything in a namespace and returns what is left.
func (c *Controller) empty(ctx context.Context, ns *corev1.Namespace) (remains, error) {
	d, err := c.actor.API.Discovery()
	if err != nil {
		return remains{}, err
	}
	m, err := c.actor.API.Metadata()
	if err != nil {
		return remains{}, err
	}
	left := remains{objects: map[schema.GroupResource]int{}, finalizers: map[string]int{}}
	lists, err := discovery.ServerPreferredNamespacedResources(d)
	left.undiscovered = err // what is known is emptied nevertheless
	resources, err := collections(lists)
	left.unparsed = err
	if slices.ContainsFunc(resources, func(r collection) bool { return r.GroupVersionResource == podResource }) {
		c.emptyOne(ctx, m, collection{podResource, true}, ns.Name, &left)
		if left.pods = left.objects[podResource.GroupResource()]; left.pods > 0 {
			return left, nil
		}
	}
	for _, r := range resources {
		if r.GroupVersionResource != podResource {
			c.emptyOne(ctx, m, r, ns.Name, &left)
		}
	}
	return left, nil
}

// collection is a resource whose objects can be deleted.
type collection struct {
	schema.GroupVersionResource
	atOnce bool // all with one request
}

func collections(lists []*metav1.APIResourceList) ([]collection, error) {
	var all []collection
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return all, err
		}
		for _, r := range list.APIResources {
			verbs := []string(r.Verbs)
			if slices.Contains(verbs, "delete") && slices.Contains(verbs, "list") {
				all = append(all, collection{gv.WithResource(r.Name), slices.Contains(verbs, "deletecollection")})
			}
		}
	}
	return all, nil
}

// emptyOne deletes the objects of one resource, and takes note of those that are
// left.
func (c *Controller) emptyOne(ctx context.Context, m metadata.Interface, r collection, namespace string, left *remains) {
	objects := m.Resource(r.GroupVersionResource).Namespace(namespace)
	list := func() ([]metav1.PartialObjectMetadata, error) {
		l, err := objects.List(client.Uninitialized(ctx), metav1.ListOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || l == nil {
			return nil, gone(err)
		}
		return l.Items, err
	}
	items, err := list()
	if err == nil && len(items) > 0 {
		if err = deleteAll(ctx, objects, r.atOnce, items); err == nil {
			items, err = list()
		}
	}
	if err != nil {
		left.failures = append(left.failures, err)
		return
	}
	for i := range items {
		left.objects[r.GroupResource()]++
		for _, f := range items[i].Finalizers {
			left.finalizers[f]++
		}
		if len(items[i].Finalizers) == 0 && items[i].DeletionTimestamp == nil {
			left.failures = append(left.failures, fmt.Errorf("unexpected items still remain in namespace: %s for gvr: %v", namespace, r.GroupVersionResource))
			return
		}
	}
}

func deleteAll(ctx context.Context, objects metadata.ResourceInterface, atOnce bool, items []metav1.PartialObjectMetadata) error {
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	if atOnce {
		return gone(objects.DeleteCollection(ctx, options, metav1.ListOptions{}))
	}
	for i := range items {
		if err := gone(objects.Delete(ctx, items[i].Name, options)); err != nil && !apierrors.IsMethodNotSupported(err) {
			return err
		}
	}
	return nil
}
