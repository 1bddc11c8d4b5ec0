// Package evict ends pods when a node runs out of memory, disk or processes, so
// that the node itself does not.
//
// In come what the node and its pods use, and thresholds; out come at most one
// evicted pod a round, and what the node is short of. What always holds: which
// pod goes is a pure function of what was observed; pods that are critical stay;
// first the node tries to do without: images and dead containers go before pods
// that run. A pod that uses more of its own disk than its limit goes in any case.
package evict

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"setpoint.dev/setpoint/node/admit"
	"setpoint.dev/setpoint/node/cgroup"
)

// Compat: the paces are a kubelet's. A condition stays for a while after it is
// over, so that pods do not come and go with it.
const (
	every   = 10 * time.Second
	settles = 5 * time.Minute
)

// Reason is why an evicted or refused pod has failed.
const Reason = "Evicted"

// Eviction is how a pod goes.
type Eviction struct {
	// Grace is how long its containers have to end.
	Grace time.Duration
	// Message is for the pod's status and event; Annotations are for the event.
	Message     string
	Annotations map[string]string
	// Condition is for the pod's status; nil where the pod itself is to blame.
	Condition *corev1.PodCondition
}

// Config says what is watched and how pods end.
type Config struct {
	// Summary says what is used now. It is needed.
	Summary func(ctx context.Context) (*statsapi.Summary, error)
	// Pods are those that run or will. It is needed.
	Pods func() []*corev1.Pod
	// Evict ends a pod as failed and returns when its containers have ended. It
	// is needed.
	Evict func(ctx context.Context, pod *corev1.Pod, e Eviction) error
	// Reclaim frees disk that no pod uses.
	Reclaim func(ctx context.Context) error
	// Volumes says what a pod's emptyDir volumes take up. It is asked about pods
	// with limits, and about all when the disk is short.
	Volumes func(pod *corev1.Pod) []statsapi.VolumeStats
	// Thresholds say what is too little; without any the node is never short of
	// anything, and pods still go that use more disk than they may.
	Thresholds []Threshold
	// OwnImageDisk says that images and containers' own files are not on the
	// disk of volumes and logs.
	OwnImageDisk bool
	// Event tells what the node does.
	Event func(kind, reason, message string)
	// Changed is told when the node begins or ceases to be short of something.
	Changed func()
	// Logger is told what could not be done.
	Logger *slog.Logger
}

// Manager evicts pods of a node.
type Manager struct {
	cfg Config
	// since is when a threshold was first met; only Run uses it.
	since map[Threshold]time.Time

	mu sync.Mutex // guards the fields below
	// last is when the node was last short of something; short is what it is now,
	// or was a moment ago. The slice is never changed.
	last  map[corev1.NodeConditionType]time.Time
	short []corev1.NodeConditionType
}

// New returns a manager that has looked at nothing yet.
func New(cfg Config) *Manager {
	if cfg.Event == nil {
		cfg.Event = func(string, string, string) {}
	}
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{cfg: cfg, since: map[Threshold]time.Time{}, last: map[corev1.NodeConditionType]time.Time{}}
}

// Run looks every ten seconds until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := m.round(ctx, time.Now()); err != nil && ctx.Err() == nil {
			m.cfg.Logger.WarnContext(ctx, "what the node is short of is not known", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Short reports whether the node is short of something, or was a moment ago.
func (m *Manager) Short(of corev1.NodeConditionType) bool {
	return slices.Contains(m.conditions(), of)
}

func (m *Manager) conditions() []corev1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.short
}

// Admit says why a pod is not taken while the node is short of something, nil when
// it is: those that are critical are, and those that ask for memory when only memory
// is short.
func (m *Manager) Admit(pod *corev1.Pod) *admit.Refusal {
	short := m.conditions()
	if len(short) == 0 || Critical(pod) {
		return nil
	}
	if len(short) == 1 && short[0] == corev1.NodeMemoryPressure {
		taint := &corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if cgroup.QOS(pod) != corev1.PodQOSBestEffort || scheduling.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, taint, false) {
			return nil
		}
	}
	return &admit.Refusal{Reason: Reason, Message: fmt.Sprintf("The node had condition: %v. ", short)}
}

