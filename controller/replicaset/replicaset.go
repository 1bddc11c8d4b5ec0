// Package replicaset keeps as many pods as a ReplicaSet, or a
// ReplicationController, asks for.
//
// In come sets and pods; out come pods created and deleted, orphans adopted,
// strangers released, and the set's status. Pods that have ended do not count;
// pods that are not initialized yet do, and are not ready. A set that is being
// deleted creates and deletes nothing: its pods are the garbage collector's.
package replicaset

import (
	"context"
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/own"
	"setpoint.dev/setpoint/controller/pods"
)

// workers is how many sets are worked on at once. Compat: as upstream.
const workers = 5

// Controller keeps the pods of the sets of one kind.
type Controller struct {
	*loop.Loop[loop.Key]
	actor   *loop.Actor
	sets    sets
	pods    cache.Indexer
	control pods.Control
}

// New returns the controller of ReplicaSets.
func New(a *loop.Actor) loop.Runner { return newController(a, replicaSets{a}) }

// NewReplication returns the controller of ReplicationControllers.
func NewReplication(a *loop.Actor) loop.Runner { return newController(a, replicationControllers{a}) }

func newController(a *loop.Actor, s sets) *Controller {
	informer := a.Informers.Core().V1().Pods().Informer()
	c := &Controller{
		actor: a, sets: s, pods: own.Index(informer),
		control: pods.Control{Client: a.Client, Events: a.Events},
	}
	c.Loop = loop.New(a, s.queue(), workers, c.reconcile)
	s.watch(c.Loop)
	loop.Watch(c.Loop, "pods", informer, own.Concerned[*corev1.Pod](s.kind(), c.selecting))
	return c
}

// selecting are the sets of a namespace.
func (c *Controller) selecting(namespace string) []own.Selecting {
	all := c.sets.list(namespace)
	some := make([]own.Selecting, len(all))
	for i, set := range all {
		some[i] = own.Selecting{Object: set, Selector: set.Spec.Selector}
	}
	return some
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	set := c.sets.get(key)
	if set == nil {
		return 0, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil || selector.Empty() {
		return 0, nil //nolint:nilerr // only a change of the set can help
	}
	mine, going, err := c.observe(ctx, set, selector)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	var failure error
	if set.DeletionTimestamp == nil {
		failure = c.act(ctx, set, plan(set, mine, c.related(set), now))
	}
	s := status(set, mine, going, failure, now)
	if !c.sets.tellsTerminating() {
		s.TerminatingReplicas = nil
	}
	if err := c.tell(ctx, set, s); err != nil {
		return 0, errors.Join(failure, err)
	}
	return nextCheck(set, mine, now), failure
}

// observe returns the set's pods that are active, and those that are going.
func (c *Controller) observe(ctx context.Context, set *appsv1.ReplicaSet, selector labels.Selector) (mine, going []*corev1.Pod, err error) {
	all := append(own.By[*corev1.Pod](c.pods, set.UID), own.Orphans[*corev1.Pod](c.pods, set.Namespace)...)
	selects := func(p *corev1.Pod) bool { return selector.Matches(labels.Set(p.Labels)) }
	mine, err = own.Claim(ctx, own.Owner{
		Object: set, Kind: c.sets.kind(),
		Fresh: func(ctx context.Context) (metav1.Object, error) { return c.sets.fresh(ctx, set.Namespace, set.Name) },
		Patch: func(ctx context.Context, namespace, name string, patch []byte) error {
			_, err := c.actor.Client.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}, pods.Filter(all, pods.Active), selects)
	going = pods.Filter(all, func(p *corev1.Pod) bool {
		return pods.Terminating(p) && metav1.IsControlledBy(p, set) && selects(p)
	})
	return mine, going, err
}

// related are the pods of all sets that have the same controller as this one,
// as those of a Deployment have.
func (c *Controller) related(set *appsv1.ReplicaSet) []*corev1.Pod {
	var all []*corev1.Pod
	for _, other := range c.sets.siblings(set) {
		all = append(all, own.By[*corev1.Pod](c.pods, other.UID)...)
	}
	return all
}

// act creates and deletes pods as planned.
func (c *Controller) act(ctx context.Context, set *appsv1.ReplicaSet, p Plan) error {
	owner := c.sets.object(set)
	ref := metav1.NewControllerRef(set, c.sets.kind())
	if _, err := pods.SlowStart(p.Create, func() error {
		_, err := c.control.Create(ctx, pods.FromTemplate(&set.Spec.Template, set, ref), owner, set.Namespace)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil // the set goes, too
		}
		return err
	}); err != nil {
		return err
	}
	_, err := pods.Each(len(p.Delete), func(i int) error {
		err := c.control.Delete(ctx, set.Namespace, p.Delete[i].Name, owner)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	return err
}

// tell writes the status where it has changed.
func (c *Controller) tell(ctx context.Context, set *appsv1.ReplicaSet, status appsv1.ReplicaSetStatus) error {
	if apiequality.Semantic.DeepEqual(set.Status, status) {
		return nil
	}
	set = set.DeepCopy()
	set.Status = status
	return c.sets.updateStatus(ctx, set)
}
