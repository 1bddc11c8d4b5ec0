// Package loop is the one shape that controllers have: informers tell which keys
// to look at, a queue holds them, and for each key a controller observes, plans
// and acts.
//
// In comes a function that makes one key so; out comes something to Run. What
// always holds:
//   - A key is worked on by one worker at a time, and again after every change
//     that concerns it: changes are merged, never lost.
//   - A controller sees its own writes. A key whose last round wrote something
//     waits until the informers have caught up with that, so a plan is never
//     made from a world in which its own acts have not happened yet.
//   - What a round writes carries the revision that caused it.
//   - A round that fails or panics is logged and tried again, later each time.
//
// A queue holds every key at most once, so it is bounded by the objects there
// are.
package loop

import (
	"context"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/metrics"
)

// Runner lives until ctx ends, and returns after all that it started has ended.
type Runner interface {
	Run(ctx context.Context) error
}

// Key names an object. The namespace is empty for kinds that have none.
type Key = cache.ObjectName

// KeyOf is the key of an object.
func KeyOf(obj metav1.Object) Key {
	return Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// Reconcile makes one key so: it observes, plans and acts. It returns when to
// look again although nothing has changed, 0 for never. With an error it is
// tried again later.
type Reconcile[K comparable] func(ctx context.Context, key K) (again time.Duration, err error)

// Loop runs a Reconcile for the keys that it is given.
type Loop[K comparable] struct {
	actor     *Actor
	name      string
	workers   int
	reconcile Reconcile[K]
	queue     workqueue.TypedRateLimitingInterface[K]
	counts    *metrics.Queue
	sources   []source
	own       []cache.SharedIndexInformer

	mu     sync.Mutex // guards the fields below
	causes map[K]int64
}

// source is an informer that a loop reads.
type source struct {
	table    string
	informer cache.SharedIndexInformer
	handle   cache.ResourceEventHandlerRegistration
}

// New returns a loop of an actor that runs reconcile with that many workers. The
// name is what its queue is counted under.
func New[K comparable](a *Actor, name string, workers int, reconcile Reconcile[K]) *Loop[K] {
	counts := a.queue(name)
	base := &measured[K]{TypedInterface: workqueue.NewTyped[K](), counts: counts}
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{Queue: base})
	return &Loop[K]{
		actor: a, name: name, workers: workers, reconcile: reconcile, counts: counts, causes: map[K]int64{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.DefaultTypedControllerRateLimiter[K](),
			workqueue.TypedRateLimitingQueueConfig[K]{DelayingQueue: delaying}),
	}
}

// measured tells the metrics what happens in a queue.
type measured[K comparable] struct {
	workqueue.TypedInterface[K]
	counts *metrics.Queue
}

// Add implements workqueue.TypedInterface.
func (m *measured[K]) Add(key K) {
	if !m.ShuttingDown() {
		m.counts.Added(key)
	}
	m.TypedInterface.Add(key)
}

// Get implements workqueue.TypedInterface.
func (m *measured[K]) Get() (K, bool) {
	key, ended := m.TypedInterface.Get()
	if !ended {
		m.counts.Taken(key)
	}
	return key, ended
}

// Done implements workqueue.TypedInterface.
func (m *measured[K]) Done(key K) {
	m.counts.Done(key)
	m.TypedInterface.Done(key)
}

// Watch has the loop look at the keys that a change concerns. keys is told the
// object before and after; one of them is nil when it was created or deleted.
// Nil keys only read the informer: the loop waits for it to be filled, and for
// the loop's own writes to show in it. table is the resource with its group,
// such as "pods" or "replicasets.apps". T is the informer's type, such as
// *corev1.Pod.
func Watch[K comparable, T metav1.Object](l *Loop[K], table string, informer cache.SharedIndexInformer, keys func(before, after T) []K) {
	tell := func(cause, before, after any) {
		was, _ := before.(T)
		is, _ := after.(T)
		l.because(revision(cause), keys(was, is)...)
	}
	if keys == nil {
		tell = func(any, any, any) {}
	}
	handle, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { tell(obj, nil, obj) },
		UpdateFunc: func(old, obj any) { tell(obj, old, obj) },
		DeleteFunc: func(obj any) {
			if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = t.Obj
			}
			tell(obj, obj, nil)
		},
	})
	if err != nil {
		panic(fmt.Sprintf("watch %s: %v", table, err)) // the informer has been stopped, and so have we
	}
	l.sources = append(l.sources, source{table: table, informer: informer, handle: handle})
}

// Own has the loop run an informer that nobody shares, such as one of a few
// objects of a kind. Watch says what its changes concern.
func (l *Loop[K]) Own(informer cache.SharedIndexInformer) { l.own = append(l.own, informer) }

