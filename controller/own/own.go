// Package own answers which objects belong to a controlling object, and has it
// adopt or release those that its selector says.
//
// In come an owner and objects from a cache; out come those that are the
// owner's now. An object belongs to whom its controller reference names.
// Orphans that the owner selects are adopted; what it controls and no longer
// selects is released. Nothing is adopted by an owner that is being deleted,
// which is asked of the API and not of a cache.
package own

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// index is the name of the index by owner.
const index = "setpoint.dev/owner"

// Index has an informer's objects found by their owner. It may be asked for
// again.
func Index(informer cache.SharedIndexInformer) cache.Indexer {
	if _, has := informer.GetIndexer().GetIndexers()[index]; !has {
		err := informer.AddIndexers(cache.Indexers{index: func(obj any) ([]string, error) {
			m, ok := obj.(metav1.Object)
			if !ok {
				return nil, nil
			}
			return []string{ownerOf(m)}, nil
		}})
		if err != nil {
			panic(fmt.Sprintf("index by owner: %v", err)) // the informer has been stopped, and so have we
		}
	}
	return informer.GetIndexer()
}

// ownerOf is the UID of an object's controller. Orphans are found under their
// namespace.
func ownerOf(obj metav1.Object) string {
	if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
		return string(ref.UID)
	}
	return "orphans of " + obj.GetNamespace()
}

// By returns what owner controls.
func By[T metav1.Object](in cache.Indexer, owner types.UID) []T { return lookup[T](in, string(owner)) }

// Orphans returns what nobody controls in a namespace.
func Orphans[T metav1.Object](in cache.Indexer, namespace string) []T {
	return lookup[T](in, "orphans of "+namespace)
}

func lookup[T metav1.Object](in cache.Indexer, value string) []T {
	found, err := in.ByIndex(index, value)
	if err != nil {
		panic(fmt.Sprintf("index by owner: %v", err)) // Index has not been asked for
	}
	of := make([]T, 0, len(found))
	for _, obj := range found {
		if t, ok := obj.(T); ok {
			of = append(of, t)
		}
	}
	return of
}

// Owner is who claims objects.
type Owner struct {
	metav1.Object
	Kind schema.GroupVersionKind
	// Fresh reads the owner from the API.
	Fresh func(ctx context.Context) (metav1.Object, error)
	// Patch changes an object by a strategic merge patch.
	Patch func(ctx context.Context, namespace, name string, patch []byte) error
	// Finalizers are given to objects that are adopted, and taken from those that
	// are released.
	Finalizers []string
}

// Claimed returns what is the owner's of all that an index by owner has: what it
// controls and selects, and orphans that it selects.
func Claimed[T metav1.Object](ctx context.Context, in cache.Indexer, o Owner, selector labels.Selector) ([]T, error) {
	all := append(By[T](in, o.GetUID()), Orphans[T](in, o.GetNamespace())...)
	return Claim(ctx, o, all, func(obj T) bool { return selector.Matches(labels.Set(obj.GetLabels())) })
}

// Claim returns those of objs that are the owner's, after it has adopted the
// orphans that it selects and released what it no longer selects. With an error
// the rest has been claimed nevertheless.
func Claim[T metav1.Object](ctx context.Context, o Owner, objs []T, selects func(T) bool) ([]T, error) {
	alive := sync.OnceValue(func() error { return o.alive(ctx) })
	var claimed []T
	var errs []error
	for _, obj := range objs {
		mine, err := o.claim(ctx, obj, selects(obj), alive)
		if err != nil {
			errs = append(errs, err)
		}
		if mine {
			claimed = append(claimed, obj)
		}
	}
	return claimed, errors.Join(errs...)
}

func (o Owner) claim(ctx context.Context, obj metav1.Object, selected bool, alive func() error) (bool, error) {
	ref := metav1.GetControllerOfNoCopy(obj)
	switch {
	case ref != nil && ref.UID != o.GetUID():
		return false, nil
	case ref != nil && selected:
		return true, nil
	case o.GetDeletionTimestamp() != nil:
		return false, nil
	case ref != nil:
		return false, o.release(ctx, obj)
	case !selected || obj.GetDeletionTimestamp() != nil || obj.GetNamespace() != o.GetNamespace():
		return false, nil
	}
	return o.adopt(ctx, obj, alive)
}

// alive says that the owner is still what the cache says.
func (o Owner) alive(ctx context.Context) error {
	fresh, err := o.Fresh(ctx)
	if err != nil {
		return err
	}
	if fresh.GetUID() != o.GetUID() {
		return fmt.Errorf("original %s %s/%s is gone: got uid %s, wanted %s", o.Kind.Kind, o.GetNamespace(), o.GetName(), fresh.GetUID(), o.GetUID())
	}
	if at := fresh.GetDeletionTimestamp(); at != nil {
		return fmt.Errorf("%s/%s has just been deleted at %v", o.GetNamespace(), o.GetName(), at)
	}
	return nil
}

// patched is the part of an object that claiming it changes. The UID makes the
// server refuse the patch of another object of that name.
type patched struct {
	Metadata struct {
		UID              types.UID `json:"uid"`
		OwnerReferences  []any     `json:"ownerReferences"`
		Finalizers       []string  `json:"finalizers,omitempty"`
		RemoveFinalizers []string  `json:"$deleteFromPrimitiveList/finalizers,omitempty"`
	} `json:"metadata"`
}

func (o Owner) adopt(ctx context.Context, obj metav1.Object, alive func() error) (bool, error) {
	if err := alive(); err != nil {
		return false, fmt.Errorf("can't adopt %s/%s (%s): %w", obj.GetNamespace(), obj.GetName(), obj.GetUID(), err)
	}
	var p patched
	p.Metadata.UID, p.Metadata.Finalizers = obj.GetUID(), o.Finalizers
	p.Metadata.OwnerReferences = []any{metav1.NewControllerRef(o, o.Kind)}
	err := o.patch(ctx, obj, p)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func (o Owner) release(ctx context.Context, obj metav1.Object) error {
	var p patched
	p.Metadata.UID, p.Metadata.RemoveFinalizers = obj.GetUID(), o.Finalizers
	p.Metadata.OwnerReferences = []any{map[string]any{"$patch": "delete", "uid": o.GetUID()}}
	err := o.patch(ctx, obj, p)
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil // it is gone, or another has its name
	}
	return err
}

func (o Owner) patch(ctx context.Context, obj metav1.Object, p patched) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return o.Patch(ctx, obj.GetNamespace(), obj.GetName(), body)
}
