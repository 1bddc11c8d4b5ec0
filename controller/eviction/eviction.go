// Package eviction removes pods from nodes with taints that drive them out: at
// once those that do not tolerate one, and others when they have tolerated it for
// as long as they say.
//
// In come nodes and the pods on them; out come pods marked with why they go,
// deletions and events. plan.go decides. How long a pod has tolerated its node is
// known to this process alone; one that is started again counts from then.
package eviction

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/pods"
)

// workers is how many pods are worked on at once. Compat: as upstream.
const workers = 8

// Controller evicts pods.
type Controller struct {
	*loop.Loop[loop.Key]
	actor *loop.Actor
	pods  listers.PodLister
	on    cache.Indexer
	nodes listers.NodeLister

	mu    sync.Mutex // guards the field below
	since map[loop.Key]tolerated
}

// tolerated is since when a pod has tolerated its node.
type tolerated struct {
	pod  types.UID
	from time.Time
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	core := a.Informers.Core().V1()
	c := &Controller{actor: a, pods: core.Pods().Lister(), on: pods.IndexByNode(core.Pods().Informer()), nodes: core.Nodes().Lister(), since: map[loop.Key]tolerated{}}
	c.Loop = loop.New(a, "noexec_taint_pod", workers, c.reconcile)
	loop.Watch(c.Loop, "pods", core.Pods().Informer(), c.ofPod)
	loop.Watch(c.Loop, "nodes", core.Nodes().Informer(), c.ofNode)
	return c
}

// ofPod is a pod whose node or tolerations are others than before, and that is
// on a node that drives out.
func (c *Controller) ofPod(before, after *corev1.Pod) []loop.Key {
	if after == nil {
		return []loop.Key{loop.KeyOf(before)}
	}
	if before != nil && before.Spec.NodeName == after.Spec.NodeName && apiequality.Semantic.DeepEqual(before.Spec.Tolerations, after.Spec.Tolerations) {
		return nil
	}
	if n, err := c.nodes.Get(after.Spec.NodeName); err != nil || len(driving(n)) == 0 {
		return nil
	}
	return []loop.Key{loop.KeyOf(after)}
}

// ofNode are the pods on a node whose taints are others than before.
func (c *Controller) ofNode(before, after *corev1.Node) []loop.Key {
	if after == nil || before == nil && len(driving(after)) == 0 || before != nil && apiequality.Semantic.DeepEqual(driving(before), driving(after)) {
		return nil
	}
	var keys []loop.Key
	for _, p := range pods.On(c.on, after.Name) {
		keys = append(keys, loop.KeyOf(p))
	}
	return keys
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if err != nil || pod.DeletionTimestamp != nil {
		c.forget(key)
		return 0, nil //nolint:nilerr // it is not there
	}
	var taints []corev1.Taint
	if n, err := c.nodes.Get(pod.Spec.NodeName); err == nil {
		taints = driving(n)
	}
	now := time.Now()
	seen := Observed{Pod: pod, Taints: taints, Since: c.from(key, pod), Now: now}
	p := plan(seen)
	if p.Cancel {
		c.tell(pod, "Cancelling deletion of Pod "+key.String())
	}
	c.note(key, pod, p)
	if !p.Evict {
		return p.Again, nil
	}
	c.tell(pod, "Marking for deletion Pod "+key.String())
	return 0, c.evict(ctx, pod, now)
}

// from is since when a pod has tolerated its node; zero when it has not had to.
func (c *Controller) from(key loop.Key, pod *corev1.Pod) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.since[key]; t.pod == pod.UID {
		return t.from
	}
	return time.Time{}
}

func (c *Controller) note(key loop.Key, pod *corev1.Pod, p Plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.Since.IsZero() {
		delete(c.since, key)
	} else {
		c.since[key] = tolerated{pod.UID, p.Since}
	}
}

func (c *Controller) forget(key loop.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.since, key)
}

// tell says what becomes of a pod. Compat: the pod's UID is not told, as upstream
// does not.
func (c *Controller) tell(p *corev1.Pod, message string) {
	c.actor.Events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name}, corev1.EventTypeNormal, "TaintManagerEviction", message)
}

// evict says why a pod goes, and deletes it.
func (c *Controller) evict(ctx context.Context, pod *corev1.Pod, now time.Time) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation, LastTransitionTime: metav1.NewTime(now),
			Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint",
		}}},
	})
	if err != nil {
		return err
	}
	all := c.actor.Client.CoreV1().Pods(pod.Namespace)
	if _, err := all.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return gone(err)
	}
	return gone(all.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}))
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// driving are the taints of a node that drive pods out.
func driving(n *corev1.Node) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectNoExecute })
}
