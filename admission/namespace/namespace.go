// Package namespace keeps objects in namespaces that are there and stay.
package namespace

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"setpoint.dev/setpoint/admission/view"
)

// Lifecycle refuses writes to namespaces that are not there, new objects in
// those that are being deleted, and the deletion of those that must stay.
type Lifecycle struct {
	*admission.Handler
	objects view.Objects
}

// New returns the plugin.
func New(objects view.Objects) *Lifecycle {
	return &Lifecycle{admission.NewHandler(admission.Create, admission.Update, admission.Delete), objects}
}

// stay are the namespaces that may not be deleted.
var stay = map[string]bool{metav1.NamespaceDefault: true, metav1.NamespaceSystem: true, metav1.NamespacePublic: true}

var (
	namespaces = corev1.SchemeGroupVersion.WithResource("namespaces")
	self       = schema.GroupKind{Kind: "Namespace"}
	// Compat: what is asked about access in a namespace does not tell whether
	// there is one.
	reviews = schema.GroupResource{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}
)

// Admit implements admission.MutationInterface. Compat: nothing is changed, but
// what is refused is refused before anything else looks at it.
func (l *Lifecycle) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetKind().GroupKind() == self {
		if a.GetOperation() == admission.Delete && stay[a.GetName()] {
			return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errors.New("this namespace may not be deleted"))
		}
		return nil
	}
	if a.GetNamespace() == "" || a.GetOperation() == admission.Delete || a.GetResource().GroupResource() == reviews {
		return nil
	}
	namespace, err := view.Get[*corev1.Namespace](ctx, l.objects, namespaces, "", a.GetNamespace())
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if a.GetOperation() != admission.Create || namespace.Status.Phase != corev1.NamespaceTerminating {
		return nil
	}
	refused := admission.NewForbidden(a, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.GetNamespace()))
	if status, ok := errors.AsType[*apierrors.StatusError](refused); ok {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", a.GetNamespace()),
			Field:   "metadata.namespace",
		})
	}
	return refused
}
