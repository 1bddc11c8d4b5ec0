package bootstrap

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// MetricsReader is the role by which all who may view, edit or administrate may
// also see what nodes and pods use; nothing when it is stored already. Compat: it
// is the one that a metrics-server brings along.
func MetricsReader(stored func(runtime.Object) (runtime.Object, error)) ([]runtime.Object, error) {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "system:aggregated-metrics-reader", Labels: map[string]string{
			"rbac.authorization.k8s.io/aggregate-to-admin": "true",
			"rbac.authorization.k8s.io/aggregate-to-edit":  "true",
			"rbac.authorization.k8s.io/aggregate-to-view":  "true",
		}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"}}},
	}
	have, err := stored(role)
	if err != nil || have != nil {
		return nil, err
	}
	objects := []runtime.Object{role}
	return objects, own(objects)
}
