// Package garbage deletes objects whose owners are gone, and carries out what a
// deletion was asked to do with dependents.
//
// In come the metadata of all objects of all kinds that can be listed, watched
// and deleted, events aside; out come deletions, owner references taken off,
// and finalizers taken off. What always holds:
//   - An object is deleted only after the API has said that none of its owners
//     exists, on condition that it is still the object that was looked at.
//   - With the finalizer foregroundDeletion an object waits for the dependents
//     that block it; with the finalizer orphan its dependents are set free first.
//   - An owner is who the reference says: kind, name and UID, in the dependent's
//     namespace or in none. A reference to an owner in another namespace is told
//     in an event and is to nobody.
//
// Kinds come and go with their definitions; what is watched follows discovery.
package garbage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"setpoint.dev/setpoint/controller/loop"
)

// workers is how many objects are looked at at once. Compat: as upstream.
const workers = 20

// askAgain is how often the API is asked about owners that no watch tells of,
// such as those of a kind that cannot be watched.
const askAgain = 30 * time.Second

// Controller collects garbage.
type Controller struct {
	loop   *loop.Loop[types.UID]
	actor  *loop.Actor
	graph  *graph
	kinds  *kinds
	client metadata.Interface
}

// New returns the garbage collector.
func New(a *loop.Actor) loop.Runner { return &Controller{actor: a} }

// Run implements loop.Runner.
func (c *Controller) Run(ctx context.Context) error {
	var err error
	if c.client, err = c.actor.API.Metadata(); err != nil {
		return err
	}
	discovery, err := c.actor.API.Discovery()
	if err != nil {
		return err
	}
	c.loop = loop.New(c.actor, "garbage_collector_attempt_to_delete", workers, c.reconcile)
	c.graph = newGraph(c.loop.Add, c.misplaced)
	c.kinds = newKinds(discovery, c.client, c.graph, c.actor.Logger)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.kinds.run(c.actor.As(ctx)) })
	g.Go(func() error {
		_ = c.kinds.synced(ctx) // it fails when ctx has ended, and then the loop ends at once, with its queue
		return c.loop.Run(ctx)
	})
	return g.Wait()
}

// misplaced tells a dependent that its owner is in another namespace.
func (c *Controller) misplaced(n node, ref metav1.OwnerReference) {
	kind, err := c.kinds.kindOf(n.resource)
	if err != nil {
		return // it is not served any more
	}
	about := &corev1.ObjectReference{
		Kind: kind.Kind, APIVersion: kind.GroupVersion().String(), Namespace: n.namespace, Name: n.name, UID: n.uid,
	}
	owner := fmt.Sprintf("[%s/%s, namespace: %s, name: %s, uid: %s]", ref.APIVersion, ref.Kind, n.namespace, ref.Name, ref.UID)
	c.actor.Events.Eventf(about, corev1.EventTypeWarning, "OwnerRefInvalidNamespace", "ownerRef %s does not exist in namespace %q", owner, n.namespace)
}

