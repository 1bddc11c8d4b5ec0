// Package statefulset keeps pods that are not alike: each pod of a StatefulSet
// has a number, and with it a name and storage that stay when the pod is
// replaced.
//
// In come sets, their pods, claims and revisions; out go pods one after the
// other, or all at once for sets that ask for it, and claims that outlive them
// as the set's policy says.
package statefulset

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/own"
	"setpoint.dev/setpoint/controller/pods"
	"setpoint.dev/setpoint/controller/revision"
	"setpoint.dev/setpoint/controller/template"
)

// workers is how many sets are worked on at once. Compat: as upstream.
const workers = 5

// Controller keeps the pods of sets.
type Controller struct {
	*loop.Loop[loop.Key]
	actor           *loop.Actor
	sets            listers.StatefulSetLister
	claims          corelisters.PersistentVolumeClaimLister
	pods, revisions cache.Indexer
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	apps, core := a.Informers.Apps().V1(), a.Informers.Core().V1()
	podInformer, revisions := core.Pods().Informer(), apps.ControllerRevisions().Informer()
	c := &Controller{
		actor: a, sets: apps.StatefulSets().Lister(), claims: core.PersistentVolumeClaims().Lister(),
		pods: own.Index(podInformer), revisions: own.Index(revisions),
	}
	c.Loop = loop.New(a, "statefulset", workers, c.reconcile)
	loop.Watch(c.Loop, "statefulsets.apps", apps.StatefulSets().Informer(), loop.Self[*appsv1.StatefulSet])
	loop.Watch(c.Loop, "pods", podInformer, own.Concerned[*corev1.Pod](kind, c.selecting))
	loop.Watch[loop.Key, *corev1.PersistentVolumeClaim](c.Loop, "persistentvolumeclaims", core.PersistentVolumeClaims().Informer(), nil)
	loop.Watch[loop.Key, *appsv1.ControllerRevision](c.Loop, "controllerrevisions.apps", revisions, nil)
	return c
}

// selecting are the sets of a namespace.
func (c *Controller) selecting(namespace string) []own.Selecting {
	all, _ := c.sets.StatefulSets(namespace).List(labels.Everything()) // a cache has no errors
	some := make([]own.Selecting, len(all))
	for i, s := range all {
		some[i] = own.Selecting{Object: s, Selector: s.Spec.Selector}
	}
	return some
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	set, err := c.sets.StatefulSets(key.Namespace).Get(key.Name)
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

func (c *Controller) observe(ctx context.Context, set *appsv1.StatefulSet) (Observed, error) {
	seen := Observed{Set: set, Claims: map[string]*corev1.PersistentVolumeClaim{}, Now: time.Now()}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return seen, err
	}
	owner := own.Owner{Object: set, Kind: kind, Fresh: func(ctx context.Context) (metav1.Object, error) {
		return c.actor.Client.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}}
	if seen.Revisions, err = revision.Claim(ctx, c.actor.Client, c.revisions, owner, selector); err != nil {
		return seen, err
	}
	if seen.Pods, err = pods.Claim(ctx, c.actor.Client, c.pods, owner, selector); err != nil {
		return seen, err
	}
	s := &scope{Observed: seen, set: set}
	all := make([]*corev1.Pod, 0, len(seen.Pods)+s.wanted())
	all = append(all, seen.Pods...)
	for i := range s.wanted() {
		all = append(all, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", set.Name, s.first()+i)}})
	}
	for _, t := range set.Spec.VolumeClaimTemplates {
		for _, p := range all {
			if claim, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(s.claimName(t.Name, p)); err == nil {
				seen.Claims[claim.Name] = claim
			}
		}
	}
	return seen, nil
}

// act writes what is planned. What fails is planned anew; the status is written
// nevertheless.
func (c *Controller) act(ctx context.Context, set *appsv1.StatefulSet, p Plan) error {
	collides, err := p.Revision.Keep(ctx, c.actor.Client)
	if err != nil {
		return err
	}
	if collides {
		return c.rename(ctx, set)
	}
	var failure error
	if set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		_, failure = pods.Each(len(p.Steps), func(i int) error { return c.step(ctx, set, p.Steps[i]) })
	} else {
		for _, s := range p.Steps {
			if failure = c.step(ctx, set, s); failure != nil {
				break
			}
		}
	}
	if p.Status != nil {
		if _, err := c.actor.Client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, p.Status, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if failure != nil {
		return failure
	}
	return revision.Trim(ctx, c.actor.Client, p.Trim)
}

// rename leads to another name for the set's template: the one it has is taken.
func (c *Controller) rename(ctx context.Context, set *appsv1.StatefulSet) error {
	set = set.DeepCopy()
	set.Status.CollisionCount = template.Collided(set.Status.CollisionCount)
	_, err := c.actor.Client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	return err
}

func (c *Controller) step(ctx context.Context, set *appsv1.StatefulSet, s Step) error {
	core := c.actor.Client.CoreV1()
	for _, claim := range s.Claims {
		_, err := core.PersistentVolumeClaims(set.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return err // a cache will show it
		}
		p := s.Create
		if p == nil {
			p = s.Update
		}
		if p == nil {
			p = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}}
		}
		c.tellClaim(set, p, claim, err)
		if err != nil {
			return fmt.Errorf("failed to create PVC %s: %w", claim.Name, err)
		}
	}
	for _, claim := range s.Owned {
		if _, err := core.PersistentVolumeClaims(set.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("could not update claim %s for delete policy ownerRefs: %w", claim.Name, err)
		}
	}
	switch {
	case s.Create != nil:
		_, err := core.Pods(set.Namespace).Create(ctx, s.Create, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			c.tell(set, "Create", s.Create, err)
		}
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil // the set goes, too
		}
		return err
	case s.Update != nil:
		_, err := core.Pods(set.Namespace).Update(ctx, s.Update, metav1.UpdateOptions{})
		c.tell(set, "Update", s.Update, err)
		return err
	case s.Delete != nil:
		err := core.Pods(set.Namespace).Delete(ctx, s.Delete.Name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		c.tell(set, "Delete", s.Delete, err)
		return err
	}
	return nil
}

// tell says in an event what was done to a pod, or why not.
func (c *Controller) tell(set *appsv1.StatefulSet, verb string, p *corev1.Pod, err error) {
	if err == nil {
		c.actor.Events.Eventf(set, corev1.EventTypeNormal, "Successful"+verb, "%s Pod %s in StatefulSet %s successful", verb, p.Name, set.Name)
	} else {
		c.actor.Events.Eventf(set, corev1.EventTypeWarning, "Failed"+verb, "%s Pod %s in StatefulSet %s failed error: %s", verb, p.Name, set.Name, err)
	}
}

func (c *Controller) tellClaim(set *appsv1.StatefulSet, p *corev1.Pod, claim *corev1.PersistentVolumeClaim, err error) {
	if err == nil {
		c.actor.Events.Eventf(set, corev1.EventTypeNormal, "SuccessfulCreate", "Create Claim %s Pod %s in StatefulSet %s success", claim.Name, p.Name, set.Name)
	} else {
		c.actor.Events.Eventf(set, corev1.EventTypeWarning, "FailedCreate", "Create Claim %s for Pod %s in StatefulSet %s failed error: %s", claim.Name, p.Name, set.Name, err)
	}
}
