// Package view is how admission looks at the plane that a request writes to:
// objects as of the last acknowledged write, read in place.
//
// What a view returns is shared and must not be changed. Nothing of it is old:
// a write that was acknowledged before the call is seen by it. So a policy,
// quota or configuration holds from the moment its own write has returned.
package view

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Objects are those of the plane that the context's request is for.
type Objects interface {
	// Plane names the plane.
	Plane(ctx context.Context) string
	// Revision changes whenever an object of the resource does.
	Revision(ctx context.Context, resource schema.GroupResource) uint64
	// Get returns an object in the version that is asked for; an API error
	// that says NotFound when there is none, or no such resource.
	Get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (runtime.Object, error)
	// List yields the objects of a namespace, or all when it is empty, in the
	// order of their keys, and at most one error, as its last element.
	List(ctx context.Context, resource schema.GroupVersionResource, namespace string) iter.Seq2[runtime.Object, error]
}

// Get is Objects.Get for a known type.
func Get[T runtime.Object](ctx context.Context, objects Objects, resource schema.GroupVersionResource, namespace, name string) (T, error) {
	var none T
	obj, err := objects.Get(ctx, resource, namespace, name)
	if err != nil {
		return none, err
	}
	return as[T](obj, resource)
}

// List is Objects.List for a known type.
func List[T runtime.Object](ctx context.Context, objects Objects, resource schema.GroupVersionResource, namespace string) ([]T, error) {
	var all []T
	for obj, err := range objects.List(ctx, resource, namespace) {
		if err != nil {
			return nil, err
		}
		typed, err := as[T](obj, resource)
		if err != nil {
			return nil, err
		}
		all = append(all, typed)
	}
	return all, nil
}

func as[T runtime.Object](obj runtime.Object, resource schema.GroupVersionResource) (T, error) {
	typed, ok := obj.(T)
	if !ok {
		return typed, fmt.Errorf("%v is a %T", resource, obj)
	}
	return typed, nil
}

// maxPlanes bounds for how many planes a Memo keeps what it has made.
const maxPlanes = 64

// Memo keeps what is made from the objects of some resources until one of them
// changes. Its zero value is empty.
type Memo[T any] struct {
	mu   sync.Mutex // guards made; held while something is made
	made map[string]memo[T]
}

type memo[T any] struct {
	revisions [maxMemoResources]uint64
	value     T
}

// maxMemoResources is from how many resources a memo can be made.
const maxMemoResources = 4

// Of returns what build makes of the plane, made again only when a resource has
// changed since. What build returns with an error is not kept.
func (m *Memo[T]) Of(ctx context.Context, objects Objects, resources []schema.GroupResource, build func() (T, error)) (T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Before build reads, so that what changes meanwhile is seen the next time.
	var now [maxMemoResources]uint64
	for i, r := range resources {
		now[i] = objects.Revision(ctx, r)
	}
	plane := objects.Plane(ctx)
	if have, ok := m.made[plane]; ok && have.revisions == now {
		return have.value, nil
	}
	value, err := build()
	if err != nil {
		return value, err
	}
	if m.made == nil || len(m.made) >= maxPlanes {
		m.made = map[string]memo[T]{}
	}
	m.made[plane] = memo[T]{now, value}
	return value, nil
}
