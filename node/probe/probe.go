// Package probe asks containers whether they have started, live and are ready.
//
// In come pods with the statuses of their containers (Update, Remove); out come
// results by container, and a call when one of them changes. Each probe of each
// container has a goroutine, which lives as long as the pod. What always holds: a
// container that ran before the agent did keeps what was known of it until a probe
// says otherwise, and one that failed its liveness or startup probe is not asked
// again.
package probe

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/node/hook"
)

// Kind is what a probe asks.
type Kind string

// The kinds of probes, as events name them.
const (
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
	Startup   Kind = "Startup"
)

// outcome is what a probe found.
type outcome int

const (
	unknown outcome = iota
	success
	failure
)

// Config is what probes need. All of it is needed.
type Config struct {
	// Exec runs commands in containers.
	Exec hook.Exec
	// Expand replaces $(NAME) in a text.
	Expand func(text string, values map[string]string) string
	// Say records an event about a container.
	Say func(pod *corev1.Pod, c *corev1.Container, kind, reason, message string)
	// Changed is called when a result of a pod changed. It must not block.
	Changed func(uid types.UID)
}

type (
	key struct {
		uid  types.UID
		name string
		kind Kind
	}
	about struct {
		kind Kind
		id   string
	}
)

// view is a pod as it was last told of.
type view struct {
	pod    *corev1.Pod
	status corev1.PodStatus
}

// Set is the probes of a node.
type Set struct {
	cfg   Config
	begun time.Time
	ctx   context.Context
	stop  context.CancelFunc
	alive sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	pods    map[types.UID]view
	workers map[key]*worker
	results map[about]outcome
}

// New returns probes of nothing.
func New(cfg Config) *Set {
	ctx, stop := context.WithCancel(context.Background())
	return &Set{
		cfg: cfg, begun: time.Now(), ctx: ctx, stop: stop,
		pods: map[types.UID]view{}, workers: map[key]*worker{}, results: map[about]outcome{},
	}
}

// Run lets probes run until ctx ends, and returns when none does any more.
func (s *Set) Run(ctx context.Context) error {
	<-ctx.Done()
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.alive.Wait()
	return nil
}

// probes are those that a container has.
func probes(c *corev1.Container) map[Kind]*corev1.Probe {
	all := map[Kind]*corev1.Probe{}
	for kind, p := range map[Kind]*corev1.Probe{Liveness: c.LivenessProbe, Readiness: c.ReadinessProbe, Startup: c.StartupProbe} {
		if p != nil {
			all[kind] = p
		}
	}
	return all
}

// Update tells of a pod: probes that it has and that do not run are begun.
func (s *Set) Update(pod *corev1.Pod, status corev1.PodStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	before := s.pods[pod.UID].status
	s.pods[pod.UID] = view{pod, status}
	s.hurryLocked(pod.UID, &before, &status) // those that begin now ask at once
	begin := func(c *corev1.Container) {
		for kind, p := range probes(c) {
			k := key{pod.UID, c.Name, kind}
			if s.workers[k] != nil || kind != Readiness && pod.DeletionTimestamp != nil {
				continue
			}
			w := &worker{set: s, key: k, container: c, probe: p, now: make(chan struct{}, 1), gone: make(chan struct{})}
			s.workers[k] = w
			s.alive.Go(w.run)
		}
	}
	for i := range pod.Spec.Containers {
		begin(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			begin(c)
		}
	}
}

// hurryLocked has the readiness and the start of those containers looked at now
// that are others than before, or have started since.
func (s *Set) hurryLocked(uid types.UID, before, now *corev1.PodStatus) {
	for k, w := range s.workers {
		if k.uid != uid || k.kind == Liveness {
			continue
		}
		was, is := w.status(before), w.status(now)
		if is == nil || was != nil && was.ContainerID == is.ContainerID && started(was) == started(is) {
			continue
		}
		select {
		case w.now <- struct{}{}:
		default:
		}
	}
}

func started(s *corev1.ContainerStatus) bool { return s.Started != nil && *s.Started }

// StopLiveness ends the probes that a pod on its way out could be restarted for.
func (s *Set) StopLiveness(uid types.UID) { s.end(uid, Liveness, Startup) }

// Remove ends all probes of a pod.
func (s *Set) Remove(uid types.UID) {
	s.end(uid, Liveness, Startup, Readiness)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, uid)
}

func (s *Set) end(uid types.UID, kinds ...Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, w := range s.workers {
		for _, kind := range kinds {
			if k.uid == uid && k.kind == kind {
				close(w.gone)
				delete(s.workers, k)
			}
		}
	}
}

func (s *Set) view(uid types.UID) (view, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.pods[uid]
	return v, ok
}

// set keeps a result, and tells when it is another than before.
func (s *Set) set(uid types.UID, a about, o outcome) {
	s.mu.Lock()
	before, had := s.results[a]
	s.results[a] = o
	s.mu.Unlock()
	if !had || before != o {
		s.cfg.Changed(uid)
	}
}

func (s *Set) forget(a about) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.results, a)
}

func (s *Set) result(kind Kind, id string) (outcome, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.results[about{kind, id}]
	return o, ok
}

// Alive is false for a container whose liveness probe failed.
func (s *Set) Alive(id string) bool {
	o, _ := s.result(Liveness, id)
	return o != failure
}

// StartFailed says that the startup probe of a container failed.
func (s *Set) StartFailed(id string) bool {
	o, _ := s.result(Startup, id)
	return o == failure
}

// Started says whether the startup probe of a container succeeded, and whether
// anything is known of it.
func (s *Set) Started(id string) (yes, known bool) {
	o, ok := s.result(Startup, id)
	return o == success, ok
}

// Ready says whether the readiness probe of a container succeeded, and whether
// anything is known of it.
func (s *Set) Ready(id string) (yes, known bool) {
	o, ok := s.result(Readiness, id)
	return o == success, ok
}
