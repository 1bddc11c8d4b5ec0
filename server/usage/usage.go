// Package usage says what nodes and pods use now, as metrics-server does.
//
// In come the nodes and pods that there are; each node is asked for its
// /stats/summary when somebody wants to know, and what it says is kept for a
// moment, so that many who ask cost no more than one. Out come the objects of
// metrics.k8s.io. A node that does not answer is left out with its pods, and so is
// a pod of which nothing is known yet. Nothing runs by the clock.
package usage

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/metrics/pkg/apis/metrics"
)

// Objects are those of the plane whose pods run. They are not changed.
type Objects interface {
	List(ctx context.Context, resource schema.GroupVersionResource, namespace string) iter.Seq2[runtime.Object, error]
}

// Nodes answers requests to nodes' servers.
type Nodes interface {
	Get(ctx context.Context, node, path string) (io.ReadCloser, error)
}

// Bounds of asking: how long an answer is kept and waited for, how many nodes are
// asked at once, and how much is read of what one says.
const (
	kept     = 5 * time.Second
	patience = 10 * time.Second
	atOnce   = 16
	maxSize  = 64 << 20
)

// window is the time that rates are about, which is how often nodes look.
var window = metav1.Duration{Duration: 10 * time.Second}

// Usage knows what is used.
type Usage struct {
	objects Objects
	nodes   Nodes
	logger  *slog.Logger

	mu   sync.Mutex // guards the field below, not what is in it
	said map[string]*said
}

// said is what a node said last.
type said struct {
	mu      sync.Mutex // held while it is asked; guards the fields below
	at      time.Time
	summary *statsapi.Summary
}

// New returns one that has asked nobody yet.
func New(objects Objects, nodes Nodes, logger *slog.Logger) *Usage {
	return &Usage{objects: objects, nodes: nodes, logger: logger, said: map[string]*said{}}
}

// Nodes is what the nodes use that are wanted.
func (u *Usage) Nodes(ctx context.Context, want func(metav1.Object) bool) (*metrics.NodeMetricsList, error) {
	all, err := list[*corev1.Node](ctx, u.objects, "nodes", "")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, n := range all {
		if want(n) {
			names = append(names, n.Name)
		}
	}
	summaries := u.ask(ctx, names)
	found := &metrics.NodeMetricsList{Items: []metrics.NodeMetrics{}}
	for _, n := range all {
		s := summaries[n.Name]
		if s == nil || !want(n) {
			continue
		}
		if used, at, ok := usage(s.Node.CPU, s.Node.Memory); ok {
			found.Items = append(found.Items, metrics.NodeMetrics{
				ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: metav1.Now()}, Timestamp: at, Window: window, Usage: used,
			})
		}
	}
	u.forget(all)
	return found, nil
}

// Pods is what the pods use that are wanted, in a namespace or, with "", in all.
func (u *Usage) Pods(ctx context.Context, namespace string, want func(metav1.Object) bool) (*metrics.PodMetricsList, error) {
	all, err := list[*corev1.Pod](ctx, u.objects, "pods", namespace)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(p *corev1.Pod) bool {
		return p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || !want(p)
	})
	var names []string
	for _, p := range all {
		names = append(names, p.Spec.NodeName)
	}
	slices.Sort(names)
	summaries := u.ask(ctx, slices.Compact(names))
	pods := map[statsapi.PodReference]*statsapi.PodStats{}
	for _, s := range summaries {
		for i := range s.Pods {
			ref := s.Pods[i].PodRef
			pods[statsapi.PodReference{Namespace: ref.Namespace, Name: ref.Name}] = &s.Pods[i]
		}
	}
	found := &metrics.PodMetricsList{Items: []metrics.PodMetrics{}}
	for _, p := range all {
		s := pods[statsapi.PodReference{Namespace: p.Namespace, Name: p.Name}]
		if s == nil {
			continue
		}
		if one, ok := ofPod(p, s); ok {
			found.Items = append(found.Items, one)
		}
	}
	return found, nil
}

// ofPod is what a pod uses; false when that is not known of all its containers.
func ofPod(p *corev1.Pod, s *statsapi.PodStats) (metrics.PodMetrics, bool) {
	m := metrics.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, CreationTimestamp: metav1.Now()}, Window: window,
	}
	for _, c := range s.Containers {
		used, at, ok := usage(c.CPU, c.Memory)
		if !ok {
			return m, false
		}
		if m.Timestamp.IsZero() || at.Before(&m.Timestamp) {
			m.Timestamp = at
		}
		m.Containers = append(m.Containers, metrics.ContainerMetrics{Name: c.Name, Usage: used})
	}
	return m, len(m.Containers) > 0
}

// usage is what is used of processors and memory; false when either is not known.
func usage(cpu *statsapi.CPUStats, memory *statsapi.MemoryStats) (corev1.ResourceList, metav1.Time, bool) {
	if cpu == nil || cpu.UsageNanoCores == nil || memory == nil || memory.WorkingSetBytes == nil {
		return nil, metav1.Time{}, false
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(min(*cpu.UsageNanoCores, 1<<62)), resource.Nano),             //nolint:gosec // bounded
		corev1.ResourceMemory: *resource.NewQuantity(int64(min(*memory.WorkingSetBytes, 1<<62))/1024*1024, resource.BinarySI), //nolint:gosec // bounded
	}, cpu.Time, true
}

// ask asks nodes what is used there. Those that do not say are left out.
func (u *Usage) ask(ctx context.Context, nodes []string) map[string]*statsapi.Summary {
	var g errgroup.Group
	g.SetLimit(atOnce)
	answers := make([]*statsapi.Summary, len(nodes))
	for i, node := range nodes {
		g.Go(func() (err error) {
			if answers[i], err = u.summary(ctx, node); err != nil {
				u.logger.Debug("a node does not say what is used there", "node", node, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait() // nobody fails
	found := map[string]*statsapi.Summary{}
	for i, node := range nodes {
		if answers[i] != nil {
			found[node] = answers[i]
		}
	}
	return found
}

// summary is what a node says, now or a moment ago.
func (u *Usage) summary(ctx context.Context, node string) (*statsapi.Summary, error) {
	u.mu.Lock()
	s := u.said[node]
	if s == nil {
		s = &said{}
		u.said[node] = s
	}
	u.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.summary != nil && time.Since(s.at) < kept {
		return s.summary, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, err := u.nodes.Get(ctx, node, "/stats/summary?only_cpu_and_memory=true")
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // it is only read
	summary := &statsapi.Summary{}
	if err := json.NewDecoder(io.LimitReader(body, maxSize)).Decode(summary); err != nil {
		return nil, err
	}
	s.at, s.summary = time.Now(), summary
	return summary, nil
}

// forget forgets what nodes said that are gone.
func (u *Usage) forget(all []*corev1.Node) {
	is := map[string]bool{}
	for _, n := range all {
		is[n.Name] = true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for name := range u.said {
		if !is[name] {
			delete(u.said, name)
		}
	}
}

// list is all objects of a resource of the core group, in the order of their keys.
func list[T runtime.Object](ctx context.Context, from Objects, resource, namespace string) ([]T, error) {
	var all []T
	for obj, err := range from.List(ctx, corev1.SchemeGroupVersion.WithResource(resource), namespace) {
		if err != nil {
			return nil, err
		}
		if one, is := obj.(T); is {
			all = append(all, one)
		}
	}
	return all, nil
}
