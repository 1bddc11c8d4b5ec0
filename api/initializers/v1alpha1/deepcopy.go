package v1alpha1

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// each copies a list item by item; nil stays nil.
func each[T any](of []T, into func(from, to *T)) []T {
	if of == nil {
		return nil
	}
	made := make([]T, len(of))
	for i := range of {
		into(&of[i], &made[i])
	}
	return made
}

// value copies what a pointer leads to; nil stays nil.
func value[T any](of *T) *T {
	if of == nil {
		return nil
	}
	return new(*of)
}

// DeepCopy copies a configuration.
func (in *InitializerConfiguration) DeepCopy() *InitializerConfiguration {
	if in == nil {
		return nil
	}
	out := new(InitializerConfiguration)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyInto copies a configuration into another.
func (in *InitializerConfiguration) DeepCopyInto(out *InitializerConfiguration) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Initializers = each(in.Initializers, (*Initializer).DeepCopyInto)
	out.Status.Initializers = each(in.Status.Initializers, (*InitializerStatus).DeepCopyInto)
}

// DeepCopyObject implements runtime.Object.
func (in *InitializerConfiguration) DeepCopyObject() runtime.Object { return in.DeepCopy() }

// DeepCopyObject implements runtime.Object.
func (in *InitializerConfigurationList) DeepCopyObject() runtime.Object {
	out := &InitializerConfigurationList{TypeMeta: in.TypeMeta}
	out.ListMeta = *in.ListMeta.DeepCopy() //nolint:staticcheck // its own, not the list's
	out.Items = each(in.Items, (*InitializerConfiguration).DeepCopyInto)
	return out
}

// DeepCopyInto copies an initializer into another.
func (in *Initializer) DeepCopyInto(out *Initializer) {
	*out = *in
	out.Rules = each(in.Rules, (*Rule).DeepCopyInto)
	out.FailurePolicy = value(in.FailurePolicy)
	out.TimeoutSeconds = value(in.TimeoutSeconds)
	out.NamespaceSelector = in.NamespaceSelector.DeepCopy()
	out.ObjectSelector = in.ObjectSelector.DeepCopy()
	out.MatchConditions = each(in.MatchConditions, (*admissionv1.MatchCondition).DeepCopyInto)
	out.MatchPolicy = value(in.MatchPolicy)
	if in.Controller != nil {
		out.Controller = &Controller{ServiceAccount: value(in.Controller.ServiceAccount), Lease: value(in.Controller.Lease)}
	}
}

// DeepCopyInto copies what is known of an initializer into another.
func (in *InitializerStatus) DeepCopyInto(out *InitializerStatus) {
	*out = *in
	out.LastCompletionTime = in.LastCompletionTime.DeepCopy()
	out.Conditions = each(in.Conditions, (*metav1.Condition).DeepCopyInto)
}