// Self is a keys function for the objects that a loop is about.
func Self[T metav1.Object](before, after T) []Key {
	var none T
	if any(after) == any(none) {
		return []Key{KeyOf(before)}
	}
	return []Key{KeyOf(after)}
}

// revision is that of an object, 0 when it has none.
func revision(obj any) int64 {
	m, err := meta.Accessor(obj)
	if err != nil {
		return 0
	}
	rev, _ := strconv.ParseInt(m.GetResourceVersion(), 10, 64)
	return rev
}

func (l *Loop[K]) because(cause int64, keys ...K) {
	if len(keys) == 0 {
		return
	}
	l.mu.Lock()
	for _, key := range keys {
		l.causes[key] = max(l.causes[key], cause)
	}
	l.mu.Unlock()
	for _, key := range keys {
		l.queue.Add(key)
	}
}

// Add has the loop look at a key now.
func (l *Loop[K]) Add(key K) { l.queue.Add(key) }

// AddAfter has the loop look at a key in a while.
func (l *Loop[K]) AddAfter(key K, in time.Duration) { l.queue.AddAfter(key, in) }

// Run implements Runner. A loop runs once.
func (l *Loop[K]) Run(ctx context.Context) error {
	var g errgroup.Group
	defer func() { _ = g.Wait() }() // nothing in it fails
	defer l.detach()
	l.actor.startInformers()
	for _, informer := range l.own {
		g.Go(func() error {
			informer.RunWithContext(ctx)
			return nil
		})
	}
	synced := make([]cache.DoneChecker, len(l.sources))
	for i, s := range l.sources {
		synced[i] = s.handle.HasSyncedChecker()
	}
	if !cache.WaitFor(ctx, "", synced...) {
		l.queue.ShutDown()
		return nil
	}
	for range l.workers {
		g.Go(func() error {
			for l.next(ctx) {
			}
			return nil
		})
	}
	<-ctx.Done()
	l.queue.ShutDown()
	return nil
}

// detach lets go of the informers, which others go on using.
func (l *Loop[K]) detach() {
	for _, s := range l.sources {
		_ = s.informer.RemoveEventHandler(s.handle) // an informer that has ended has none
	}
}

// next works on one key; false when there will be no more.
func (l *Loop[K]) next(ctx context.Context) bool {
	key, ended := l.queue.Get()
	if ended {
		return false
	}
	defer l.queue.Done(key)
	if ctx.Err() != nil {
		return true // the rest of the queue is let go
	}
	if wait := l.behind(key); wait > 0 {
		l.queue.AddAfter(key, wait)
		return true
	}
	cause := l.takeCause(key)
	again, err := l.round(ctx, key, cause)
	switch {
	case err != nil && ctx.Err() == nil:
		l.failed(key, cause, err)
	case err == nil:
		l.queue.Forget(key)
		if again > 0 {
			l.queue.AddAfter(key, again)
		}
	}
	return true
}

func (l *Loop[K]) takeCause(key K) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	cause := l.causes[key]
	delete(l.causes, key)
	return cause
}

// failed puts a key off.
func (l *Loop[K]) failed(key K, cause int64, err error) {
	l.mu.Lock()
	l.causes[key] = max(l.causes[key], cause)
	l.mu.Unlock()
	if !apierrors.IsConflict(err) { // somebody was faster, that is all
		l.actor.Logger.Warn("a round failed and is tried again", "controller", l.name, "key", fmt.Sprint(key), "error", err)
	}
	l.counts.Retried()
	l.queue.AddRateLimited(key)
}

// round runs reconcile once. What it writes is noted, so that the next round of
// the key waits for it to be seen; a panic is an error.
func (l *Loop[K]) round(ctx context.Context, key K, cause int64) (again time.Duration, err error) {
	notes := &client.Notes{}
	ctx = client.Note(client.Because(l.actor.As(ctx), cause), notes)
	defer func() {
		if p := recover(); p != nil {
			l.actor.Logger.Error("a round panicked", "controller", l.name, "key", fmt.Sprint(key), "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
		if wrote := notes.Take(); wrote != nil {
			l.actor.debts.owe(debtor{l.name, key}, wrote)
		}
	}()
	return l.reconcile(ctx, key)
}

// behind says how long to wait before informers are looked at again that have
// not seen what the last round of a key wrote; 0 when they have.
func (l *Loop[K]) behind(key K) time.Duration {
	return l.actor.debts.wait(debtor{l.name, key}, func(table string) (int64, bool) {
		for _, s := range l.sources {
			if s.table == table {
				rev, _ := strconv.ParseInt(s.informer.GetStore().LastStoreSyncResourceVersion(), 10, 64)
				return rev, true
			}
		}
		return 0, false
	})
}
