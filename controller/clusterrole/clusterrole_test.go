package clusterrole_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// A role that gathers others follows them as they come, change and go.
func TestRolesAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, stop := apptest.InBubble(t, app.Config{Controllers: []string{"clusterrole-aggregation"}})
		defer stop()
		roles := b.Client.RbacV1().ClusterRoles()
		picks := func(key string) metav1.LabelSelector {
			return metav1.LabelSelector{MatchLabels: map[string]string{key: "yes"}}
		}
		role := func(name, label string, resources ...string) *rbacv1.ClusterRole {
			r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "yes"}}}
			for _, of := range resources {
				r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{of}})
			}
			return r
		}
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		made := func(r *rbacv1.ClusterRole) { t.Helper(); must(roles.Create(t.Context(), r, metav1.CreateOptions{})) }
		all := role("all", "outer")
		all.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{picks("second"), picks("first")}}
		made(all)
		top := role("top", "none")
		top.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{picks("outer")}}
		made(top)
		for _, step := range []struct {
			name string
			do   func()
			want string // resources in the order of rules
		}{
			{"nothing to gather", func() {}, ""},
			{"by selector, then by name, each rule once", func() {
				made(role("b", "first", "pods", "nodes"))
				made(role("a", "first", "nodes"))
				made(role("c", "second", "secrets", "pods"))
			}, "secrets pods nodes"},
			{"a rule more", func() { must(roles.Update(t.Context(), role("a", "first", "events"), metav1.UpdateOptions{})) }, "secrets pods events nodes"},
			{"a role less", func() { must(nil, roles.Delete(t.Context(), "c", metav1.DeleteOptions{})) }, "events pods nodes"},
			{"not picked any more", func() { must(roles.Update(t.Context(), role("b", "other", "pods"), metav1.UpdateOptions{})) }, "events"},
			{"what others write is undone", func() {
				must(roles.Patch(t.Context(), "all", "application/merge-patch+json", []byte(`{"rules":[]}`), metav1.PatchOptions{}))
			}, "events"},
		} {
			step.do()
			b.Turn(time.Second)
			for _, name := range []string{"all", "top"} {
				r, err := roles.Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := resources(r); got != step.want {
					t.Errorf("%s: %s has %q, want %q", step.name, name, got, step.want)
				}
			}
		}
	})
}

func resources(r *rbacv1.ClusterRole) string {
	var all []string
	for _, rule := range r.Rules {
		all = append(all, strings.Join(rule.Resources, "+"))
	}
	return strings.Join(all, " ")
}
