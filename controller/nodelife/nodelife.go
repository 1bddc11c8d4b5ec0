// Package nodelife watches over nodes: one that says nothing for a while is of
// unknown state, and one that is not well is tainted, so that nothing new comes to
// it and, zone by zone at a measured pace, what is there leaves.
//
// In come nodes, their leases and the pods on them; out come conditions of nodes
// that have gone silent, taints that follow conditions, pods of silent nodes that
// are not ready, and events. plan.go decides about a node, zones.go about zones.
// What always holds:
//   - A node's silence is measured by this clock from what was seen here last, so
//     neither its clock nor a restart makes it silent.
//   - Where no node at all is heard, nobody is driven out: it is this side that
//     hears nothing.
//
// Taints drive pods out; the package eviction does it.
package nodelife

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/informers/coordination/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/node/topology"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/pods"
)

// Settings are the bounds of patience. Those at zero are upstream's.
type Settings struct {
	// Grace is how long a node may be silent, Startup how long one may that has
	// not said anything yet.
	Grace, Startup time.Duration
	// Rate is how many nodes of a zone are given up in a second, Reduced how many
	// of a large zone that is unhealthy: one of more than Large nodes.
	Rate, Reduced float64
	Large         int
	// Unhealthy is the part of a zone that has to be unwell for the zone to be so.
	Unhealthy float64
}

// Compat: these are upstream's.
var usual = Settings{Grace: 50 * time.Second, Startup: time.Minute, Rate: 0.1, Reduced: 0.01, Large: 50, Unhealthy: 0.55}

func (s Settings) orUsual() Settings {
	pick(&s.Grace, usual.Grace)
	pick(&s.Startup, usual.Startup)
	pick(&s.Rate, usual.Rate)
	pick(&s.Reduced, usual.Reduced)
	pick(&s.Large, usual.Large)
	pick(&s.Unhealthy, usual.Unhealthy)
	return s
}

func pick[T comparable](field *T, otherwise T) {
	var zero T
	if *field == zero {
		*field = otherwise
	}
}

// Compat: the pace is upstream's.
const (
	workers   = 8
	lookEvery = 5 * time.Second
)

// Controller watches over nodes.
type Controller struct {
	*loop.Loop[loop.Key]
	actor    *loop.Actor
	settings Settings
	nodes    listers.NodeLister
	pods     cache.Indexer
	zones    *zones

	mu    sync.Mutex // guards the field below
	heard map[string]heard
}

// New returns the controller.
func New(a *loop.Actor, s Settings) loop.Runner {
	nodes, podInformer := a.Informers.Core().V1().Nodes(), a.Informers.Core().V1().Pods().Informer()
	c := &Controller{actor: a, settings: s.orUsual(), nodes: nodes.Lister(), pods: pods.IndexByNode(podInformer), heard: map[string]heard{}}
	c.zones = &zones{settings: c.settings, given: map[string]time.Time{}}
	c.Loop = loop.New(a, "node_lifecycle_controller", workers, c.reconcile)
	leases := coordination.NewLeaseInformer(a.Client, corev1.NamespaceNodeLease, 0, cache.Indexers{})
	_ = leases.SetTransform(client.WithoutOwnership) // it has not been started
	c.Own(leases)
	loop.Watch(c.Loop, "leases.coordination.k8s.io", leases, c.renewed)
	loop.Watch(c.Loop, "nodes", nodes.Informer(), c.changed)
	loop.Watch(c.Loop, "pods", podInformer, c.placed)
	return c
}

// renewed takes note of a lease. Nothing else follows: the node is looked at
// when its time is over.
func (c *Controller) renewed(_, after *coordinationv1.Lease) []loop.Key {
	if after == nil || after.Spec.RenewTime == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.heard[after.Name]
	if h.renewed.Before(after.Spec.RenewTime.Time) {
		h.renewed, h.last = after.Spec.RenewTime.Time, time.Now()
		c.heard[after.Name] = h
	}
	return nil
}

// changed tells of nodes that come and go.
func (c *Controller) changed(before, after *corev1.Node) []loop.Key {
	switch {
	case before == nil:
		c.tell(after, "RegisteredNode", "Node "+after.Name+" event: Registered Node "+after.Name+" in Controller")
	case after == nil:
		c.tell(before, "RemovingNode", "Node "+before.Name+" event: Removing Node "+before.Name+" from Controller")
		c.mu.Lock()
		delete(c.heard, before.Name)
		c.mu.Unlock()
		return nil
	}
	return []loop.Key{loop.KeyOf(after)}
}

