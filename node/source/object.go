package source

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// minWatch is how long a watch lasts at least. Compat: it is a kubelet's.
const minWatch = 30 * time.Minute

// again is the pause after a watch has failed. It begins short: the server may
// hear of a pod, and so of what its node may read, a moment after the node does.
func again() *wait.Backoff {
	return &wait.Backoff{Duration: 50 * time.Millisecond, Cap: 30 * time.Second, Steps: 12, Factor: 2, Jitter: 1}
}

// object is one object that is watched. It is its own store.
type object struct {
	stop    context.CancelFunc
	changed func()
	users   map[types.UID]bool // guarded by the source

	// known is closed when the first answer is there.
	known chan struct{}
	once  sync.Once

	mu   sync.Mutex // guards held
	held runtime.Object
}

// watchLocked follows what ref names until the object is stopped.
func (s *Source) watchLocked(ref reference) *object {
	ctx, stop := context.WithCancel(s.ctx)
	o := &object{stop: stop, users: map[types.UID]bool{}, known: make(chan struct{})}
	o.changed = func() {
		if s.cfg.Changed != nil {
			s.cfg.Changed(s.users(ref))
		}
	}
	lw, expected := s.lister(ref)
	logger := logr.FromSlogHandler(s.cfg.Logger.Handler())
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.cfg.Client), expected, o,
		cache.ReflectorOptions{Name: ref.String(), MinWatchTimeout: minWatch, Backoff: again(), Logger: &logger})
	if ctx.Err() == nil {
		s.alive.Go(func() { reflector.RunWithContext(ctx) })
	}
	return o
}

// lister lists and watches one object by its name, which is all a node may do.
func (s *Source) lister(ref reference) (*cache.ListWatch, runtime.Object) {
	selector := fields.OneTermEqualSelector("metadata.name", ref.name).String()
	core := s.cfg.Client.CoreV1()
	if ref.resource == secrets {
		return &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				return core.Secrets(ref.namespace).List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = selector
				return core.Secrets(ref.namespace).Watch(ctx, o)
			},
		}, &corev1.Secret{}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return core.ConfigMaps(ref.namespace).List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return core.ConfigMaps(ref.namespace).Watch(ctx, o)
		},
	}, &corev1.ConfigMap{}
}

// now returns the object, or nil when there is none.
func (o *object) now() runtime.Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held
}

// set takes a new state, and stops watching what will not change any more.
func (o *object) set(held runtime.Object) {
	o.mu.Lock()
	o.held = held
	o.mu.Unlock()
	if immutable(held) {
		o.stop()
	}
	first := false
	o.once.Do(func() { first = true; close(o.known) })
	if !first {
		o.changed()
	}
}

func immutable(held runtime.Object) bool {
	var flag *bool
	switch held := held.(type) {
	case *corev1.ConfigMap:
		flag = held.Immutable
	case *corev1.Secret:
		flag = held.Immutable
	}
	return flag != nil && *flag
}

// Add, Update, Delete, Replace and Resync are what a reflector calls.
func (o *object) Add(obj any) error { return o.Update(obj) }

// Update is called with the next version of the object.
func (o *object) Update(obj any) error {
	held, _ := obj.(runtime.Object)
	o.set(held)
	return nil
}

// Delete is called when the object is gone.
func (o *object) Delete(any) error {
	o.set(nil)
	return nil
}

// Replace is called with all there is: the object or nothing.
func (o *object) Replace(list []any, _ string) error {
	var held runtime.Object
	if len(list) > 0 {
		held, _ = list[0].(runtime.Object)
	}
	if before := o.now(); before != nil && held != nil && revision(before) == revision(held) {
		return nil
	}
	o.set(held)
	return nil
}

// Resync does nothing: who is told of a change is told once.
func (o *object) Resync() error { return nil }

func revision(held runtime.Object) string {
	if m, ok := held.(metav1.Object); ok {
		return m.GetResourceVersion()
	}
	return ""
}
