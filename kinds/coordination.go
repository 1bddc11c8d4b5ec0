package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/coordination/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
)

func coordinationGroup() group {
	return group{name: "coordination.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "leases", kind: "Lease", strategy: lease.Strategy},
	}}
}
