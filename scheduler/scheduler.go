// Package scheduler gives pods their nodes.
//
// In come pods without a node and the cluster around them, through informers; out
// go bindings, or a condition and an event that say why there is none, and the
// deletion of less important pods where that helps. A round is snapshot -> place
// -> bind: queue says which pod is next, place decides from a snapshot, and the
// binding is written while the next pod is placed, which already sees it.
//
// What always holds: one pod is placed at a time; at most as many bindings as
// binders are under way, and when there are as many the next pod waits; a pod
// that is not placed is in the queue.
package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/place"
	"setpoint.dev/setpoint/scheduler/queue"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// Config says how pods are placed, and against what. Handler is needed; with the
// rest at zero pods are placed as upstream does.
type Config struct {
	// Handler is the API.
	Handler http.Handler
	// Profiles are the ways to place pods; none means one for default-scheduler.
	Profiles []*place.Profile
	// Logger hears what happens; nil means slog.Default.
	Logger *slog.Logger
}

// Who the scheduler is. Compat: they are upstream's, and so is the name under
// which fields are owned.
const (
	identity  = user.KubeScheduler
	userAgent = "kube-scheduler/setpoint"
)

// binders is how many bindings are under way at most.
const binders = 128

// Scheduler gives pods their nodes.
type Scheduler struct {
	cfg      Config
	api      *client.Client
	profiles map[string]*place.Profile

	mu  sync.Mutex // guards the field below
	now *life      // nil when it does not run
}

// life is a scheduler that runs.
type life struct {
	*Scheduler
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	objects   *snapshot.Objects
	cache     *snapshot.Cache
	queue     *queue.Queue
	recorders map[string]events.EventRecorder // by profile
	binding   errgroup.Group
	next      int // the node that is looked at first
}

// New returns a scheduler. It starts nothing.
func New(cfg Config) *Scheduler {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if len(cfg.Profiles) == 0 {
		cfg.Profiles = []*place.Profile{place.Default(corev1.DefaultSchedulerName)}
	}
	s := &Scheduler{cfg: cfg, profiles: map[string]*place.Profile{}, api: client.New(client.Config{
		Handler: cfg.Handler, UserAgent: userAgent, User: &user.DefaultInfo{Name: identity, Groups: []string{user.AllAuthenticated}},
	})}
	for _, p := range cfg.Profiles {
		s.profiles[p.Name] = p
	}
	return s
}

// Run places pods until ctx ends, and returns after all that it started has ended.
func (s *Scheduler) Run(ctx context.Context) error {
	l, err := s.begin()
	if err != nil {
		return err
	}
	defer l.informers.Shutdown()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: l.client.EventsV1()})
	defer broadcaster.Shutdown()
	for name := range s.profiles {
		l.recorders[name] = broadcaster.NewRecorder(scheme.Scheme, name)
	}
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return err
	}
	seen, err := l.observe()
	if err != nil {
		return err
	}
	l.informers.StartWithContext(ctx)
	if !seen(ctx) {
		return nil
	}
	s.set(l)
	defer s.set(nil)
	for {
		item := l.queue.Next(ctx)
		if item == nil {
			break
		}
		l.schedule(ctx, item)
	}
	return l.binding.Wait()
}

func (s *Scheduler) set(l *life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = l
}

// begin makes what a run needs.
func (s *Scheduler) begin() (*life, error) {
	l := &life{Scheduler: s, recorders: map[string]events.EventRecorder{}}
	var err error
	if l.client, err = s.api.Kubernetes(); err != nil {
		return nil, err
	}
	if l.informers, err = s.api.Informers(); err != nil {
		return nil, err
	}
	if l.objects, err = snapshot.NewObjects(l.informers); err != nil {
		return nil, err
	}
	l.cache, l.queue = snapshot.NewCache(l.objects), queue.New(l.helps)
	l.binding.SetLimit(binders)
	return l, nil
}

// helps says whether a change may help a pod: whether one of the filters that
// refused it thinks so.
func (l *life) helps(item *queue.Item, e *event.Event) bool {
	p := l.profiles[item.Pod.Object.Spec.SchedulerName]
	if len(item.By) == 0 || p == nil {
		return true
	}
	var c *cycle.Cycle
	for _, f := range p.Filters() {
		for _, name := range item.By {
			if name != f.Name {
				continue
			}
			if c == nil {
				c = cycle.New(&snapshot.Snapshot{Objects: l.objects}, item.Pod, p.Settings())
			}
			if f.Helped(c, e) {
				return true
			}
		}
	}
	return false
}

// schedule is a round: it places one pod.
func (l *life) schedule(ctx context.Context, item *queue.Item) {
	pod := item.Pod
	profile := l.profiles[pod.Object.Spec.SchedulerName]
	if on, _ := l.cache.Placed(pod.Object.UID); on != "" || profile == nil {
		l.queue.Placed(item) // it changed while it was bound
		return
	}
	all := l.cache.Snapshot()
	d, err := profile.Place(all, pod, place.Turn{Start: l.next, Tie: rand.Uint64()})
	if d != nil {
		l.next = (l.next + d.Looked) % len(all.Nodes)
	}
	switch {
	case errors.Is(err, place.ErrNoNodes):
		l.refuse(ctx, item, refusal{reason: corev1.PodReasonUnschedulable, message: err.Error()})
	case err != nil:
		l.fail(ctx, item, err)
	case d.Node == nil:
		l.preempt(ctx, item, d, time.Now())
	default:
		l.assume(item, d)
		l.binding.Go(func() error {
			l.bind(ctx, item, pod, d)
			return nil
		})
	}
}

// assume has the next pods see the placement.
func (l *life) assume(item *queue.Item, d *place.Decision) {
	l.cache.Assume(item.Pod, d.Node.Name())
	if v := d.Volumes; v != nil {
		for _, volume := range v.Bind {
			l.objects.Assume(volume)
		}
		for i, claim := range v.Provision {
			v.Provision[i] = near(claim, d.Node.Name())
			l.objects.Assume(v.Provision[i])
		}
	}
	l.queue.Placed(item)
}
