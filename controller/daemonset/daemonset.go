// Package daemonset keeps one pod on each node: a DaemonSet says of which nodes,
// and how pods of an earlier template are replaced.
//
// In come sets, nodes, pods and revisions; out go pods, each meant for its node,
// which the scheduler puts there.
package daemonset

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/own"
	"setpoint.dev/setpoint/controller/pods"
	"setpoint.dev/setpoint/controller/revision"
	"setpoint.dev/setpoint/controller/template"
)

// workers is how many sets are worked on at once; a pod that failed on a node is
// replaced after a second at first, and after a quarter of an hour at last.
// Compat: as upstream.
const (
	workers     = 2
	firstWait   = time.Second
	longestWait = 15 * time.Minute
)

// Controller keeps the pods of sets.
type Controller struct {
	*loop.Loop[loop.Key]
	actor           *loop.Actor
	sets            listers.DaemonSetLister
	nodes           corelisters.NodeLister
	pods, revisions cache.Indexer
	control         pods.Control
	failures        *flowcontrol.Backoff
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	apps, core := a.Informers.Apps().V1(), a.Informers.Core().V1()
	podInformer, revisions := core.Pods().Informer(), apps.ControllerRevisions().Informer()
	c := &Controller{
		actor: a, sets: apps.DaemonSets().Lister(), nodes: core.Nodes().Lister(),
		pods: own.Index(podInformer), revisions: own.Index(revisions),
		control: pods.Control{Client: a.Client, Events: a.Events}, failures: flowcontrol.NewBackOff(firstWait, longestWait),
	}
	c.Loop = loop.New(a, "daemonset", workers, c.reconcile)
	loop.Watch(c.Loop, "daemonsets.apps", apps.DaemonSets().Informer(), loop.Self[*appsv1.DaemonSet])
	loop.Watch(c.Loop, "pods", podInformer, own.Concerned[*corev1.Pod](kind, c.selecting))
	loop.Watch(c.Loop, "nodes", core.Nodes().Informer(), c.every)
	loop.Watch[loop.Key, *appsv1.ControllerRevision](c.Loop, "controllerrevisions.apps", revisions, nil)
	return c
}

// selecting are the sets of a namespace.
func (c *Controller) selecting(namespace string) []own.Selecting {
	all, _ := c.sets.DaemonSets(namespace).List(labels.Everything()) // a cache has no errors
	some := make([]own.Selecting, len(all))
	for i, s := range all {
		some[i] = own.Selecting{Object: s, Selector: s.Spec.Selector}
	}
	return some
}

// every set is concerned when a node comes, goes or fits others than before.
func (c *Controller) every(before, after *corev1.Node) []loop.Key {
	if before != nil && after != nil && maps.Equal(before.Labels, after.Labels) && apiequality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil
	}
	all, _ := c.sets.List(labels.Everything()) // a cache has no errors
	keys := make([]loop.Key, len(all))
	for i, s := range all {
		keys[i] = loop.KeyOf(s)
	}
	return keys
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	set, err := c.sets.DaemonSets(key.Namespace).Get(key.Name)
	if err != nil {
		return 0, nil //nolint:nilerr // a cache knows no other error than that it is not there
	}
	seen, err := c.observe(ctx, set)
	if err != nil {
		return 0, err
	}
	p, err := plan(seen)
	if err != nil {
		return 0, err
	}
	return p.Again, c.act(ctx, set, p)
}

func (c *Controller) observe(ctx context.Context, set *appsv1.DaemonSet) (Observed, error) {
	seen := Observed{Set: set, Wait: map[string]time.Duration{}, Now: time.Now()}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil || selector.Empty() || set.DeletionTimestamp != nil {
		return seen, err
	}
	owner := own.Owner{Object: set, Kind: kind, Fresh: func(ctx context.Context) (metav1.Object, error) {
		return c.actor.Client.AppsV1().DaemonSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}}
	if seen.Revisions, err = revision.Claim(ctx, c.actor.Client, c.revisions, owner, selector); err != nil {
		return seen, err
	}
	if seen.Pods, err = pods.Claim(ctx, c.actor.Client, c.pods, owner, selector); err != nil {
		return seen, err
	}
	seen.Nodes, err = c.nodes.List(labels.Everything())
	for _, p := range seen.Pods {
		node := nodeOf(p)
		if key := failureKey(set, node); p.Status.Phase == corev1.PodFailed && c.failures.IsInBackOffSinceUpdate(key, seen.Now) {
			seen.Wait[node] = c.failures.Get(key)
		}
	}
	return seen, err
}

// failureKey is under which failures on a node are remembered: another template
// begins anew.
func failureKey(set *appsv1.DaemonSet, node string) string {
	return fmt.Sprintf("%s/%d/%s", set.UID, set.Status.ObservedGeneration, node)
}

// act writes what is planned. What fails is planned anew; the status is written
// nevertheless.
func (c *Controller) act(ctx context.Context, set *appsv1.DaemonSet, p Plan) error {
	if p.Revision.ControllerRevision != nil {
		collides, err := p.Revision.Keep(ctx, c.actor.Client)
		if err != nil {
			return err
		}
		if collides {
			return c.rename(ctx, set)
		}
	}
	for _, e := range p.Events {
		c.actor.Events.Event(set, e.Type, e.Reason, e.Message)
	}
	c.failures.GC()
	for _, node := range p.Failed {
		c.failures.Next(failureKey(set, node), time.Now())
	}
	failure := c.actOnPods(ctx, set, p)
	if p.Status != nil {
		if _, err := c.actor.Client.AppsV1().DaemonSets(set.Namespace).UpdateStatus(ctx, p.Status, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if failure != nil {
		return failure
	}
	return revision.Trim(ctx, c.actor.Client, p.Trim)
}

func (c *Controller) actOnPods(ctx context.Context, set *appsv1.DaemonSet, p Plan) error {
	var next atomic.Int32
	_, err := pods.SlowStart(len(p.Create), func() error {
		_, err := c.control.Create(ctx, p.Create[next.Add(1)-1], set, set.Namespace)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil // the set goes, too
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = pods.Each(len(p.Delete), func(i int) error {
		err := c.control.Delete(ctx, set.Namespace, p.Delete[i].Name, set)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	return err
}

// rename leads to another name for the set's template: the one it has is taken.
func (c *Controller) rename(ctx context.Context, set *appsv1.DaemonSet) error {
	set = set.DeepCopy()
	set.Status.CollisionCount = template.Collided(set.Status.CollisionCount)
	_, err := c.actor.Client.AppsV1().DaemonSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	return err
}
