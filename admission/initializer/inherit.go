package initializer

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/api/initializers"
)

// A template's initializers are for its pods. Controllers make these with
// clients of today, which do not know the field and lose it, so it is taken from
// where it was written, by somebody who had the right to: from the template of the
// pod's controller, or from that one's controller. Nobody but controllers of the
// control plane makes pods with it: anybody may name an owner.

// workloads are the kinds that have templates and control pods, or what controls
// pods.
var workloads = map[schema.GroupKind]schema.GroupVersionResource{
	{Kind: "ReplicationController"}:                corev1.SchemeGroupVersion.WithResource("replicationcontrollers"),
	{Group: appsv1.GroupName, Kind: "ReplicaSet"}:  appsv1.SchemeGroupVersion.WithResource("replicasets"),
	{Group: appsv1.GroupName, Kind: "Deployment"}:  appsv1.SchemeGroupVersion.WithResource("deployments"),
	{Group: appsv1.GroupName, Kind: "StatefulSet"}: appsv1.SchemeGroupVersion.WithResource("statefulsets"),
	{Group: appsv1.GroupName, Kind: "DaemonSet"}:   appsv1.SchemeGroupVersion.WithResource("daemonsets"),
	{Group: batchv1.GroupName, Kind: "Job"}:        batchv1.SchemeGroupVersion.WithResource("jobs"),
	{Group: batchv1.GroupName, Kind: "CronJob"}:    batchv1.SchemeGroupVersion.WithResource("cronjobs"),
}

// generations is how many controllers stand above a pod, at most.
const generations = 2

// inherited is what a pod's template says that it waits for; nil when it says
// nothing.
func (p *Plugin) inherited(ctx context.Context, a admission.Attributes) (*initializers.Initializers, error) {
	if a.GetResource().GroupResource() != pods || !controls(a.GetUserInfo()) {
		return nil, nil
	}
	below, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil, err
	}
	for range generations {
		owner, err := p.controllerOf(ctx, below, a.GetNamespace())
		if owner == nil || err != nil {
			return nil, err
		}
		if t := templateOf(owner); t != nil && t.Annotations[initializers.Carried] != "" {
			return initializers.Of(&corev1.Pod{ObjectMeta: t.ObjectMeta})
		}
		if below, err = meta.Accessor(owner); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// controls says that a user is one of the control plane's controllers.
func controls(who user.Info) bool {
	if who == nil {
		return false
	}
	namespace, _, err := serviceaccount.SplitUsername(who.GetName())
	return who.GetName() == user.KubeControllerManager || err == nil && namespace == metav1.NamespaceSystem
}

// controllerOf is the workload that controls an object; nil when there is none.
func (p *Plugin) controllerOf(ctx context.Context, of metav1.Object, namespace string) (runtime.Object, error) {
	ref := metav1.GetControllerOfNoCopy(of)
	if ref == nil {
		return nil, nil
	}
	resource, known := workloads[schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()]
	if !known {
		return nil, nil
	}
	owner, err := p.cfg.Objects.Get(ctx, resource, namespace, ref.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if m, err := meta.Accessor(owner); err != nil || m.GetUID() != ref.UID {
		return nil, err
	}
	return owner, nil
}

// templateOf is what a stored workload makes its pods from.
func templateOf(workload runtime.Object) *corev1.PodTemplateSpec {
	switch o := workload.(type) {
	case *corev1.ReplicationController:
		return o.Spec.Template
	case *appsv1.ReplicaSet:
		return &o.Spec.Template
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	case *batchv1.Job:
		return &o.Spec.Template
	case *batchv1.CronJob:
		return &o.Spec.JobTemplate.Spec.Template
	default:
		return nil
	}
}

// template checks who writes a template whose pods bring their own initializers
// along: they need the right to do that with pods. Controllers that send a
// workload without the field do not know it; it is kept.
func (p *Plugin) template(ctx context.Context, a admission.Attributes) error {
	t, old := podTemplate(a.GetObject()), podTemplate(a.GetOldObject())
	if t == nil {
		return nil
	}
	had := ""
	if old != nil {
		had = old.Annotations[initializers.Carried]
	}
	switch t.Annotations[initializers.Carried] {
	case had:
		return nil
	case "":
		if controls(a.GetUserInfo()) && !patches(ctx) {
			metav1.SetMetaDataAnnotation(&t.ObjectMeta, initializers.Carried, had)
		}
		return nil
	}
	allowed, reason, err := p.authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, APIVersion: "v1", Resource: pods.Resource, Namespace: a.GetNamespace(), ResourceRequest: true,
	})
	if err != nil {
		return err
	}
	if !allowed {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), fmt.Errorf("pod template with initializers denied: %s", reason))
	}
	list, err := initializers.Of(&core.Pod{ObjectMeta: t.ObjectMeta})
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	at := templatePath(a.GetObject()).Child("metadata", "initializers")
	errs := validate(at, list)
	if list.Result != nil {
		errs = append(errs, field.Forbidden(at.Child("result"), "must not be set in a template"))
	}
	return invalid(a, errs)
}

// templatePath is where a workload has its template.
func templatePath(workload runtime.Object) *field.Path {
	switch workload.(type) {
	case *core.PodTemplate:
		return field.NewPath("template")
	case *batch.CronJob:
		return field.NewPath("spec", "jobTemplate", "spec", "template")
	default:
		return field.NewPath("spec", "template")
	}
}
