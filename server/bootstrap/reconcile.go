package bootstrap

import (
	"fmt"
	"maps"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// Edition names the default roles and bindings: it is another one whenever they
// are. A store whose roles were reconciled in this edition and have not changed
// since needs no look at them.
const Edition = "51fc2ed9"

// Stored finds the stored object of the kind, namespace and name of another;
// nil when there is none. What it returns is the caller's.
type Stored func(runtime.Object) (runtime.Object, error)

// Reconcile returns the roles and bindings that have to be written so that the
// stored ones grant what the defaults do. Compat: as upstream's, it adds what is
// missing and keeps what has been added; one whose annotation
// rbac.authorization.kubernetes.io/autoupdate is false is left alone; a binding
// to another role is made anew. What a role gathers from others is left to who
// gathers.
//
// Objects with a UID replace the stored one; those without are new, and replace
// even so.
func Reconcile(stored Stored) ([]runtime.Object, error) {
	var changed []runtime.Object
	for _, want := range policy() {
		have, err := stored(want)
		if err != nil {
			return nil, err
		}
		next, err := reconcile(want, have)
		if err != nil {
			return nil, fmt.Errorf("bootstrap: %w", err)
		}
		if next == nil {
			continue
		}
		if m, err := meta.Accessor(next); err == nil && m.GetUID() == "" {
			if err := own([]runtime.Object{next}); err != nil {
				return nil, err
			}
		}
		changed = append(changed, next)
	}
	return changed, nil
}

// reconcile is what has to be stored instead of have, nil for nothing.
func reconcile(want, have runtime.Object) (runtime.Object, error) {
	if have == nil {
		return want, nil
	}
	if role, is := want.(*rbacv1.ClusterRole); is && role.AggregationRule != nil {
		role.Rules = nil // gathered
	}
	if owner, found := ruleOwner(want), ruleOwner(have); owner != nil && found != nil {
		options := reconciliation.ReconcileRoleOptions{Role: owner, Client: storedRole{have: found}}
		result, err := options.Run()
		if err != nil || result.Protected || result.Operation == reconciliation.ReconcileNone {
			return nil, err
		}
		return result.Role.GetObject(), nil
	}
	options := reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding(want), Client: storedBinding{have: binding(have)}}
	result, err := options.Run()
	if err != nil || result.Protected || result.Operation == reconciliation.ReconcileNone {
		return nil, err
	}
	return result.RoleBinding.GetObject(), nil
}

func ruleOwner(obj runtime.Object) reconciliation.RuleOwner {
	switch obj := obj.(type) {
	case *rbacv1.ClusterRole:
		return reconciliation.ClusterRoleRuleOwner{ClusterRole: obj}
	case *rbacv1.Role:
		return reconciliation.RoleRuleOwner{Role: obj}
	}
	return nil
}

func binding(obj runtime.Object) reconciliation.RoleBinding {
	switch obj := obj.(type) {
	case *rbacv1.ClusterRoleBinding:
		return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: obj}
	case *rbacv1.RoleBinding:
		return reconciliation.RoleBindingAdapter{RoleBinding: obj}
	}
	return nil
}

// storedRole shows upstream's rules the role that is stored; without Confirm
// they ask for no more.
type storedRole struct {
	reconciliation.RuleOwnerModifier
	have reconciliation.RuleOwner
}

// Get implements RuleOwnerModifier.
func (s storedRole) Get(string, string) (reconciliation.RuleOwner, error) { return s.have, nil }

// storedBinding is storedRole for bindings.
type storedBinding struct {
	reconciliation.RoleBindingModifier
	have reconciliation.RoleBinding
}

// Get implements RoleBindingModifier.
func (s storedBinding) Get(_, name string) (reconciliation.RoleBinding, error) {
	if s.have == nil {
		return nil, apierrors.NewNotFound(rbacv1.Resource("rolebindings"), name)
	}
	return s.have, nil
}

// Refresh returns what says where this server is and whom it trusts, in place of
// what is stored. It may be what is stored already.
func Refresh(cfg Config, stored Stored) ([]runtime.Object, error) {
	objs, err := Current(cfg)
	if err != nil {
		return nil, err
	}
	for _, want := range objs {
		have, err := stored(want)
		if err != nil {
			return nil, err
		}
		if have == nil {
			continue
		}
		if err := takeOver(want, have); err != nil {
			return nil, err
		}
	}
	return objs, nil
}

// takeOver gives an object the metadata of the one whose place it takes; labels
// are added to those that are there.
func takeOver(want, have runtime.Object) error {
	w, err := meta.Accessor(want)
	if err != nil {
		return err
	}
	h, err := meta.Accessor(have)
	if err != nil {
		return err
	}
	labels := maps.Clone(h.GetLabels())
	if labels == nil {
		labels = w.GetLabels()
	}
	maps.Copy(labels, w.GetLabels())
	w.SetLabels(labels)
	w.SetAnnotations(h.GetAnnotations())
	w.SetUID(h.GetUID())
	w.SetResourceVersion(h.GetResourceVersion())
	w.SetGeneration(h.GetGeneration())
	w.SetCreationTimestamp(h.GetCreationTimestamp())
	w.SetDeletionTimestamp(h.GetDeletionTimestamp())
	w.SetDeletionGracePeriodSeconds(h.GetDeletionGracePeriodSeconds())
	w.SetFinalizers(h.GetFinalizers())
	w.SetOwnerReferences(h.GetOwnerReferences())
	w.SetManagedFields(h.GetManagedFields())
	return nil
}
