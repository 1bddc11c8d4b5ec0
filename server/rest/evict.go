package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"

	"setpoint.dev/setpoint/store"
)

// budgets is where disruption budgets are stored, as JSON of v1.
const budgets = "poddisruptionbudgets." + policyv1.GroupName

// evict deletes a pod if its disruption budget allows. The budget is charged
// in the same commit that would let another eviction count on it.
func (c *call) evict() error {
	obj, create, err := c.read()
	if err != nil {
		return err
	}
	e, ok := obj.(*policy.Eviction)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", obj))
	}
	if e.Name != c.info.Name {
		return apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	options := e.DeleteOptions
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	if isDryRun(create.DryRun) {
		options.DryRun = create.DryRun
	}
	for range commitTries {
		if err = c.evictOnce(options); !isConflict(err) {
			break
		}
	}
	if isConflict(err) {
		return apierrors.NewTooManyRequests("the disruption budget changes too fast; try again", 10)
	}
	if err != nil {
		return err
	}
	c.writeStatus(http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
	return nil
}

func (c *call) evictOnce(options *metav1.DeleteOptions) error {
	_, obj, err := c.load()
	if err != nil {
		return err
	}
	pod, ok := obj.(*core.Pod)
	if !ok {
		return fmt.Errorf("unexpected object %T", obj)
	}
	if !freeToGo(pod) {
		if err := c.charge(pod, isDryRun(options.DryRun)); err != nil {
			return err
		}
	}
	_, _, err = c.deleteObject(options)
	return err
}

// freeToGo says that a pod's eviction disrupts nothing.
func freeToGo(pod *core.Pod) bool {
	switch pod.Status.Phase {
	case core.PodSucceeded, core.PodFailed, core.PodPending:
		return true
	default:
		return pod.DeletionTimestamp != nil
	}
}

// charge takes the pod's eviction off its budget, if there is one.
func (c *call) charge(pod *core.Pod, dryRun bool) error {
	have, budget, err := c.budget(pod)
	if err != nil || budget == nil {
		return err
	}
	healthy := budget.Spec.UnhealthyPodEvictionPolicy != nil && *budget.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
	ready := podutil.IsPodReady(pod)
	if !ready && (healthy || budget.Status.CurrentHealthy >= budget.Status.DesiredHealthy && budget.Status.DesiredHealthy > 0) {
		return nil
	}
	refuse := func(message string, retry int) error {
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retry)
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: message})
		return err
	}
	switch {
	case budget.Status.ObservedGeneration < budget.Generation:
		return refuse(fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget.Name), 10)
	case budget.Status.DisruptionsAllowed <= 0:
		return refuse(fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", budget.Name, budget.Status.DesiredHealthy, budget.Status.CurrentHealthy), 0)
	}
	if dryRun {
		return nil
	}
	budget.Status.DisruptionsAllowed--
	if budget.Status.DisruptedPods == nil {
		budget.Status.DisruptedPods = map[string]metav1.Time{}
	}
	budget.Status.DisruptedPods[pod.Name] = metav1.Time{Time: time.Now()}
	return c.storeBudget(have, budget)
}

// budget finds the one budget that covers a pod.
func (c *call) budget(pod *core.Pod) (*store.Object, *policyv1.PodDisruptionBudget, error) {
	sn, err := c.snapshot()
	if err != nil {
		return nil, nil, err
	}
	var have *store.Object
	var found *policyv1.PodDisruptionBudget
	for o, err := range sn.Scan(c.ctx, budgets, store.Range{Prefix: pod.Namespace + "/"}) {
		if err != nil {
			return nil, nil, err
		}
		b := &policyv1.PodDisruptionBudget{}
		if err := json.Unmarshal(o.Value(), b); err != nil {
			return nil, nil, err
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if found != nil {
			return nil, nil, apierrors.NewInternalError(errors.New("this pod has more than one PodDisruptionBudget, which the eviction subresource does not support"))
		}
		have, found = o, b
	}
	return have, found, nil
}

func (c *call) storeBudget(have *store.Object, budget *policyv1.PodDisruptionBudget) error {
	one := *c
	one.resource = c.Kinds().Find(policyv1.GroupName, "v1", "poddisruptionbudgets")
	obj, err := one.resource.Scheme.ConvertToVersion(budget, policy.SchemeGroupVersion)
	if err != nil {
		return err
	}
	_, err = one.rewrite(obj, have, false)
	return err
}
