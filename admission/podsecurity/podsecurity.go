// Package podsecurity holds pods to the security level that their namespace
// asks for, and says to those who make them, and to the audit log, what a
// stricter level would refuse. What the levels demand is upstream's library's.
package podsecurity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	library "k8s.io/pod-security-admission/admission"
	"k8s.io/pod-security-admission/admission/api/load"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"

	"setpoint.dev/setpoint/admission/view"
)

// Plugin asks the library.
type Plugin struct {
	*admission.Handler
	levels *library.Admission
}

// New returns the plugin; file is a PodSecurityConfiguration, or nil for the
// defaults.
func New(objects view.Objects, file []byte) (*Plugin, error) {
	var from io.Reader
	if file != nil {
		from = bytes.NewReader(file)
	}
	configuration, err := load.LoadFromReader(from)
	if err != nil {
		return nil, err
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, err
	}
	sees := plane{objects}
	levels := &library.Admission{
		Configuration: configuration, Evaluator: evaluator, PodSpecExtractor: library.DefaultPodSpecExtractor{},
		Metrics: uncounted{}, NamespaceGetter: sees, PodLister: sees,
	}
	if err := levels.CompleteConfiguration(); err != nil {
		return nil, fmt.Errorf("PodSecurity configuration error: %w", err)
	}
	if err := levels.ValidateConfiguration(); err != nil {
		return nil, fmt.Errorf("PodSecurity invalid: %w", err)
	}
	return &Plugin{admission.NewHandler(admission.Create, admission.Update), levels}, nil
}

// versions are what the library reads, by what it is asked about.
var versions = map[schema.GroupResource]func() runtime.Object{
	corev1.Resource("namespaces"):             func() runtime.Object { return &corev1.Namespace{} },
	corev1.Resource("pods"):                   func() runtime.Object { return &corev1.Pod{} },
	corev1.Resource("replicationcontrollers"): func() runtime.Object { return &corev1.ReplicationController{} },
	corev1.Resource("podtemplates"):           func() runtime.Object { return &corev1.PodTemplate{} },
	appsv1.Resource("replicasets"):            func() runtime.Object { return &appsv1.ReplicaSet{} },
	appsv1.Resource("deployments"):            func() runtime.Object { return &appsv1.Deployment{} },
	appsv1.Resource("statefulsets"):           func() runtime.Object { return &appsv1.StatefulSet{} },
	appsv1.Resource("daemonsets"):             func() runtime.Object { return &appsv1.DaemonSet{} },
	batchv1.Resource("jobs"):                  func() runtime.Object { return &batchv1.Job{} },
	batchv1.Resource("cronjobs"):              func() runtime.Object { return &batchv1.CronJob{} },
}

// Validate implements admission.ValidationInterface.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	version := versions[a.GetResource().GroupResource()]
	if version == nil {
		return nil
	}
	said := p.levels.Validate(ctx, &attributes{Attributes: a, version: version})
	for _, text := range said.Warnings {
		warning.AddWarning(ctx, "", text)
	}
	for key, value := range said.AuditAnnotations {
		audit.AddAuditAnnotation(ctx, api.AuditAnnotationPrefix+key, value)
	}
	if said.Allowed {
		return nil
	}
	return refusal(a, said.Result)
}

// refusal is the library's answer as an error, where it has one.
func refusal(a admission.Attributes, result *metav1.Status) error {
	err := admission.NewForbidden(a, errors.New("Not allowed by PodSecurity")) //nolint:staticcheck // clients know this text
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || result == nil {
		return err
	}
	if result.Message != "" {
		status.ErrStatus.Message = result.Message
	}
	if result.Reason != "" {
		status.ErrStatus.Reason = result.Reason
	}
	if result.Details != nil {
		status.ErrStatus.Details = result.Details
	}
	if result.Code != 0 {
		status.ErrStatus.Code = result.Code
	}
	return status
}

// attributes are those of a write, as the library reads them: objects in v1,
// converted when it asks.
type attributes struct {
	admission.Attributes
	version  func() runtime.Object
	obj, old runtime.Object
}

func (a *attributes) GetObject() (runtime.Object, error) {
	return a.converted(&a.obj, a.Attributes.GetObject())
}

func (a *attributes) GetOldObject() (runtime.Object, error) {
	return a.converted(&a.old, a.Attributes.GetOldObject())
}

// converted converts an object once.
func (a *attributes) converted(kept *runtime.Object, from runtime.Object) (runtime.Object, error) {
	if *kept != nil {
		return *kept, nil
	}
	into := a.version()
	if err := legacyscheme.Scheme.Convert(from, into, nil); err != nil {
		return from, err
	}
	*kept = into
	return into, nil
}

func (a *attributes) GetOperation() admissionv1.Operation {
	return admissionv1.Operation(a.Attributes.GetOperation())
}

func (a *attributes) GetUserName() string { return a.GetUserInfo().GetName() }

// plane is what the library sees of the plane of a request.
type plane struct{ objects view.Objects }

// GetNamespace implements the library's NamespaceGetter.
func (p plane) GetNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return view.Get[*corev1.Namespace](ctx, p.objects, corev1.SchemeGroupVersion.WithResource("namespaces"), "", name)
}

// ListPods implements the library's PodLister.
func (p plane) ListPods(ctx context.Context, namespace string) ([]*corev1.Pod, error) {
	return view.List[*corev1.Pod](ctx, p.objects, corev1.SchemeGroupVersion.WithResource("pods"), namespace)
}

// uncounted keeps no figures of decisions.
type uncounted struct{}

func (uncounted) RecordEvaluation(metrics.Decision, api.LevelVersion, metrics.Mode, api.Attributes) {}

func (uncounted) RecordExemption(api.Attributes) {}

func (uncounted) RecordError(bool, api.Attributes) {}