// reconcile looks at one object.
func (c *Controller) reconcile(ctx context.Context, uid types.UID) (time.Duration, error) {
	n, known := c.graph.get(uid)
	if !known {
		return 0, nil
	}
	if n.deleting && !n.orphans && !n.foreground {
		return 0, nil // it is going, and its dependents are looked at when it has gone
	}
	live, err := c.resource(n).Get(ctx, n.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.UID != uid {
		c.graph.remove(uid) // the watch has missed, or will tell, that it is gone
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	switch {
	case n.deleting && n.orphans:
		return 0, c.orphan(ctx, n, live)
	case n.deleting:
		return 0, c.foreground(ctx, n, live)
	case len(live.OwnerReferences) == 0:
		return 0, nil
	}
	owners, err := c.classify(ctx, n, live.OwnerReferences)
	if errors.Is(err, errNamespacedOwner) {
		return 0, nil // nothing that is tried again will help
	}
	if err != nil {
		return 0, err
	}
	var again time.Duration
	if !c.graph.knows(owners.solid) {
		again = askAgain
	}
	return again, c.act(ctx, n, live, plan(live, owners, c.graph.dependents(uid)))
}

func (c *Controller) resource(n node) metadata.ResourceInterface {
	return c.client.Resource(n.resource).Namespace(n.namespace)
}

// errNamespacedOwner is of an object outside namespaces that names an owner
// inside one.
var errNamespacedOwner = errors.New("cluster-scoped objects cannot refer to namespaced owners")

// classify asks the API about owners.
func (c *Controller) classify(ctx context.Context, n node, refs []metav1.OwnerReference) (owners, error) {
	var o owners
	for _, ref := range refs {
		resource, namespaced, err := c.kinds.resourceOf(ref)
		if err != nil {
			return o, err
		}
		if namespaced && n.namespace == "" {
			return o, errNamespacedOwner
		}
		in := ""
		if namespaced {
			in = n.namespace
		}
		owner, err := c.client.Resource(resource).Namespace(in).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && owner.UID != ref.UID:
			o.gone = append(o.gone, ref)
		case err != nil:
			return o, err
		case owner.DeletionTimestamp != nil && has(owner.Finalizers, metav1.FinalizerDeleteDependents):
			o.waiting = append(o.waiting, ref)
		default:
			o.solid = append(o.solid, ref)
		}
	}
	return o, nil
}

// act does to an object what is planned.
func (c *Controller) act(ctx context.Context, n node, live *metav1.PartialObjectMetadata, p Plan) error {
	if p.Owners != nil {
		err := c.patch(ctx, n, live, "ownerReferences", *p.Owners)
		if err != nil || p.Delete == "" {
			return err
		}
		if live, err = c.resource(n).Get(ctx, n.name, metav1.GetOptions{}); err != nil {
			return gone(err)
		}
	}
	if p.Delete == "" {
		return nil
	}
	err := c.resource(n).Delete(ctx, n.name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion},
		PropagationPolicy: &p.Delete,
	})
	return gone(err)
}

// gone takes it for done when there is nothing left to do it to.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// foreground lets go of an object once no dependent blocks it, and has those
// that do looked at.
func (c *Controller) foreground(ctx context.Context, n node, live *metav1.PartialObjectMetadata) error {
	blocking := c.graph.blocking(n.uid)
	if len(blocking) == 0 {
		return c.unfinalize(ctx, n, live, metav1.FinalizerDeleteDependents)
	}
	for _, d := range blocking {
		if !d.deleting {
			c.loop.Add(d.uid)
		}
	}
	return nil
}

// orphan sets the dependents of an object free, and then lets go of it.
func (c *Controller) orphan(ctx context.Context, n node, live *metav1.PartialObjectMetadata) error {
	var g errgroup.Group
	g.SetLimit(workers)
	for _, d := range c.graph.dependents(n.uid) {
		g.Go(func() error { return c.free(ctx, d, n.uid) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return c.unfinalize(ctx, n, live, metav1.FinalizerOrphanDependents)
}

// free takes an owner off a dependent.
func (c *Controller) free(ctx context.Context, d node, owner types.UID) error {
	live, err := c.resource(d).Get(ctx, d.name, metav1.GetOptions{})
	if err != nil || live.UID != d.uid {
		return gone(err)
	}
	kept := without(live.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == owner })
	if len(kept) == len(live.OwnerReferences) {
		return nil
	}
	return c.patch(ctx, d, live, "ownerReferences", kept)
}

// unfinalize takes a finalizer off an object.
func (c *Controller) unfinalize(ctx context.Context, n node, live *metav1.PartialObjectMetadata, finalizer string) error {
	kept := without(live.Finalizers, func(f string) bool { return f == finalizer })
	if len(kept) == len(live.Finalizers) {
		return nil
	}
	return c.patch(ctx, n, live, "finalizers", kept)
}
