package garbage

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/client"
)

// kinds watches every kind that there is, and knows which resource a kind is.
type kinds struct {
	discovery discovery.DiscoveryInterface
	client    metadata.Interface
	graph     *graph
	logger    *slog.Logger
	changed   chan struct{} // told that there may be other kinds
	ready     chan struct{} // closed when everything there was at the start is known

	mu       sync.Mutex // guards the fields below
	watching map[schema.GroupVersionResource]*source
	mapper   meta.RESTMapper
}

func newKinds(d discovery.DiscoveryInterface, c metadata.Interface, g *graph, logger *slog.Logger) *kinds {
	return &kinds{
		discovery: d, client: c, graph: g, logger: logger, changed: make(chan struct{}, 1), ready: make(chan struct{}),
		watching: map[schema.GroupVersionResource]*source{},
	}
}

// How long after a definition has changed kinds are looked up, so that many
// changes are looked up once, and how long after a look-up that failed in part.
const (
	settle     = 100 * time.Millisecond
	retryAfter = 5 * time.Second
)

// run watches until ctx ends.
func (k *kinds) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for first := true; ; first = false {
		err := k.follow(ctx, &running)
		if err != nil {
			k.logger.Debug("not all kinds are known", "error", err)
		}
		if first {
			running.Go(func() { k.complete(ctx) })
		}
		var retry <-chan time.Time
		if err != nil {
			retry = time.After(retryAfter)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
		case <-k.changed:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(settle):
			}
		}
	}
}

// follow starts to watch kinds that are new, and ends the watches of kinds that
// are gone. With an error it has done so for what is known.
func (k *kinds) follow(ctx context.Context, running *sync.WaitGroup) error {
	groups, groupsErr := restmapper.GetAPIGroupResources(k.discovery)
	lists, listsErr := k.discovery.ServerPreferredResources()
	now := deletable(lists)
	k.mu.Lock()
	defer k.mu.Unlock()
	if groupsErr == nil {
		k.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	}
	for resource, kind := range now {
		if k.watching[resource] == nil {
			s := &source{resource: resource, kind: kind, graph: k.graph, known: map[types.UID]struct{}{}, filled: make(chan struct{})}
			if definesKinds(resource) {
				s.changed = k.changed
			}
			of, end := context.WithCancel(ctx)
			s.end = end
			k.watching[resource] = s
			running.Go(func() { k.watch(of, s) })
		}
	}
	if groupsErr != nil || listsErr != nil {
		return fmt.Errorf("discovery: %w, %w", groupsErr, listsErr)
	}
	for resource, s := range k.watching {
		if now[resource] == "" {
			s.end()
			delete(k.watching, resource)
		}
	}
	return nil
}

// definesKinds says that objects of a resource make kinds come and go.
func definesKinds(r schema.GroupVersionResource) bool {
	return r.Resource == "customresourcedefinitions" || r.Resource == "apiservices"
}

// deletable are the resources that can be watched and whose objects can be
// deleted, with their kinds. Compat: events are nobody's dependents.
func deletable(lists []*metav1.APIResourceList) map[schema.GroupVersionResource]string {
	verbs := discovery.SupportsAllVerbs{Verbs: []string{"delete", "list", "watch"}}
	all := map[schema.GroupVersionResource]string{}
	for _, list := range discovery.FilteredBy(verbs, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			if r.Name != "events" || gv.Group != "" && gv.Group != "events.k8s.io" {
				all[gv.WithResource(r.Name)] = r.Kind
			}
		}
	}
	return all
}

// watch keeps the graph up to date with one resource.
func (k *kinds) watch(ctx context.Context, s *source) {
	ctx = client.Uninitialized(ctx)
	objects := k.client.Resource(s.resource)
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return objects.Watch(ctx, o)
		},
	}, &metav1.PartialObjectMetadata{}, s, cache.ReflectorOptions{Name: "garbage/" + s.resource.Resource})
	reflector.RunWithContext(ctx)
	// What is left of a kind that is gone is asked about.
	for uid := range s.known {
		k.graph.look(uid)
	}
}

// fillWithin is how long the first lists of all kinds may take. What is not known
// by then, such as objects of a server that is down, is asked of the API.
const fillWithin = 10 * time.Second

// complete waits until all resources that were found first are known.
func (k *kinds) complete(ctx context.Context) {
	k.mu.Lock()
	var sources []*source
	for _, s := range k.watching {
		sources = append(sources, s)
	}
	k.mu.Unlock()
	late := time.After(fillWithin)
	for _, s := range sources {
		select {
		case <-s.filled:
			continue
		case <-late:
		case <-ctx.Done():
			return
		}
		break
	}
	k.graph.finish()
	close(k.ready)
}

// synced waits until everything there was at the start is known.
func (k *kinds) synced(ctx context.Context) error {
	select {
	case <-k.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// resourceOf is the resource that a reference is to.
func (k *kinds) resourceOf(ref metav1.OwnerReference) (schema.GroupVersionResource, bool, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mapper == nil {
		return schema.GroupVersionResource{}, false, fmt.Errorf("no kinds are known yet")
	}
	m, err := k.mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, gv.Version)
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	return m.Resource, m.Scope.Name() == meta.RESTScopeNameNamespace, nil
}

// kindOf is the kind of a resource.
func (k *kinds) kindOf(r schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mapper == nil {
		return schema.GroupVersionKind{}, fmt.Errorf("no kinds are known yet")
	}
	return k.mapper.KindFor(r)
}

// source passes what a reflector tells of one resource on to the graph. It is a
// cache.ReflectorStore, used by one goroutine.
type source struct {
	resource schema.GroupVersionResource
	kind     string
	graph    *graph
	end      context.CancelFunc
	changed  chan<- struct{} // nil unless its objects make kinds come and go
	known    map[types.UID]struct{}
	filled   chan struct{} // closed when the first list has come
	full     bool
}

// Add implements cache.ReflectorStore.
func (s *source) Add(obj any) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	s.known[m.GetUID()] = struct{}{}
	s.graph.put(nodeOf(s.resource, s.kind, m))
	s.tell()
	return nil
}

// Update implements cache.ReflectorStore.
func (s *source) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *source) Delete(obj any) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	delete(s.known, m.GetUID())
	s.graph.remove(m.GetUID())
	s.tell()
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *source) Replace(objs []any, _ string) error {
	now := map[types.UID]struct{}{}
	for _, obj := range objs {
		if m, err := meta.Accessor(obj); err == nil {
			now[m.GetUID()] = struct{}{}
			s.graph.put(nodeOf(s.resource, s.kind, m))
		}
	}
	for uid := range s.known {
		if _, still := now[uid]; !still {
			s.graph.remove(uid)
		}
	}
	s.known = now
	if !s.full {
		s.full = true
		close(s.filled)
		s.graph.recheck()
	}
	s.tell() // also the first time: a kind may have been defined since kinds were looked up
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *source) Resync() error { return nil }

func (s *source) tell() {
	if s.changed != nil {
		select {
		case s.changed <- struct{}{}:
		default: // told already
		}
	}
}
