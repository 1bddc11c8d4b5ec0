package bootstrap

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// migrations has upstream's policy know who migrates stored versions. Compat: it
// leaves them out unless its feature gate asks for the kind, which is always
// served here.
var migrations = sync.OnceFunc(func() {
	utilruntime.Must(utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.StorageVersionMigrator): true}))
})

// policy returns upstream's default roles and bindings, roles before what
// binds them.
func policy() []runtime.Object {
	migrations()
	clusterRoles := slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles())
	aggregate(clusterRoles)
	var objs []runtime.Object
	for i := range clusterRoles {
		objs = append(objs, &clusterRoles[i])
	}
	for _, b := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		objs = append(objs, &b)
	}
	roles, bindings := bootstrappolicy.NamespaceRoles(), bootstrappolicy.NamespaceRoleBindings()
	for _, namespace := range slices.Sorted(maps.Keys(roles)) {
		for _, role := range roles[namespace] {
			objs = append(objs, role.DeepCopy()) // shared upstream
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(bindings)) {
		for _, b := range bindings[namespace] {
			objs = append(objs, b.DeepCopy())
		}
	}
	return objs
}

// aggregate gives roles with an aggregation rule the rules they gather. A
// controller keeps doing that as roles come and go; the first rules are here
// so that admin, edit and view are of use from the first request on.
//
// An aggregating role may gather another, as admin gathers edit: it goes on
// until nothing changes.
func aggregate(roles []rbacv1.ClusterRole) {
	byName := make([]*rbacv1.ClusterRole, len(roles))
	for i := range roles {
		byName[i] = &roles[i]
	}
	// The controller's order, which it would otherwise restore with a write.
	slices.SortFunc(byName, func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	for again := true; again; {
		again = false
		for _, role := range byName {
			if role.AggregationRule == nil {
				continue
			}
			rules := gather(role, byName)
			if !slices.EqualFunc(rules, role.Rules, sameRule) {
				role.Rules = rules
				again = true
			}
		}
	}
}

// gather returns the rules of all other roles that a role selects, each once.
func gather(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			panic(err) // upstream's own constants
		}
		for _, other := range all {
			if other == role || !selector.Matches(labels.Set(other.Labels)) {
				continue
			}
			for _, rule := range other.Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return sameRule(r, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

func sameRule(a, b rbacv1.PolicyRule) bool {
	return slices.Equal(a.Verbs, b.Verbs) && slices.Equal(a.APIGroups, b.APIGroups) && slices.Equal(a.Resources, b.Resources) &&
		slices.Equal(a.ResourceNames, b.ResourceNames) && slices.Equal(a.NonResourceURLs, b.NonResourceURLs)
}
