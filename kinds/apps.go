package kinds

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
)

func appsGroup() group {
	return group{name: "apps", versions: []string{"v1"}, rows: []row{
		{name: "controllerrevisions", kind: "ControllerRevision", strategy: controllerrevision.Strategy},
		{
			name: "daemonsets", kind: "DaemonSet", short: "ds", category: "all",
			strategy: daemonset.Strategy, status: daemonset.StatusStrategy,
		},
		{
			name: "deployments", kind: "Deployment", short: "deploy", category: "all",
			strategy: deployment.Strategy, status: deployment.StatusStrategy, scale: scaledApp,
		},
		{
			name: "replicasets", kind: "ReplicaSet", short: "rs", category: "all",
			strategy: replicaset.Strategy, attrs: replicaset.GetAttrs, status: replicaset.StatusStrategy, scale: scaledApp,
		},
		{
			name: "statefulsets", kind: "StatefulSet", short: "sts", category: "all",
			strategy: statefulset.Strategy, status: statefulset.StatusStrategy, scale: scaledApp,
		},
	}}
}

func scaledApp(obj runtime.Object) (scaled, error) {
	var s scaled
	var selector *metav1.LabelSelector
	switch o := obj.(type) {
	case *apps.Deployment:
		s = scaled{meta: &o.ObjectMeta, want: o.Spec.Replicas, have: o.Status.Replicas, set: func(n int32) { o.Spec.Replicas = n }}
		selector = o.Spec.Selector
	case *apps.ReplicaSet:
		s = scaled{meta: &o.ObjectMeta, want: o.Spec.Replicas, have: o.Status.Replicas, set: func(n int32) { o.Spec.Replicas = n }}
		selector = o.Spec.Selector
	case *apps.StatefulSet:
		s = scaled{meta: &o.ObjectMeta, want: o.Spec.Replicas, have: o.Status.Replicas, set: func(n int32) { o.Spec.Replicas = n }}
		selector = o.Spec.Selector
	default:
		return scaled{}, errors.New("not a Deployment, ReplicaSet or StatefulSet")
	}
	var err error
	s.selector, err = metav1.LabelSelectorAsSelector(selector)
	return s, err
}
