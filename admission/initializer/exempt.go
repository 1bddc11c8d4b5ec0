package initializer

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/api/initializers/validation"
)

var pods = schema.GroupResource{Resource: "pods"}

// exempt says that objects of the kind wait for nobody: the control plane, or
// initializers themselves, could not go on without them.
func exempt(a admission.Attributes) bool {
	r := a.GetResource()
	return validation.Exempt(r.Group, r.Resource)
}

// itself says that an object is one that the initializer of an account needs
// to run, or makes: waiting for it would be waiting for itself.
func itself(account string, a admission.Attributes) bool {
	if account == "" {
		return false
	}
	if AccountOf(a.GetObject(), a.GetNamespace()) == account {
		return true
	}
	by := a.GetUserInfo()
	return by != nil && accountOfUser(by.GetName()) == account
}

// AccountOf is whom a pod, or the pods of a workload, run as, as
// "namespace/name"; empty for what has no pods.
func AccountOf(obj runtime.Object, namespace string) string {
	spec := podSpec(obj)
	if spec == nil {
		return ""
	}
	name := spec.ServiceAccountName
	if name == "" {
		name = "default"
	}
	return namespace + "/" + name
}

// accountOfUser is the account that a user is, as "namespace/name"; empty when
// it is none.
func accountOfUser(name string) string {
	namespace, account, err := serviceaccount.SplitUsername(name)
	if err != nil {
		return ""
	}
	return namespace + "/" + account
}

func podSpec(obj runtime.Object) *core.PodSpec {
	if pod, ok := obj.(*core.Pod); ok {
		return &pod.Spec
	}
	if t := podTemplate(obj); t != nil {
		return &t.Spec
	}
	return nil
}

// podTemplate is what a workload makes its pods from; nil for what makes none.
func podTemplate(obj runtime.Object) *core.PodTemplateSpec {
	switch o := obj.(type) {
	case *core.PodTemplate:
		return &o.Template
	case *core.ReplicationController:
		return o.Spec.Template
	case *apps.Deployment:
		return &o.Spec.Template
	case *apps.ReplicaSet:
		return &o.Spec.Template
	case *apps.StatefulSet:
		return &o.Spec.Template
	case *apps.DaemonSet:
		return &o.Spec.Template
	case *batch.Job:
		return &o.Spec.Template
	case *batch.CronJob:
		return &o.Spec.JobTemplate.Spec.Template
	default:
		return nil
	}
}
