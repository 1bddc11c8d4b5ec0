package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/apps/poddisruptionbudget"
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
	if err := c.admitAsked(e, create); err != nil {
		return err
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
	have, obj, err := c.load()
	if err != nil {
		return err
	}
	pod, ok := obj.(*core.Pod)
	if !ok {
		return fmt.Errorf("unexpected object %T", obj)
	}
	// What is decided holds for the pod as it was looked at, unless its budget
	// has been charged, which is not done twice.
	only := have.Rev
	if !freeToGo(pod) {
		charged, err := c.charge(pod, isDryRun(options.DryRun))
		if err != nil {
			return err
		}
		if charged {
			only = 0
		}
	}
	if isDryRun(options.DryRun) {
		_, _, err := c.deleteObject(options)
		return err
	}
	return c.disrupt(options.DeepCopy(), only)
}

// disrupt says on the pod why it goes, and deletes it; when only is not 0, it
// does so only at that revision, and fails with a conflict otherwise.
func (c *call) disrupt(options *metav1.DeleteOptions, only store.Revision) error {
	for range commitTries {
		have, obj, err := c.load()
		if err != nil {
			return err
		}
		if only != 0 && have.Rev != only {
			return &store.ConflictError{Resource: c.resource.Table, Key: c.key()}
		}
		pod, ok := obj.(*core.Pod)
		if !ok {
			return fmt.Errorf("unexpected object %T", obj)
		}
		rehearsal := options.DeepCopy()
		rehearsal.DryRun = []string{metav1.DryRunAll}
		if _, _, err := c.deleteOnce(rehearsal); err != nil {
			return err
		}
		podutil.UpdatePodCondition(&pod.Status, &core.PodCondition{
			Type: core.DisruptionTarget, Status: core.ConditionTrue,
			Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
		})
		stored, err := c.rewrite(pod, have, false)
		if isConflict(err) && only == 0 {
			continue
		}
		if err != nil {
			return err
		}
		if p := options.Preconditions; p != nil && p.ResourceVersion != nil {
			p.ResourceVersion = new(strconv.FormatInt(int64(stored.Rev), 10))
		}
		_, _, err = c.deleteObject(options)
		return err
	}
	return apierrors.NewConflict(c.resource.GroupResource(), c.info.Name, errors.New(optimisticLock))
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

// charge takes the pod's eviction off its budget, if there is one that it has
// to be taken off, and says whether it has.
func (c *call) charge(pod *core.Pod, dryRun bool) (bool, error) {
	have, budget, err := c.budget(pod)
	if err != nil || budget == nil {
		return false, err
	}
	always := budget.Spec.UnhealthyPodEvictionPolicy != nil && *budget.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
	status := &budget.Status
	if !podutil.IsPodReady(pod) && (always || status.CurrentHealthy >= status.DesiredHealthy && status.DesiredHealthy > 0) {
		return false, nil
	}
	if err := allows(budget); err != nil || dryRun {
		return false, err
	}
	old := budget.DeepCopy()
	if status.DisruptionsAllowed--; status.DisruptionsAllowed == 0 {
		poddisruptionbudget.UpdateDisruptionAllowedCondition(budget)
	}
	if status.DisruptedPods == nil {
		status.DisruptedPods = map[string]metav1.Time{}
	}
	status.DisruptedPods[pod.Name] = metav1.Time{Time: time.Now()}
	return true, c.storeBudget(have, old, budget)
}

// maxDisrupted is how many evictions a budget may have that nobody has
// confirmed.
const maxDisrupted = 2000

// allows says why a budget does not allow an eviction. Compat: in upstream's
// words, which tools look for.
func allows(budget *policyv1.PodDisruptionBudget) error {
	status := &budget.Status
	refuse := func(retry int, format string, args ...any) error {
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retry)
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget " + budget.Name + fmt.Sprintf(format, args...),
		})
		return err
	}
	said := meta.FindStatusCondition(status.Conditions, policyv1.DisruptionAllowedCondition)
	denied := said != nil && said.Status == metav1.ConditionFalse && said.Message != ""
	switch {
	case status.ObservedGeneration < budget.Generation:
		return refuse(10, " is still being processed by the server.")
	case status.DisruptionsAllowed < 0:
		return apierrors.NewForbidden(policy.Resource("poddisruptionbudget"), budget.Name, errors.New("pdb disruptions allowed is negative"))
	case len(status.DisruptedPods) > maxDisrupted:
		return apierrors.NewForbidden(policy.Resource("poddisruptionbudget"), budget.Name, errors.New("DisruptedPods map too big - too many evictions not confirmed by PDB controller"))
	case status.DisruptionsAllowed > 0:
		return nil
	case denied && said.Reason == policyv1.SyncFailedReason:
		return refuse(0, " does not allow evicting pods currently because it failed sync: %s", said.Message)
	case status.CurrentHealthy <= status.DesiredHealthy:
		return refuse(0, " needs %d healthy pods and has %d currently", status.DesiredHealthy, status.CurrentHealthy)
	case denied:
		return refuse(0, " does not allow evicting pods currently (%s): %s", said.Reason, said.Message)
	default:
		return refuse(0, " does not allow evicting pods currently")
	}
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
			return nil, nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
				Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
			}}
		}
		have, found = o, b
	}
	return have, found, nil
}

// storeBudget stores a budget whose status has changed.
func (c *call) storeBudget(have *store.Object, old, budget *policyv1.PodDisruptionBudget) error {
	op, err := c.statusOp(policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"), store.At(have.Rev), old, budget)
	if err != nil {
		return err
	}
	_, err = c.write("", op)
	return err
}
