// Package v1alpha1 is InitializerConfiguration of admissionregistration.k8s.io/v1alpha1:
// which initializers act on which objects.
//
// It is the kind of Kubernetes 1.7 to 1.13, with the same names in JSON and the
// same numbers in protobuf; what is added is optional and has numbers of its own.
// One Go type stands for the version and for the internal one, so that nothing is
// converted. Upstream's other kinds of the group version lie beside it in the
// same scheme.
package v1alpha1

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is where the kind is served.
var GroupVersion = schema.GroupVersion{Group: admissionv1.GroupName, Version: "v1alpha1"}

// Kind and Resource name it.
const (
	Kind     = "InitializerConfiguration"
	Resource = "initializerconfigurations"
)

// AddToScheme makes the kind known beside those that the scheme has already.
func AddToScheme(s *runtime.Scheme) error {
	for _, gv := range []schema.GroupVersion{GroupVersion, {Group: GroupVersion.Group, Version: runtime.APIVersionInternal}} {
		s.AddKnownTypes(gv, &InitializerConfiguration{}, &InitializerConfigurationList{})
	}
	s.AddTypeDefaultingFunc(&InitializerConfiguration{}, func(obj any) { SetDefaults(obj.(*InitializerConfiguration)) })
	s.AddTypeDefaultingFunc(&InitializerConfigurationList{}, func(obj any) {
		list := obj.(*InitializerConfigurationList)
		for i := range list.Items {
			SetDefaults(&list.Items[i])
		}
	})
	return nil
}

// InitializerConfiguration describes the configuration of initializers.
type InitializerConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero" protobuf:"bytes,1,opt,name=metadata"`

	// Initializers are those of this configuration, in the order in which they
	// act. Configurations follow each other by name.
	Initializers []Initializer `json:"initializers,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,2,rep,name=initializers"`

	// Status is what is known of each initializer.
	Status InitializerConfigurationStatus `json:"status,omitzero" protobuf:"bytes,3,opt,name=status"`
}

// InitializerConfigurationList is a list of configurations.
type InitializerConfigurationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero" protobuf:"bytes,1,opt,name=metadata"`

	Items []InitializerConfiguration `json:"items" protobuf:"bytes,2,rep,name=items"`
}

// Initializer is one that acts on the objects that it matches before anyone
// else sees them. Name and Rules are as they have always been; what follows
// them is optional.
type Initializer struct {
	// Name is fully qualified: at least three parts with dots between.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// Rules say what it acts on; one that matches is enough. With none it acts
	// on nothing.
	Rules []Rule `json:"rules,omitempty" protobuf:"bytes,2,rep,name=rules"`

	// FailurePolicy says what happens to an object when the initializer does not
	// act in time. The server has a default.
	FailurePolicy *FailurePolicyType `json:"failurePolicy,omitempty" protobuf:"bytes,3,opt,name=failurePolicy,casttype=FailurePolicyType"`
	// TimeoutSeconds is how long it may take, from when it is the next one of an
	// object. The server has a default.
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty" protobuf:"varint,4,opt,name=timeoutSeconds"`
	// NamespaceSelector and ObjectSelector choose by labels; nil chooses all.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty" protobuf:"bytes,5,opt,name=namespaceSelector"`
	ObjectSelector    *metav1.LabelSelector `json:"objectSelector,omitempty" protobuf:"bytes,6,opt,name=objectSelector"`
	// MatchConditions are CEL expressions; all have to be true.
	MatchConditions []admissionv1.MatchCondition `json:"matchConditions,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,7,rep,name=matchConditions"`
	// MatchPolicy says whether rules are for the group and version of the
	// request, Exact, or for any that leads to the same objects, Equivalent.
	MatchPolicy *admissionv1.MatchPolicyType `json:"matchPolicy,omitempty" protobuf:"bytes,8,opt,name=matchPolicy,casttype=MatchPolicyType"`
	// Controller says who the initializer is.
	Controller *Controller `json:"controller,omitempty" protobuf:"bytes,9,opt,name=controller"`
}

// Rule is a set of resources, without subresources.
type Rule = admissionv1.Rule

// FailurePolicyType says what happens at an initializer's deadline.
type FailurePolicyType string

// Failure policies: the initializer is skipped, the object fails and goes, or
// it waits for as long as it takes.
const (
	Ignore FailurePolicyType = "Ignore"
	Fail   FailurePolicyType = "Fail"
	Wait   FailurePolicyType = "Wait"
)

// Controller says who an initializer is: the account that it uses, and a lease
// that it renews while it is alive.
type Controller struct {
	ServiceAccount *Reference `json:"serviceAccount,omitempty" protobuf:"bytes,1,opt,name=serviceAccount"`
	Lease          *Reference `json:"lease,omitempty" protobuf:"bytes,2,opt,name=lease"`
}

// Reference names an object in a namespace.
type Reference struct {
	Namespace string `json:"namespace" protobuf:"bytes,1,opt,name=namespace"`
	Name      string `json:"name" protobuf:"bytes,2,opt,name=name"`
}

// InitializerConfigurationStatus is what is known of a configuration's
// initializers.
type InitializerConfigurationStatus struct {
	Initializers []InitializerStatus `json:"initializers,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,1,rep,name=initializers"`
}

// InitializerStatus is what is known of one initializer.
type InitializerStatus struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// ObservedGeneration is the configuration's that this is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty" protobuf:"varint,2,opt,name=observedGeneration"`
	// Pending is how many objects wait for it.
	Pending int64 `json:"pending" protobuf:"varint,3,opt,name=pending"`
	// OldestPendingSeconds is how long the first of them has.
	OldestPendingSeconds int64 `json:"oldestPendingSeconds,omitempty" protobuf:"varint,4,opt,name=oldestPendingSeconds"`
	// LastCompletionTime is when it last was done with an object.
	LastCompletionTime *metav1.Time `json:"lastCompletionTime,omitempty" protobuf:"bytes,5,opt,name=lastCompletionTime"`
	// Conditions are Ready, Stalled, Deadlocked and DuplicateName.
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,6,rep,name=conditions"`
}

// Conditions of an initializer.
const (
	Ready         = "Ready"
	Stalled       = "Stalled"
	Deadlocked    = "Deadlocked"
	DuplicateName = "DuplicateName"
)

// SetDefaults says what is meant by what is left out, but for what the server's
// flags say.
func SetDefaults(c *InitializerConfiguration) {
	for i := range c.Initializers {
		in := &c.Initializers[i]
		if in.MatchPolicy == nil {
			in.MatchPolicy = new(admissionv1.Exact)
		}
		for j := range in.Rules {
			if in.Rules[j].Scope == nil {
				in.Rules[j].Scope = new(admissionv1.AllScopes)
			}
		}
	}
}

// OpenAPIModelName is the name of the kind's definition.
func (InitializerConfiguration) OpenAPIModelName() string {
	return "io.k8s.api.admissionregistration.v1alpha1.InitializerConfiguration"
}

// OpenAPIModelName is the name of the list's definition.
func (InitializerConfigurationList) OpenAPIModelName() string {
	return "io.k8s.api.admissionregistration.v1alpha1.InitializerConfigurationList"
}
