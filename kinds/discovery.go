package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/discovery/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"
)

func discoveryGroup() group {
	return group{name: "discovery.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "endpointslices", kind: "EndpointSlice", strategy: endpointslice.Strategy},
	}}
}
