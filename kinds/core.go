package kinds

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/endpoint"
	"k8s.io/kubernetes/pkg/registry/core/event"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
)

// eventTTL is how long upstream keeps events, of either group.
const eventTTL = time.Hour

func coreGroup(d Deps) group {
	return group{name: "", versions: []string{"v1"}, rows: []row{
		{name: "bindings", kind: "Binding", namespaced: true, verbs: postVerbs, plain: true},
		{name: "componentstatuses", kind: "ComponentStatus", short: "cs", verbs: []string{"get", "list"}},
		{name: "configmaps", kind: "ConfigMap", short: "cm", strategy: configmap.Strategy, attrs: configmap.GetAttrs},
		{name: "endpoints", kind: "Endpoints", short: "ep", strategy: endpoint.Strategy},
		{name: "events", kind: "Event", short: "ev", strategy: event.Strategy, attrs: event.GetAttrs, ttl: eventTTL},
		{name: "limitranges", kind: "LimitRange", short: "limits", strategy: limitrange.Strategy, plain: true},
		{
			name: "namespaces", kind: "Namespace", short: "ns", strategy: namespace.Strategy, attrs: namespace.GetAttrs,
			verbs:  []string{"create", "delete", "get", "list", "patch", "update", "watch"},
			status: namespace.StatusStrategy, returnsDeleted: true, linger: namespaceLinger,
			subs: []*Subresource{{Name: "finalize", Verbs: []string{"update"}, Update: namespace.FinalizeStrategy}},
		},
		{
			name: "nodes", kind: "Node", short: "no", strategy: node.Strategy, attrs: node.GetAttrs, status: node.StatusStrategy,
			subs: []*Subresource{call("proxy", "NodeProxyOptions", pipeVerbs)},
		},
		{
			name: "persistentvolumeclaims", kind: "PersistentVolumeClaim", short: "pvc", strategy: persistentvolumeclaim.Strategy,
			attrs: persistentvolumeclaim.GetAttrs, status: persistentvolumeclaim.StatusStrategy, returnsDeleted: true,
		},
		{
			name: "persistentvolumes", kind: "PersistentVolume", short: "pv", strategy: persistentvolume.Strategy,
			attrs: persistentvolume.GetAttrs, status: persistentvolume.StatusStrategy, returnsDeleted: true,
		},
		{
			name: "pods", kind: "Pod", short: "po", category: "all", strategy: pod.Strategy, unseen: unseenPod{pod.Strategy},
			attrs: pod.GetAttrs, status: pod.StatusStrategy, returnsDeleted: true,
			subs: []*Subresource{
				call("attach", "PodAttachOptions", callVerbs),
				call("binding", "Binding", postVerbs),
				view("ephemeralcontainers", pod.EphemeralContainersStrategy),
				{Name: "eviction", Kind: schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}, Also: []string{"v1beta1"}, Verbs: postVerbs},
				call("exec", "PodExecOptions", callVerbs),
				call("log", "Pod", []string{"get"}),
				call("portforward", "PodPortForwardOptions", callVerbs),
				call("proxy", "PodProxyOptions", pipeVerbs),
				view("resize", pod.ResizeStrategy),
			},
		},
		{name: "podtemplates", kind: "PodTemplate", strategy: podtemplate.Strategy, returnsDeleted: true},
		{
			name: "replicationcontrollers", kind: "ReplicationController", short: "rc", category: "all",
			strategy: replicationcontroller.Strategy, attrs: replicationcontroller.GetAttrs,
			status: replicationcontroller.StatusStrategy, scale: scaledController,
		},
		{
			name: "resourcequotas", kind: "ResourceQuota", short: "quota", strategy: resourcequota.Strategy,
			status: resourcequota.StatusStrategy, returnsDeleted: true,
		},
		{name: "secrets", kind: "Secret", strategy: secret.Strategy, attrs: secret.GetAttrs},
		{
			name: "serviceaccounts", kind: "ServiceAccount", short: "sa", strategy: serviceaccount.Strategy, returnsDeleted: true,
			subs: []*Subresource{{
				Name: "token", Verbs: postVerbs,
				Kind: schema.GroupVersionKind{Group: "authentication.k8s.io", Version: "v1", Kind: "TokenRequest"},
			}},
		},
		{
			name: "services", kind: "Service", short: "svc", category: "all", strategy: service.Strategy,
			attrs: service.GetAttrs, status: service.StatusStrategy, returnsDeleted: true, join: d.JoinServices,
			subs: []*Subresource{call("proxy", "ServiceProxyOptions", pipeVerbs)},
		},
	}}
}

// namespaceLinger keeps a namespace until its spec's finalizers are gone, which
// is when it has been emptied.
var namespaceLinger = &Linger{
	Mark: func(obj runtime.Object) {
		if ns, ok := obj.(*core.Namespace); ok {
			ns.Status.Phase = core.NamespaceTerminating
		}
	},
	Held: func(obj runtime.Object) bool {
		ns, ok := obj.(*core.Namespace)
		return ok && len(ns.Spec.Finalizers) > 0
	},
}

func scaledController(obj runtime.Object) (scaled, error) {
	rc, ok := obj.(*core.ReplicationController)
	if !ok {
		return scaled{}, errors.New("not a ReplicationController")
	}
	s := scaled{
		meta:     &rc.ObjectMeta,
		have:     rc.Status.Replicas,
		selector: labels.SelectorFromSet(rc.Spec.Selector),
		set:      func(n int32) { rc.Spec.Replicas = &n },
	}
	if rc.Spec.Replicas != nil {
		s.want = *rc.Spec.Replicas
	}
	return s, nil
}
