// Package podgc removes pods that nobody else will: those whose node is gone or
// out of service, those that are deleted before they got a node, and the oldest
// of too many that have ended.
//
// In come pods and nodes; out come pods marked as failed, so that their
// controllers see how they ended, and deleted without a grace period.
package podgc

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/controller/loop"
)

// Compat: the pace and the bounds are upstream's.
const (
	quarantine = 40 * time.Second // how long a node may be unknown
	threshold  = 12500            // how many pods that have ended may stay
	countEvery = 20 * time.Second
	workers    = 2
)

// tooMany is the key under which pods that have ended are counted.
var tooMany = loop.Key{}

// Controller removes pods.
type Controller struct {
	*loop.Loop[loop.Key]
	actor *loop.Actor

	mu      sync.Mutex           // guards the field below
	missing map[string]time.Time // nodes that pods name, and since when they are not known
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	c := &Controller{actor: a, missing: map[string]time.Time{}}
	c.Loop = loop.New(a, "podgc", workers, c.reconcile)
	loop.Watch(c.Loop, "pods", a.Informers.Core().V1().Pods().Informer(), func(before, after *corev1.Pod) []loop.Key {
		if after == nil {
			return nil
		}
		if ended(after) && (before == nil || !ended(before)) {
			c.AddAfter(tooMany, countEvery)
		}
		return []loop.Key{loop.KeyOf(after)}
	})
	loop.Watch(c.Loop, "nodes", a.Informers.Core().V1().Nodes().Informer(), c.ofNode)
	return c
}

// ofNode are the pods of a node that has gone or is out of service.
func (c *Controller) ofNode(before, after *corev1.Node) []loop.Key {
	if after != nil && !outOfService(after) {
		return nil
	}
	node := before
	if after != nil {
		node = after
	}
	var keys []loop.Key
	for _, p := range c.pods() {
		if p.Spec.NodeName == node.Name {
			keys = append(keys, loop.KeyOf(p))
		}
	}
	return keys
}

func (c *Controller) pods() []*corev1.Pod {
	all, _ := c.actor.Informers.Core().V1().Pods().Lister().List(labels.Everything()) // a cache has no errors
	return all
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// outOfService says that a node is not ready and has been given up.
func outOfService(n *corev1.Node) bool {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return !ready && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	if key == tooMany {
		return 0, c.thin(ctx)
	}
	core := c.actor.Informers.Core().V1()
	pod, err := core.Pods().Lister().Pods(key.Namespace).Get(key.Name)
	if err != nil {
		return 0, nil //nolint:nilerr // it is not there
	}
	if pod.Spec.NodeName == "" {
		if pod.DeletionTimestamp == nil {
			return 0, nil
		}
		return 0, c.remove(ctx, pod, nil)
	}
	node, err := core.Nodes().Lister().Get(pod.Spec.NodeName)
	if err == nil {
		c.seen(node.Name)
		if pod.DeletionTimestamp != nil && outOfService(node) {
			return 0, c.remove(ctx, pod, nil)
		}
		return 0, nil
	}
	if wait := c.wait(pod.Spec.NodeName, time.Now()); wait > 0 {
		return wait, nil
	}
	if _, err := c.actor.Client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return 0, err
	}
	return 0, c.remove(ctx, pod, &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation,
		Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists", LastTransitionTime: metav1.Now(),
	})
}

// wait is how long a node that is not known may still show up.
func (c *Controller) wait(node string, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Those of which no pod has asked for long have no pods any more.
	maps.DeleteFunc(c.missing, func(_ string, since time.Time) bool { return now.Sub(since) > 10*quarantine })
	since, known := c.missing[node]
	if !known {
		since = now
		c.missing[node] = now
	}
	return max(0, since.Add(quarantine).Sub(now))
}

func (c *Controller) seen(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.missing, node)
}

// remove marks a pod as failed, with the reason if there is one, and deletes it.
func (c *Controller) remove(ctx context.Context, pod *corev1.Pod, why *corev1.PodCondition) error {
	pods := c.actor.Client.CoreV1().Pods(pod.Namespace)
	if !ended(pod) {
		patch, err := failed(pod, why)
		if err != nil {
			return err
		}
		if _, err := pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return gone(err)
		}
	}
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = &metav1.Preconditions{UID: &pod.UID}
	return gone(pods.Delete(ctx, pod.Name, *options))
}

// failed is the patch that marks a pod as failed.
func failed(pod *corev1.Pod, why *corev1.PodCondition) ([]byte, error) {
	status := map[string]any{"phase": corev1.PodFailed, "observedGeneration": pod.Generation}
	if why != nil {
		status["conditions"] = []corev1.PodCondition{*why}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// thin removes the oldest of too many pods that have ended.
func (c *Controller) thin(ctx context.Context) error {
	for _, p := range surplus(c.pods(), threshold) {
		if err := c.remove(ctx, p, nil); err != nil {
			return err
		}
	}
	return nil
}

// surplus are the pods that have ended beyond so many: first those that were
// evicted, then the oldest.
func surplus(pods []*corev1.Pod, keep int) []*corev1.Pod {
	over := slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !ended(p) })
	if len(over) <= keep {
		return nil
	}
	evicted := func(p *corev1.Pod) int {
		if p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" {
			return 0
		}
		return 1
	}
	slices.SortFunc(over, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(evicted(a), evicted(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return over[:len(over)-keep]
}
