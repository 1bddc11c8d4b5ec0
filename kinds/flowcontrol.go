package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	plc "k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"
)

func flowcontrolGroup() group {
	return group{name: "flowcontrol.apiserver.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "flowschemas", kind: "FlowSchema", strategy: flowschema.Strategy, status: flowschema.StatusStrategy},
		{
			name: "prioritylevelconfigurations", kind: "PriorityLevelConfiguration",
			strategy: plc.Strategy, status: plc.StatusStrategy,
		},
	}}
}
