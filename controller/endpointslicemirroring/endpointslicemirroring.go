// Package endpointslicemirroring repeats Endpoints that somebody has written by
// hand as endpoint slices, which is what clients read.
//
// In come Endpoints of services without a selector; out go slices, one for each
// set of ports and family of addresses. Endpoints that ask not to be repeated,
// that are the lock of an election, or whose service selects pods have none.
package endpointslicemirroring

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/services"
)

// workers is how many Endpoints are worked on at once; manager is who slices say
// that they are from. Compat: as upstream.
const (
	workers = 5
	manager = "endpointslicemirroring-controller.k8s.io"
)

// Controller keeps the slices of Endpoints.
type Controller struct {
	*loop.Loop[loop.Key]
	actor     *loop.Actor
	services  listers.ServiceLister
	endpoints listers.EndpointsLister
	slices    discoverylisters.EndpointSliceLister
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	core, slices := a.Informers.Core().V1(), a.Informers.Discovery().V1().EndpointSlices()
	c := &Controller{actor: a, services: core.Services().Lister(), endpoints: core.Endpoints().Lister(), slices: slices.Lister()}
	c.Loop = loop.New(a, "endpoint_slice_mirroring", workers, c.reconcile)
	loop.Watch(c.Loop, "endpoints", core.Endpoints().Informer(), loop.Self[*corev1.Endpoints])
	loop.Watch(c.Loop, "services", core.Services().Informer(), selecting)
	loop.Watch(c.Loop, "endpointslices.discovery.k8s.io", slices.Informer(), services.SlicesConcerned(manager))
	return c
}

// selecting is a service without a selector that comes or goes, or one that has
// got or lost its selector.
func selecting(before, after *corev1.Service) []loop.Key {
	without := func(s *corev1.Service) bool { return s != nil && s.Spec.Selector == nil }
	if without(before) == without(after) {
		return nil
	}
	return loop.Self(before, after)
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	have := services.Slices(c.slices, key, manager)
	endpoints := c.mirrored(key)
	if endpoints == nil {
		gone := &metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}
		return 0, services.Changes{Delete: have}.Write(ctx, c.actor.Client, "Endpoints", gone)
	}
	p := plan(endpoints, have)
	for _, e := range p.Events {
		c.actor.Events.Event(endpoints, corev1.EventTypeWarning, e.Reason, e.Message)
	}
	return 0, p.Write(ctx, c.actor.Client, "Endpoints", endpoints)
}

// mirrored are the Endpoints of a key if they are to be repeated; nil otherwise.
func (c *Controller) mirrored(key loop.Key) *corev1.Endpoints {
	e, err := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if err != nil || e.Labels[discoveryv1.LabelSkipMirror] == "true" || services.Elects(e) {
		return nil
	}
	s, err := c.services.Services(key.Namespace).Get(key.Name)
	if err != nil || s.Spec.Selector != nil {
		return nil
	}
	return e
}
