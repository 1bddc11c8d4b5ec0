package quota

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/controller/loop"
)

// kinds watches the resources that quotas count, and no others, for objects that
// go. Pods, services and claims of volumes are watched elsewhere.
type kinds struct {
	actor *loop.Actor
	gone  func(namespace string, of schema.GroupResource) // "" stands for all namespaces

	mu       sync.Mutex // guards the fields below
	ctx      context.Context
	mapper   *restmapper.DeferredDiscoveryRESTMapper
	watching map[schema.GroupVersionResource]context.CancelFunc
	running  sync.WaitGroup
}

func newKinds(a *loop.Actor, gone func(namespace string, of schema.GroupResource)) *kinds {
	return &kinds{actor: a, gone: gone, watching: map[schema.GroupVersionResource]context.CancelFunc{}}
}

// begin has watches live until ctx ends.
func (k *kinds) begin(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ctx = ctx
}

// wait returns after all watches have ended.
func (k *kinds) wait() { k.running.Wait() }

// follow returns resources with the versions that are served, and watches them
// from now on. Those that nobody serves are left out and unknown.
func (k *kinds) follow(resources []schema.GroupResource) (served []schema.GroupVersionResource, unknown bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range resources {
		of, err := k.resourceLocked(r)
		if err != nil {
			unknown = true
			continue
		}
		served = append(served, of)
		if _, elsewhere := wholes[r]; (!elsewhere || of == claims) && k.watching[of] == nil {
			ctx, end := context.WithCancel(k.ctx)
			k.watching[of] = end
			k.running.Go(func() { k.watch(ctx, of) })
		}
	}
	return served, unknown
}

// keep ends the watches of resources that are not named.
func (k *kinds) keep(named map[schema.GroupResource]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for of, end := range k.watching {
		if !named[of.GroupResource()] {
			end()
			delete(k.watching, of)
		}
	}
}

// resourceLocked is a resource with the version that is preferred.
func (k *kinds) resourceLocked(of schema.GroupResource) (schema.GroupVersionResource, error) {
	if k.mapper == nil {
		d, err := k.actor.API.Discovery()
		if err != nil {
			return schema.GroupVersionResource{}, err
		}
		k.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d))
	}
	found, err := k.mapper.ResourceFor(of.WithVersion(""))
	if meta.IsNoMatchError(err) {
		k.mapper.Reset() // a kind that has come since
		found, err = k.mapper.ResourceFor(of.WithVersion(""))
	}
	return found, err
}

// watch tells of objects of a resource that go.
func (k *kinds) watch(ctx context.Context, of schema.GroupVersionResource) {
	api, err := k.actor.API.Metadata()
	if err != nil {
		return
	}
	objects := api.Resource(of)
	cache.NewReflectorWithOptions(k.source(objects), &metav1.PartialObjectMetadata{}, &ends{k: k, of: of.GroupResource()},
		cache.ReflectorOptions{Name: "quota/" + of.Resource}).RunWithContext(client.Uninitialized(k.actor.As(ctx)))
}

func (k *kinds) source(objects metadata.ResourceInterface) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return objects.Watch(ctx, o)
		},
	}
}

// ends is a cache.ReflectorStore that keeps nothing.
type ends struct {
	k  *kinds
	of schema.GroupResource
}

// Add implements cache.ReflectorStore. What is made has been charged.
func (e *ends) Add(any) error { return nil }

// Update implements cache.ReflectorStore.
func (e *ends) Update(any) error { return nil }

// Delete implements cache.ReflectorStore.
func (e *ends) Delete(obj any) error {
	m, err := meta.Accessor(obj)
	if err == nil {
		e.k.gone(m.GetNamespace(), e.of)
	}
	return err
}

// Replace implements cache.ReflectorStore. What went since the last list is not
// told.
func (e *ends) Replace([]any, string) error {
	e.k.gone("", e.of)
	return nil
}

// Resync implements cache.ReflectorStore.
func (e *ends) Resync() error { return nil }
