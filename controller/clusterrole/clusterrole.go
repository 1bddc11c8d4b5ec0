// Package clusterrole gathers the rules of cluster roles into those that
// aggregate them.
//
// In come cluster roles; out come the rules of those with an aggregation rule:
// the rules of the roles that its selectors pick, selector by selector, by name,
// each rule once.
package clusterrole

import (
	"cmp"
	"context"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apply "k8s.io/client-go/applyconfigurations/rbac/v1"

	"setpoint.dev/setpoint/controller/loop"
)

// manager is who owns the rules. Compat: as upstream.
const (
	manager = "clusterrole-aggregation-controller"
	workers = 5
)

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	roles := a.Informers.Rbac().V1().ClusterRoles()
	all := func() []*rbacv1.ClusterRole {
		of, _ := roles.Lister().List(labels.Everything()) // a cache has no errors
		return of
	}
	l := loop.New(a, "ClusterRoleAggregator", workers, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		role, err := roles.Lister().Get(key.Name)
		if err != nil || role.AggregationRule == nil {
			return 0, nil //nolint:nilerr // it is not there
		}
		rules, err := gather(role, all())
		if err != nil || apiequality.Semantic.DeepEqual(rules, role.Rules) {
			return 0, err
		}
		_, err = a.Client.RbacV1().ClusterRoles().Apply(ctx, applied(key.Name, rules), metav1.ApplyOptions{FieldManager: manager, Force: true})
		return 0, err
	})
	// Which role picks which is not known without a look: all are looked at.
	loop.Watch(l, "clusterroles.rbac.authorization.k8s.io", roles.Informer(), func(_, _ *rbacv1.ClusterRole) []loop.Key {
		var keys []loop.Key
		for _, r := range all() {
			if r.AggregationRule != nil {
				keys = append(keys, loop.KeyOf(r))
			}
		}
		return keys
	})
	return l
}

// gather returns the rules that a role aggregates.
func gather(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	all = slices.SortedFunc(slices.Values(all), func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	rules := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, err
		}
		for _, other := range all {
			if other.Name == role.Name || !selector.Matches(labels.Set(other.Labels)) {
				continue
			}
			for _, rule := range other.Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return apiequality.Semantic.DeepEqual(r, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}

func applied(name string, rules []rbacv1.PolicyRule) *apply.ClusterRoleApplyConfiguration {
	role := apply.ClusterRole(name)
	for _, r := range rules {
		role.WithRules(&apply.PolicyRuleApplyConfiguration{
			Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames, NonResourceURLs: r.NonResourceURLs,
		})
	}
	return role
}
