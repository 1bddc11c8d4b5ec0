package validation

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Floor are the kinds that no initializer acts on, whatever its rules say: the
// control plane could stop for good if one of them had to wait. A rule must not
// name them, and "*" leaves them out.
var Floor = []schema.GroupResource{
	{Group: "admissionregistration.k8s.io", Resource: "initializerconfigurations"},
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicybindings"},
	{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"},
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	{Group: "apiregistration.k8s.io", Resource: "apiservices"},
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"},
	{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"},
	{Group: "rbac.authorization.k8s.io", Resource: "roles"},
	{Resource: "nodes"},
	{Resource: "namespaces"},
	{Resource: "events"},
	{Group: "events.k8s.io", Resource: "events"},
	{Group: "coordination.k8s.io", Resource: "leases"},
	{Resource: "bindings"},
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"},
	{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
	{Group: "authentication.k8s.io", Resource: "tokenreviews"},
	{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
}

// Exempt says that a resource is of the floor.
func Exempt(group, resource string) bool {
	return slices.Contains(Floor, schema.GroupResource{Group: group, Resource: resource})
}
