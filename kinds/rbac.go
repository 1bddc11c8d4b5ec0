package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/rbac/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
)

func rbacGroup() group {
	return group{name: "rbac.authorization.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "clusterrolebindings", kind: "ClusterRoleBinding", strategy: clusterrolebinding.Strategy},
		{name: "clusterroles", kind: "ClusterRole", strategy: clusterrole.Strategy, plain: true},
		{name: "rolebindings", kind: "RoleBinding", strategy: rolebinding.Strategy},
		{name: "roles", kind: "Role", strategy: role.Strategy, plain: true},
	}}
}
