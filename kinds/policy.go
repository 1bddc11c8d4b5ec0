package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/policy/install" // into the scheme
	pdb "k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
)

func policyGroup() group {
	return group{name: "policy", versions: []string{"v1"}, rows: []row{
		{name: "poddisruptionbudgets", kind: "PodDisruptionBudget", short: "pdb", strategy: pdb.Strategy, status: pdb.StatusStrategy},
	}}
}
