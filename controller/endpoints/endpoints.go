// Package endpoints writes down where a service is served, in one object: the
// Endpoints of the service's name.
//
// In come services with a selector and pods; out go their addresses by port,
// those that are ready apart from those that are not, a thousand at most.
// Endpoints of a service that is gone go, too; those of a service without a
// selector are left to who made them.
package endpoints

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	endpointutil "k8s.io/endpointslice/util"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/services"
)

// workers is how many services are worked on at once. Compat: as upstream.
const workers = 5

// Controller keeps the Endpoints of services.
type Controller struct {
	*loop.Loop[loop.Key]
	actor     *loop.Actor
	services  listers.ServiceLister
	pods      listers.PodLister
	endpoints listers.EndpointsLister
	filled    []cache.InformerSynced
	// triggers tells when what changed the endpoints of a service happened.
	triggers *endpointutil.TriggerTimeTracker
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	core := a.Informers.Core().V1()
	c := &Controller{
		actor: a, services: core.Services().Lister(), pods: core.Pods().Lister(), endpoints: core.Endpoints().Lister(),
		filled: []cache.InformerSynced{core.Services().Informer().HasSynced, core.Endpoints().Informer().HasSynced}, triggers: endpointutil.NewTriggerTimeTracker(),
	}
	c.Loop = loop.New(a, "endpoint", workers, c.reconcile)
	loop.Watch(c.Loop, "services", core.Services().Informer(), loop.Self[*corev1.Service])
	loop.Watch(c.Loop, "pods", core.Pods().Informer(), services.Concerned(c.services))
	loop.Watch(c.Loop, "endpoints", core.Endpoints().Informer(), gone)
	return c
}

// gone is the service whose Endpoints somebody has deleted. Compat: those that
// somebody has changed are put right when the service or its pods change.
func gone(before, after *corev1.Endpoints) []loop.Key {
	if after != nil {
		return nil
	}
	return []loop.Key{loop.KeyOf(before)}
}

// Run implements loop.Runner. At the start it looks for Endpoints of services
// that went while nobody watched.
func (c *Controller) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return c.Loop.Run(ctx) })
	g.Go(func() error {
		if !cache.WaitForCacheSync(ctx.Done(), c.filled...) {
			return nil
		}
		all, _ := c.endpoints.List(labels.Everything()) // a cache has no errors
		for _, e := range all {
			c.Add(loop.KeyOf(e))
		}
		return nil
	})
	return g.Wait()
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if err != nil {
		return 0, c.remove(ctx, key) // it is not there: a cache has no other error
	}
	if !services.Selects(service) {
		return 0, nil
	}
	pods := services.Pods(c.pods, service)
	current, _ := c.endpoints.Endpoints(key.Namespace).Get(key.Name) // nil when there are none
	return 0, c.act(ctx, service, plan(Observed{
		Service: service, Pods: pods, Current: current, Changed: c.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, pods),
	}))
}

// remove deletes what is left of a service that is gone.
func (c *Controller) remove(ctx context.Context, key loop.Key) error {
	c.triggers.DeleteService(key.Namespace, key.Name)
	left, err := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if err != nil || services.Elects(left) {
		return nil //nolint:nilerr // there is nothing left
	}
	err = c.actor.Client.CoreV1().Endpoints(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *Controller) act(ctx context.Context, service *corev1.Service, p Plan) error {
	api := c.actor.Client.CoreV1().Endpoints(service.Namespace)
	switch {
	case p.Create != nil:
		_, err := api.Create(ctx, p.Create, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil // the service goes, too
		}
		if err != nil {
			c.actor.Events.Eventf(p.Create, corev1.EventTypeWarning, "FailedToCreateEndpoint", "Failed to create endpoint for service %v/%v: %v", service.Namespace, service.Name, err)
		}
		return err
	case p.Update != nil:
		_, err := api.Update(ctx, p.Update, metav1.UpdateOptions{})
		if err != nil {
			c.actor.Events.Eventf(p.Update, corev1.EventTypeWarning, "FailedToUpdateEndpoint", "Failed to update endpoint %v/%v: %v", service.Namespace, service.Name, err)
		}
		return err
	}
	return nil
}
