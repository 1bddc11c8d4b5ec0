// Package register is a node's own entry in the API: the Node object, its
// status, and the lease that says that the node is alive.
//
// In come a client that asks as the node, its runtime and what the machine has;
// out come a Node that is made or adopted, a status that is written when it
// changes and at least every five minutes, and a lease that is renewed every ten
// seconds. What always holds: the status is a pure function of what was observed
// and the status before; a node whose runtime is not ready is not ready.
package register

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/apimachinery/lease"
	nodeutil "k8s.io/component-helpers/node/util"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"setpoint.dev/setpoint/node/evict"
)

// Compat: the paces are a kubelet's.
const (
	observeEvery = 10 * time.Second
	reportEvery  = 5 * time.Minute
	leaseSeconds = 40
	renewEvery   = 10 * time.Second
	// soon is the pace until the node is ready, so that pods need not wait.
	soon = 250 * time.Millisecond
)

// Runtime is what a node asks of its container runtime.
type Runtime interface {
	Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error)
	Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error)
}

// Pressure is what the node is short of.
type Pressure struct{ Memory, Disk, PID bool }

// Config says who the node is and what it has.
type Config struct {
	// Client asks as the node. It is needed.
	Client kubernetes.Interface
	// Name is the node's. It is needed.
	Name string
	// Runtime runs its containers. It is needed.
	Runtime Runtime
	// Addresses are where the node is reached; its own without.
	Addresses func() ([]corev1.NodeAddress, error)
	// Images are those that the node has.
	Images func(ctx context.Context) ([]*runtimeapi.Image, error)
	// Port is where the node's server listens; 0 is none.
	Port int32
	// Version is that of the node's program.
	Version string
	// Labels and Taints are for a node that is made.
	Labels map[string]string
	Taints []corev1.Taint
	// Dir is on the file system that pods use.
	Dir string
	// MaxPods is how many pods fit; 110 without.
	MaxPods int64
	// Reserved is kept from pods.
	Reserved corev1.ResourceList
	// Thresholds are below what the node evicts pods, so that they cannot have it.
	Thresholds []evict.Threshold
	// Pressure says what is short.
	Pressure func() Pressure
	// Healthy says why the node is not ready, besides its runtime.
	Healthy func() error
	// Ranges is told the addresses that the node may give to pods, when they
	// change.
	Ranges func(cidrs []string)
	// Event tells what has become of the node.
	Event func(kind, reason, message string)
	// Logger is told what could not be written.
	Logger *slog.Logger
}

// Registrar keeps a node's entry.
type Registrar struct {
	cfg  Config
	wake chan struct{}

	mu       sync.Mutex // guards the fields below
	node     *corev1.Node
	reported time.Time
	delay    time.Duration
}

// New returns a registrar that has written nothing yet.
func New(cfg Config) *Registrar {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Event == nil {
		cfg.Event = func(string, string, string) {}
	}
	if cfg.Addresses == nil {
		cfg.Addresses = func() ([]corev1.NodeAddress, error) { return Addresses(cfg.Name) }
	}
	if cfg.MaxPods == 0 {
		cfg.MaxPods = 110
	}
	return &Registrar{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Run keeps the entry until ctx ends. A node that ends leaves its entry there:
// its pods may run on.
func (r *Registrar) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error {
		lease.NewController(clock.RealClock{}, r.cfg.Client, r.cfg.Name, leaseSeconds, nil, renewEvery, r.cfg.Name, corev1.NamespaceNodeLease, r.own).Run(ctx)
		return nil
	})
	g.Go(func() error { r.keep(ctx); return nil })
	return g.Wait()
}

func (r *Registrar) keep(ctx context.Context) {
	for ctx.Err() == nil {
		pause := observeEvery
		node, err := r.round(ctx)
		if err != nil && ctx.Err() == nil {
			r.cfg.Logger.WarnContext(ctx, "the node's status is not written", "error", err)
		}
		if err != nil || !ready(node) {
			pause = soon
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.wake:
		}
		timer.Stop()
	}
}

