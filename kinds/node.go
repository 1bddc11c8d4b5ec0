package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/node/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"
)

func nodeGroup() group {
	return group{name: "node.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "runtimeclasses", kind: "RuntimeClass", strategy: runtimeclass.Strategy},
	}}
}
