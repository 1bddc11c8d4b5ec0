package status

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
)

// writers is how many pods are written about at once.
const writers = 8

// Pauses before what failed is written again.
const firstPause, longestPause = 200 * time.Millisecond, 10 * time.Second

// News is what is to be told about a pod. A newer one takes the place of one that
// was not told yet.
type News struct {
	// Pod is whom it is about: its name, UID and generation count.
	Pod *corev1.Pod
	// Status is how it is.
	Status corev1.PodStatus
	// MayRun says that something of it may still run: no end is told then.
	MayRun bool
	// Gone says that nothing is left of it here: one that is being deleted goes
	// from the API.
	Gone bool
	// Wanted, if it is not nil, says whether the API still has the pod. What could
	// not be told of one that it has not is dropped: a node may not even ask for a
	// pod that is gone.
	Wanted func() bool

	refused int // how often the API has said that the node may not tell
}

// Writer tells the API how pods are. It is the only one of its node that does, and
// tells one thing at a time about each pod.
type Writer struct {
	client kubernetes.Interface
	logger *slog.Logger

	mu      sync.Mutex // guards the field below
	pending map[types.UID]News
	wake    chan struct{}
}

// NewWriter returns a writer. Run writes.
func NewWriter(client kubernetes.Interface, logger *slog.Logger) *Writer {
	return &Writer{client: client, logger: logger, pending: map[types.UID]News{}, wake: make(chan struct{}, 1)}
}

// Set has news told. It does not wait. Of each pod only the newest is kept, so
// there is no more to tell than there are pods.
func (w *Writer) Set(n News) {
	w.mu.Lock()
	w.pending[n.Pod.UID] = n
	w.mu.Unlock()
	w.nudge()
}

func (w *Writer) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take is everything that is to be told.
func (w *Writer) take() []News {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]News, 0, len(w.pending))
	for _, n := range w.pending {
		all = append(all, n)
	}
	clear(w.pending)
	return all
}

// putBack keeps what could not be told, unless there is something newer.
func (w *Writer) putBack(n News) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, newer := w.pending[n.Pod.UID]; !newer {
		w.pending[n.Pod.UID] = n
	}
}

// Run tells until ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	pause := firstPause
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
		if w.write(ctx) {
			pause = firstPause
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
		w.nudge()
	}
}

// write tells everything once and says whether all of it is known now.
func (w *Writer) write(ctx context.Context) bool {
	var g errgroup.Group
	g.SetLimit(writers)
	var mu sync.Mutex
	good := true
	for _, n := range w.take() {
		g.Go(func() error {
			err := w.tell(ctx, n)
			if err == nil || n.Wanted != nil && !n.Wanted() {
				return nil
			}
			if n.worth(err) && ctx.Err() == nil {
				w.logger.Warn("a pod's status is not written yet", "pod", n.Pod.Namespace+"/"+n.Pod.Name, "error", err)
			}
			w.putBack(n)
			mu.Lock()
			defer mu.Unlock()
			good = false
			return nil
		})
	}
	_ = g.Wait() // nobody returns an error
	return good
}

// patience is how often a node may be refused before that is told: a pod that has
// just gone is not its node's any more, a moment before the node hears of it.
const patience = 6

// worth says whether an error is worth a line in the log.
func (n *News) worth(err error) bool {
	if apierrors.IsForbidden(err) {
		n.refused++
		return n.refused >= patience
	}
	return !apierrors.IsConflict(err)
}

// tell writes one status, and removes the pod when it is to go. A pod that is
// gone, or another of the same name, needs nothing.
func (w *Writer) tell(ctx context.Context, n News) error {
	pods := w.client.CoreV1().Pods(n.Pod.Namespace)
	now, err := pods.Get(ctx, n.Pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != n.Pod.UID {
		return nil
	}
	if err != nil {
		return err
	}
	merged := merge(now, n)
	patch, err := change(now, merged)
	if err != nil {
		return err
	}
	if patch != nil {
		if now, err = pods.Patch(ctx, n.Pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return unlessGone(err)
		}
	}
	if !n.Gone || now.DeletionTimestamp == nil {
		return nil
	}
	zero := int64(0)
	return unlessGone(pods.Delete(ctx, n.Pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: metav1.NewUIDPreconditions(string(n.Pod.UID))}))
}

// Told says whether a pod has changed in nothing but what a Writer tells: its
// status, without the conditions of others and its phase.
func Told(before, now *corev1.Pod) bool {
	others := func(p *corev1.Pod) corev1.Pod {
		o := *p
		o.ResourceVersion, o.ManagedFields = "", nil
		o.Status = corev1.PodStatus{Phase: p.Status.Phase}
		for _, c := range p.Status.Conditions {
			if !ours(c.Type) {
				o.Status.Conditions = append(o.Status.Conditions, c)
			}
		}
		return o
	}
	return apiequality.Semantic.DeepEqual(others(before), others(now))
}

func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// merge is what the API is to hold: our part as told, the parts of others as they
// are there.
func merge(now *corev1.Pod, n News) corev1.PodStatus {
	s := *n.Status.DeepCopy()
	var all []corev1.PodCondition
	for _, c := range now.Status.Conditions {
		if !ours(c.Type) {
			all = append(all, c)
		}
	}
	ends := !Terminal(now.Status.Phase) && Terminal(s.Phase)
	for _, c := range s.Conditions {
		if ours(c.Type) || c.Type == corev1.DisruptionTarget && ends && !n.MayRun && condition(all, c.Type) == nil {
			all = append(all, c)
		}
	}
	s.Conditions = all
	s.ResourceClaimStatuses, s.ExtendedResourceClaimStatus = now.Status.ResourceClaimStatuses, now.Status.ExtendedResourceClaimStatus
	s.NodeAllocatableResourceClaimStatuses, s.NominatedNodeName = now.Status.NodeAllocatableResourceClaimStatuses, now.Status.NominatedNodeName
	s.ObservedGeneration = max(s.ObservedGeneration, now.Status.ObservedGeneration)
	if s.QOSClass == "" {
		s.QOSClass = now.Status.QOSClass
	}
	switch {
	case Terminal(now.Status.Phase):
		s.Phase = now.Status.Phase
	case ends && n.MayRun:
		s.Phase, s.Reason, s.Message = now.Status.Phase, now.Status.Reason, now.Status.Message
	}
	unready(&s, now.Generation)
	return s
}

// change is the patch from a pod's status to another, nil when there is nothing to
// change. It names the UID, so that it is for no other pod of that name.
func change(now *corev1.Pod, to corev1.PodStatus) ([]byte, error) {
	if apiequality.Semantic.DeepEqual(now.Status, to) {
		return nil, nil
	}
	from, err := json.Marshal(corev1.Pod{Status: now.Status})
	if err != nil {
		return nil, err
	}
	wanted, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: now.UID}, Status: to})
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(from, wanted, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("patch of a pod's status: %w", err)
	}
	return patch, nil
}
