package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
)

func autoscalingGroup() group {
	return group{name: "autoscaling", versions: []string{"v2", "v1"}, rows: []row{
		{
			name: "horizontalpodautoscalers", kind: "HorizontalPodAutoscaler", short: "hpa", category: "all",
			strategy: horizontalpodautoscaler.Strategy, status: horizontalpodautoscaler.StatusStrategy,
		},
	}}
}
