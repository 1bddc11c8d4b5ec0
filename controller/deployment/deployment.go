// Package deployment rolls out pods: a Deployment has a replica set for each of
// the templates that it has had, and moves its pods from one to the next.
//
// In come deployments, their replica sets, and pods of those that recreate; out
// go replica sets of other sizes, and how far the rollout is. plan.go decides;
// what it says is written in order, and the rest waits for the next look.
package deployment

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	listers "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/own"
	"setpoint.dev/setpoint/controller/template"
)

// workers is how many deployments are worked on at once. Compat: as upstream.
const workers = 5

var kind = appsv1.SchemeGroupVersion.WithKind("Deployment")

// Controller rolls out deployments.
type Controller struct {
	*loop.Loop[loop.Key]
	actor       *loop.Actor
	deployments listers.DeploymentLister
	sets, pods  cache.Indexer
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	apps := a.Informers.Apps().V1()
	deployments, sets, pods := apps.Deployments(), apps.ReplicaSets().Informer(), a.Informers.Core().V1().Pods().Informer()
	c := &Controller{actor: a, deployments: deployments.Lister(), sets: own.Index(sets), pods: own.Index(pods)}
	c.Loop = loop.New(a, "deployment", workers, c.reconcile)
	loop.Watch(c.Loop, "deployments.apps", deployments.Informer(), loop.Self[*appsv1.Deployment])
	loop.Watch(c.Loop, "replicasets.apps", sets, own.Concerned[*appsv1.ReplicaSet](kind, c.selecting))
	loop.Watch(c.Loop, "pods", pods, c.ended)
	return c
}

// selecting are the deployments of a namespace.
func (c *Controller) selecting(namespace string) []own.Selecting {
	all, _ := c.deployments.Deployments(namespace).List(labels.Everything()) // a cache has no errors
	some := make([]own.Selecting, len(all))
	for i, d := range all {
		some[i] = own.Selecting{Object: d, Selector: d.Spec.Selector}
	}
	return some
}

// ended is the deployment that waits for the end of a pod, when there is one:
// those that recreate do.
func (c *Controller) ended(before, after *corev1.Pod) []loop.Key {
	if before == nil || after != nil && (after.Status.Phase == before.Status.Phase) {
		return nil
	}
	ref := metav1.GetControllerOfNoCopy(before)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return nil
	}
	obj, found, err := c.sets.GetByKey(before.Namespace + "/" + ref.Name)
	set, ok := obj.(*appsv1.ReplicaSet)
	if err != nil || !found || !ok {
		return nil
	}
	ref = metav1.GetControllerOfNoCopy(set)
	if ref == nil || ref.Kind != kind.Kind {
		return nil
	}
	d, err := c.deployments.Deployments(before.Namespace).Get(ref.Name)
	if err != nil || d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		return nil
	}
	return []loop.Key{loop.KeyOf(d)}
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	d, err := c.deployments.Deployments(key.Namespace).Get(key.Name)
	if err != nil {
		return 0, nil //nolint:nilerr // a cache knows no other error than that it is not there
	}
	seen, err := c.observe(ctx, d)
	if err != nil {
		return 0, err
	}
	p := plan(seen)
	return p.Again, c.act(ctx, seen, p)
}

func (c *Controller) observe(ctx context.Context, d *appsv1.Deployment) (Observed, error) {
	seen := Observed{Deployment: d, Now: time.Now()}
	if selectsAll(d) {
		return seen, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return seen, err
	}
	seen.Sets, err = own.Claimed[*appsv1.ReplicaSet](ctx, c.sets, own.Owner{
		Object: d, Kind: kind,
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return c.actor.Client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, namespace, name string, patch []byte) error {
			_, err := c.actor.Client.AppsV1().ReplicaSets(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}, selector)
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		for _, set := range seen.Sets {
			seen.Pods = append(seen.Pods, own.By[*corev1.Pod](c.pods, set.UID)...)
		}
	}
	return seen, err
}

// act writes what is planned. What fails is planned anew.
func (c *Controller) act(ctx context.Context, seen Observed, p Plan) error {
	d, apps := seen.Deployment, c.actor.Client.AppsV1()
	if p.Create != nil {
		if done, err := c.create(ctx, seen, p.Create); err != nil || !done {
			return err
		}
	}
	for _, change := range p.Update {
		if _, err := apps.ReplicaSets(d.Namespace).Update(ctx, change.Set, metav1.UpdateOptions{}); err != nil {
			return err
		}
		if change.Event != nil {
			c.tell(d, *change.Event)
		}
	}
	for _, set := range p.Delete {
		if err := apps.ReplicaSets(d.Namespace).Delete(ctx, set.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if p.Spec != nil {
		if _, err := apps.Deployments(d.Namespace).Update(ctx, p.Spec, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	for _, e := range p.Events {
		c.tell(d, e)
	}
	if p.Status != nil {
		_, err := apps.Deployments(d.Namespace).UpdateStatus(ctx, p.Status, metav1.UpdateOptions{})
		return err
	}
	return nil
}

// create makes the set of a new template. It is not done when there is one of
// that name already: ours, which a cache will show, or that of another template,
// after which the next try has another name.
func (c *Controller) create(ctx context.Context, seen Observed, set *appsv1.ReplicaSet) (done bool, err error) {
	d, apps := seen.Deployment, c.actor.Client.AppsV1()
	_, err = apps.ReplicaSets(d.Namespace).Create(ctx, set, metav1.CreateOptions{})
	switch {
	case err == nil:
		return true, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return false, nil // the deployment goes, too
	case !apierrors.IsAlreadyExists(err):
		failed, told := failedToCreate(seen, set.Name, err)
		c.tell(d, told)
		_, _ = apps.Deployments(d.Namespace).UpdateStatus(ctx, failed, metav1.UpdateOptions{}) // the reason why is what matters
		return false, err
	}
	have, err := apps.ReplicaSets(d.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	if err != nil || metav1.IsControlledBy(have, d) && sameTemplate(&d.Spec.Template, &have.Spec.Template) {
		return false, err
	}
	next := d.DeepCopy()
	next.Status.CollisionCount = template.Collided(d.Status.CollisionCount)
	_, err = apps.Deployments(d.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return false, err
}

func (c *Controller) tell(d *appsv1.Deployment, e Event) {
	c.actor.Events.Event(d, e.Type, e.Reason, e.Message)
}