// Refresh has the status looked at now, for who knows that it has changed.
func (r *Registrar) Refresh() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Node is the entry as it was last written, nil before the first time. It is
// shared: nobody changes it.
func (r *Registrar) Node() *corev1.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node
}

// Allocatable is what pods can have of the node.
func (r *Registrar) Allocatable() corev1.ResourceList {
	if node := r.Node(); node != nil {
		return node.Status.Allocatable
	}
	return nil
}

// round observes, and writes what has changed.
func (r *Registrar) round(ctx context.Context) (*corev1.Node, error) {
	held, err := r.cfg.Client.CoreV1().Nodes().Get(ctx, r.cfg.Name, metav1.GetOptions{})
	facts := r.observe(ctx)
	switch {
	case apierrors.IsNotFound(err):
		if held, err = r.create(ctx, facts); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	default:
		if held, err = r.label(ctx, held); err != nil {
			return nil, err
		}
	}
	next := held.DeepCopy()
	now := time.Now()
	next.Status = Status(&held.Status, facts, metav1.NewTime(now))
	written := held
	r.mu.Lock()
	due := now.Sub(r.reported) >= reportEvery+r.delay
	r.mu.Unlock()
	if changed := Changed(&held.Status, &next.Status); changed || due {
		if written, _, err = nodeutil.PatchNodeStatus(r.cfg.Client.CoreV1(), types.NodeName(r.cfg.Name), held, next); err != nil {
			return nil, err
		}
		r.tell(&held.Status, &written.Status)
		r.mu.Lock()
		// Nodes that changed together should not report together for ever.
		r.reported, r.delay = now, 0
		if changed {
			r.delay = rand.N(reportEvery) - reportEvery/2
		}
		r.mu.Unlock()
	}
	r.keepNode(written)
	return written, nil
}

func (r *Registrar) keepNode(node *corev1.Node) {
	r.mu.Lock()
	before := r.node
	r.node = node
	r.mu.Unlock()
	if r.cfg.Ranges != nil && len(node.Spec.PodCIDRs) > 0 && (before == nil || fmt.Sprint(before.Spec.PodCIDRs) != fmt.Sprint(node.Spec.PodCIDRs)) {
		r.cfg.Ranges(node.Spec.PodCIDRs)
	}
}

// labels say what the node is.
func (r *Registrar) labels() map[string]string {
	labels := map[string]string{
		corev1.LabelHostname: r.cfg.Name,
		corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	}
	for key := range labels {
		if own, ok := r.cfg.Labels[key]; ok {
			labels[key] = own
		}
	}
	return labels
}

func (r *Registrar) create(ctx context.Context, facts Facts) (*corev1.Node, error) {
	labels := r.labels()
	maps.Copy(labels, r.cfg.Labels)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: r.cfg.Name, Labels: labels,
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec: corev1.NodeSpec{Taints: r.cfg.Taints},
	}
	node.Status = Status(&node.Status, facts, metav1.Now())
	return r.cfg.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
}

// label gives a node that was there the labels that say what it is, and leaves
// others alone: they are its owner's to change.
func (r *Registrar) label(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	next := node.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, r.labels())
	if maps.Equal(next.Labels, node.Labels) {
		return node, nil
	}
	return r.cfg.Client.CoreV1().Nodes().Update(ctx, next, metav1.UpdateOptions{})
}

// own makes the node the owner of its lease, so that it goes with the node.
func (r *Registrar) own(l *coordinationv1.Lease) error {
	if len(l.OwnerReferences) > 0 {
		return nil
	}
	node := r.Node()
	if node == nil {
		return nil // the next renewal knows it
	}
	l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	return nil
}

// tell makes events of conditions that have changed.
func (r *Registrar) tell(before, now *corev1.NodeStatus) {
	for i := range now.Conditions {
		c := &now.Conditions[i]
		_, was := nodeutil.GetNodeCondition(before, c.Type)
		if was != nil && was.Status == c.Status {
			continue
		}
		if reason := eventOf(c); reason != "" {
			r.cfg.Event(corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", r.cfg.Name, reason))
		}
	}
}
