package crd

import (
	"context"
	"fmt"
	"slices"
	"time"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"setpoint.dev/setpoint/kinds"
)

// Hands change what is stored, in the name of the control plane itself.
type Hands interface {
	// Amend changes one object, of the internal type, as an update of it or of
	// one of its subresources does.
	Amend(ctx context.Context, r *kinds.Resource, subresource, namespace, name string, change func(obj runtime.Object) error) error
	// DeleteAll begins the deletion of every object of a kind, and returns how
	// many are still there.
	DeleteAll(ctx context.Context, r *kinds.Resource) (left int, err error)
	// Stored is the stored object of the kind and name of another, of an
	// external type; nil when there is none.
	Stored(ctx context.Context, external runtime.Object) (runtime.Object, error)
	// Add stores an object of an external type, unless there is one of its name.
	Add(ctx context.Context, external runtime.Object) error
	// Drop removes an object that Stored has returned, unless it has changed
	// since.
	Drop(ctx context.Context, stored runtime.Object) error
}

// How long the registry waits for objects that are held by finalizers, and
// after something went wrong.
const (
	removeFirst = 50 * time.Millisecond
	removeMost  = 5 * time.Second
)

// Run looks after definitions until ctx ends: one that is deleted goes when its
// objects have gone, one whose names were taken gets them when they are free,
// and versions that nobody serves any more lose their APIServices.
func (r *Registry) Run(ctx context.Context, hands Hands) error {
	wait := removeFirst
	for {
		r.Kinds()
		seen := r.made.Load()
		pending := false
		seen.restless.Scan(func(name string, d *definition) bool {
			done, err := r.tend(ctx, d, hands)
			if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				r.log.Error("a custom resource definition is not settled yet", "name", name, "error", err)
			}
			pending = pending || !done || err != nil
			return true
		})
		if err := r.register(ctx, hands); err != nil {
			pending = true
			if ctx.Err() == nil {
				r.log.Error("the APIServices of custom resources are not settled yet", "error", err)
			}
		}
		if r.source.Revision() != seen.revision {
			wait = removeFirst
			continue
		}
		again, cancel := ctx, context.CancelFunc(func() {})
		if pending {
			again, cancel = context.WithTimeout(ctx, wait)
			wait = min(2*wait, removeMost)
		}
		err := r.source.Wait(again, seen.revision)
		late := again.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // that it ends is no error
		case err == nil:
			wait = removeFirst
		case !late:
			return err
		}
	}
}

// tend does what a definition waits for. It reports whether there is nothing
// left to wait for but another change of definitions.
func (r *Registry) tend(ctx context.Context, d *definition, hands Hands) (done bool, err error) {
	self := r.builtin.Find(apiextensions.GroupName, "v1", "customresourcedefinitions")
	if d.head.isDeleted() {
		return r.remove(ctx, self, d, hands)
	}
	// An update asks for the names again, and is none when they are still
	// taken.
	return true, hands.Amend(ctx, self, "", "", d.stored.Name, func(runtime.Object) error { return nil })
}

// waits says that a definition waits for its objects to go, or for names that
// were taken.
func (h *head) waits() bool {
	if h.isDeleted() {
		return slices.Contains(h.Metadata.Finalizers, apiextensions.CustomResourceCleanupFinalizer)
	}
	return !h.is(apiextensions.NamesAccepted)
}

func (h *head) isDeleted() bool { return h.Metadata.DeletionTimestamp != nil }

func (r *Registry) remove(ctx context.Context, self *kinds.Resource, d *definition, hands Hands) (bool, error) {
	ended := condition(internal.Terminating, internal.ConditionFalse, "InstanceDeletionCompleted", "removed all instances")
	if d.stores == nil {
		ended = condition(internal.Terminating, internal.ConditionFalse, "NeverEstablished", "resource was never established")
	} else {
		left, err := hands.DeleteAll(ctx, d.stores)
		if err != nil || left > 0 {
			said := condition(internal.Terminating, internal.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress")
			if err != nil {
				said = condition(internal.Terminating, internal.ConditionTrue, "InstanceDeletionFailed", fmt.Sprintf("could not issue all deletes: %v", err))
			}
			return false, hands.Amend(ctx, self, "status", "", d.stored.Name, say(said, false))
		}
	}
	return true, hands.Amend(ctx, self, "status", "", d.stored.Name, say(ended, true))
}

// say changes what a definition says of itself, and lets it go.
func say(c internal.CustomResourceDefinitionCondition, release bool) func(runtime.Object) error {
	return func(obj runtime.Object) error {
		crd, ok := obj.(*internal.CustomResourceDefinition)
		if !ok {
			return fmt.Errorf("%T is not a custom resource definition", obj)
		}
		internal.SetCRDCondition(crd, c)
		if release {
			internal.CRDRemoveFinalizer(crd, internal.CustomResourceCleanupFinalizer)
		}
		return nil
	}
}