// round observes, and evicts at most one pod for the node's sake.
func (m *Manager) round(ctx context.Context, now time.Time) error {
	summary, err := m.cfg.Summary(ctx)
	if err != nil {
		return err
	}
	seen := Observe(summary)
	met := Met(m.cfg.Thresholds, seen)
	m.note(ctx, met, seen, now)
	pods, stats := m.cfg.Pods(), ByPod(summary)
	if m.limits(ctx, pods, stats) {
		return nil
	}
	due := m.due(met, now)
	if len(due) == 0 {
		return nil
	}
	first := due[0]
	m.cfg.Event(corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim "+string(first.Signal.Resource()))
	if first.Signal.Condition() == corev1.NodeDiskPressure && m.cfg.Reclaim != nil && m.reclaimed(ctx) {
		return nil
	}
	if first.Signal.Condition() == corev1.NodeDiskPressure {
		for _, pod := range pods {
			m.weigh(pod, stats[pod.UID])
		}
	}
	for _, pod := range Rank(first.Signal, pods, stats, m.cfg.OwnImageDisk) {
		if Critical(pod) {
			continue
		}
		message, annotations := Message(pod, stats[pod.UID], first, seen[first.Signal])
		return m.evict(ctx, pod, Eviction{Grace: grace(pod, first), Message: message, Annotations: annotations, Condition: &corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: message, ObservedGeneration: pod.Generation,
		}})
	}
	m.cfg.Logger.InfoContext(ctx, "no pod can be evicted", "signal", first.Signal)
	return nil
}

// grace is none when a threshold must not be passed.
func grace(pod *corev1.Pod, t Threshold) time.Duration {
	if t.Grace == 0 || pod.Spec.TerminationGracePeriodSeconds == nil {
		return time.Second
	}
	return time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
}

// patience is how long a pod's end may take beyond its grace. One that takes
// longer goes on ending while the node looks at others.
const patience = 30 * time.Second

func (m *Manager) evict(ctx context.Context, pod *corev1.Pod, e Eviction) error {
	m.cfg.Logger.WarnContext(ctx, "a pod is evicted", "namespace", pod.Namespace, "pod", pod.Name, "why", strings.TrimSpace(e.Message))
	ctx, cancel := context.WithTimeout(ctx, e.Grace+patience)
	defer cancel()
	if err := m.cfg.Evict(ctx, pod, e); err != nil {
		return fmt.Errorf("evict %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// weigh adds to what is known of a pod what its volumes take up.
func (m *Manager) weigh(pod *corev1.Pod, s *statsapi.PodStats) {
	if m.cfg.Volumes != nil && s != nil && s.VolumeStats == nil {
		s.VolumeStats = m.cfg.Volumes(pod)
	}
}

// limits evicts pods that use more disk than they may.
func (m *Manager) limits(ctx context.Context, pods []*corev1.Pod, stats Stats) (evicted bool) {
	for _, pod := range pods {
		s := stats[pod.UID]
		if s == nil || Critical(pod) || !limited(pod) {
			continue
		}
		m.weigh(pod, s)
		message := Exceeds(pod, s, m.cfg.OwnImageDisk)
		if message == "" {
			continue
		}
		if err := m.evict(ctx, pod, Eviction{Grace: time.Second, Message: message}); err != nil {
			if ctx.Err() != nil {
				return true
			}
			m.cfg.Logger.WarnContext(ctx, "a pod that uses too much disk stays", "error", err)
			continue
		}
		evicted = true
	}
	return evicted
}

// reclaimed frees what no pod uses and reports whether that was enough.
func (m *Manager) reclaimed(ctx context.Context) bool {
	if err := m.cfg.Reclaim(ctx); err != nil {
		m.cfg.Logger.WarnContext(ctx, "not all that is unused could be freed", "error", err)
	}
	summary, err := m.cfg.Summary(ctx)
	return err == nil && len(Met(m.cfg.Thresholds, Observe(summary))) == 0
}

// note remembers what is short now, and tells when that changes.
func (m *Manager) note(ctx context.Context, met []Threshold, seen map[Signal]Observation, now time.Time) {
	m.mu.Lock()
	before := m.short
	for _, t := range met {
		m.last[t.Signal.Condition()] = now
	}
	m.short = nil
	for condition, at := range m.last {
		if now.Sub(at) < settles {
			m.short = append(m.short, condition)
		}
	}
	slices.Sort(m.short)
	short := m.short
	m.mu.Unlock()
	if slices.Equal(before, short) {
		return
	}
	for _, t := range met {
		if of := t.Signal.Condition(); !slices.Contains(before, of) {
			m.cfg.Logger.WarnContext(ctx, "this node is short of something: it evicts pods and takes no new ones", "condition", of,
				"threshold", t.String(), "available", amount(t.Signal, seen[t.Signal].Available), "capacity", amount(t.Signal, seen[t.Signal].Capacity))
		}
	}
	if len(short) == 0 {
		m.cfg.Logger.WarnContext(ctx, "this node is short of nothing any more: it takes pods again")
	}
	m.cfg.Changed()
}

// due are the thresholds that have been met for long enough, memory first.
func (m *Manager) due(met []Threshold, now time.Time) []Threshold {
	since := map[Threshold]time.Time{}
	var due []Threshold
	for _, t := range met {
		if since[t] = now; !m.since[t].IsZero() {
			since[t] = m.since[t]
		}
		if now.Sub(since[t]) >= t.Grace {
			due = append(due, t)
		}
	}
	m.since = since
	slices.SortStableFunc(due, func(a, b Threshold) int {
		return strings.Compare(b.Signal.first(), a.Signal.first())
	})
	return due
}
