// Package endpointslice writes down where a service is served, in slices of a
// hundred endpoints each, so that a change to one pod is a change to one slice.
//
// In come services with a selector, pods and nodes; out go slices for each
// family of addresses and each set of ports that pods have, with what is known
// of each endpoint: whether it is ready, serves, or ends, where it is, and for
// which zone or node it is meant. Slices of a service that is gone are the
// garbage collector's: the service owns them.
package endpointslice

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/endpointslice/topologycache"
	endpointutil "k8s.io/endpointslice/util"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/services"
)

// workers is how many services are worked on at once; manager is who slices say
// that they are from. Compat: as upstream.
const (
	workers = 5
	manager = "endpointslice-controller.k8s.io"
)

// Controller keeps the slices of services.
type Controller struct {
	*loop.Loop[loop.Key]
	actor    *loop.Actor
	services listers.ServiceLister
	pods     listers.PodLister
	nodes    listers.NodeLister
	slices   discoverylisters.EndpointSliceLister
	triggers *endpointutil.TriggerTimeTracker
	// zones is how nodes are spread, and what has been made of it.
	zones *topologycache.TopologyCache
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	core, discovery := a.Informers.Core().V1(), a.Informers.Discovery().V1()
	c := &Controller{
		actor: a, services: core.Services().Lister(), pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), slices: discovery.EndpointSlices().Lister(),
		triggers: endpointutil.NewTriggerTimeTracker(), zones: topologycache.NewTopologyCache(),
	}
	c.Loop = loop.New(a, "endpoint_slice", workers, c.reconcile)
	loop.Watch(c.Loop, "services", core.Services().Informer(), loop.Self[*corev1.Service])
	loop.Watch(c.Loop, "pods", core.Pods().Informer(), services.Concerned(c.services))
	loop.Watch(c.Loop, "nodes", core.Nodes().Informer(), moved)
	loop.Watch(c.Loop, "endpointslices.discovery.k8s.io", discovery.EndpointSlices().Informer(), services.SlicesConcerned(manager))
	return c
}

// nodes is the key under which the spread of nodes is looked at. No service has
// it.
var nodes = loop.Key{}

// moved concerns the spread of nodes when one comes, goes, is ready or not, or is
// in another zone.
func moved(before, after *corev1.Node) []loop.Key {
	if before != nil && after != nil && ready(before) == ready(after) && before.Labels[corev1.LabelTopologyZone] == after.Labels[corev1.LabelTopologyZone] {
		return nil
	}
	return []loop.Key{nodes}
}

// spread takes note of where nodes are, and looks at services whose endpoints
// are no longer shared out among zones as they should be.
func (c *Controller) spread() {
	all, _ := c.nodes.List(labels.Everything()) // a cache has no errors
	c.zones.SetNodes(logr.Discard(), all)
	for _, key := range c.zones.GetOverloadedServices() {
		if name, err := cache.ParseObjectName(key); err == nil {
			c.Add(name)
		}
	}
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	if key == nodes {
		c.spread()
		return 0, nil
	}
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if err != nil {
		c.triggers.DeleteService(key.Namespace, key.Name)
		return 0, nil //nolint:nilerr // it is not there: a cache has no other error
	}
	if !services.Selects(service) {
		return 0, nil
	}
	pods := services.Pods(c.pods, service)
	p, missing := plan(Observed{
		Service: service, Pods: pods, Slices: services.Slices(c.slices, key, manager), Nodes: c.nodes, Zones: c.zones,
		Changed: c.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, pods),
	})
	err = errors.Join(missing, p.Write(ctx, c.actor.Client, "Service", service))
	for _, e := range p.Events {
		c.actor.Events.Event(service, e.Type, e.Reason, e.Message)
	}
	if err != nil {
		c.actor.Events.Eventf(service, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices", "Error updating Endpoint Slices for Service %s/%s: %v", key.Namespace, key.Name, err)
	}
	return 0, err
}