// placed is the node that a pod has come to, if there is something to say of it.
func (c *Controller) placed(before, after *corev1.Pod) []loop.Key {
	if after == nil || after.Spec.NodeName == "" || before != nil && before.Spec.NodeName != "" {
		return nil
	}
	n, err := c.nodes.Get(after.Spec.NodeName)
	if err != nil || statusOf(n, corev1.NodeReady) != corev1.ConditionUnknown {
		return nil
	}
	return []loop.Key{loop.KeyOf(n)}
}

func (c *Controller) tell(n *corev1.Node, reason, message string) {
	c.actor.Events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}, corev1.EventTypeNormal, reason, message)
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	n, err := c.nodes.Get(key.Name)
	if err != nil {
		return 0, nil //nolint:nilerr // it is not there
	}
	now := time.Now()
	seen := Observed{Node: n, Heard: c.listen(n, now), Pods: pods.On(c.pods, n.Name), Now: now, Settings: c.settings}
	p := c.decide(seen)
	return p.Again, c.act(ctx, n, p)
}

// decide plans, for one node that is not well at a time: if one is given up, the
// next has to wait.
func (c *Controller) decide(seen Observed) Plan {
	if !wrong(seen.Node) && !silent(seen) {
		return plan(seen)
	}
	c.zones.mu.Lock()
	defer c.zones.mu.Unlock()
	seen.AllSilent, seen.MayGiveUp, seen.Wait = c.zoneLocked(seen.Node, seen.Now)
	p := plan(seen)
	if p.GaveUp {
		c.zones.given[topology.GetZoneKey(seen.Node)] = seen.Now
	}
	return p
}

// listen takes note of what a node says of itself, and returns when it was heard
// last.
func (c *Controller) listen(n *corev1.Node, now time.Time) heard {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := listen(c.heard[n.Name], n, now)
	c.heard[n.Name] = h
	return h
}

// zoneLocked is what holds in a node's zone: that no node at all is heard, whether one
// may be given up now, and when that is to be asked again.
func (c *Controller) zoneLocked(n *corev1.Node, now time.Time) (allSilent, may bool, wait time.Duration) {
	all, _ := c.nodes.List(labels.Everything()) // a cache has no errors
	allSilent, ended := c.zones.lookLocked(all, c.unwell(now), now)
	if ended {
		// This side could hear nothing: everybody has another chance.
		c.mu.Lock()
		for name, h := range c.heard {
			h.last = now
			c.heard[name] = h
		}
		c.mu.Unlock()
	}
	may, wait = c.zones.mayLocked(topology.GetZoneKey(n), now)
	return allSilent, may && !allSilent, wait
}

// unwell says which nodes are not ready, or have just gone silent.
func (c *Controller) unwell(now time.Time) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		h, known := c.heard[n.Name]
		return wrong(n) || known && h.spoke && silent(Observed{Node: n, Heard: h, Now: now, Settings: c.settings})
	}
}

// act writes what is planned. What fails is planned anew.
func (c *Controller) act(ctx context.Context, n *corev1.Node, p Plan) error {
	nodes := c.actor.Client.CoreV1().Nodes()
	if p.Conditions != nil {
		changed := n.DeepCopy()
		changed.Status.Conditions = p.Conditions
		updated, err := nodes.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if err != nil {
			return gone(err)
		}
		n = updated
		if p.Lost {
			c.tell(n, "NodeNotReady", "Node "+n.Name+" status is now: NodeNotReady")
		}
	}
	if p.Taints != nil || p.Labels != nil {
		patch, err := json.Marshal(change{
			Metadata: metadata{ResourceVersion: n.ResourceVersion, Labels: p.Labels}, Spec: spec{Taints: p.Taints},
		})
		if err != nil {
			return err
		}
		if _, err := nodes.Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return gone(err)
		}
	}
	return c.unready(ctx, p.Unready)
}

// change is a merge patch of a node. Nil taints are left alone.
type change struct {
	Metadata metadata `json:"metadata"`
	Spec     spec     `json:"spec,omitzero"`
}

type metadata struct {
	ResourceVersion string            `json:"resourceVersion"`
	Labels          map[string]string `json:"labels,omitempty"`
}

type spec struct {
	Taints *[]corev1.Taint `json:"taints,omitempty"`
}

// unready has pods not be ready.
func (c *Controller) unready(ctx context.Context, some []*corev1.Pod) error {
	var failed []error
	for _, p := range some {
		if _, err := c.actor.Client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
			failed = append(failed, gone(err))
			continue
		}
		c.actor.Events.Event(p, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	return errors.Join(failed...)
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
