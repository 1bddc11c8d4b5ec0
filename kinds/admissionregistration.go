package kinds

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"
)

func admissionregistrationGroup(d Deps) group {
	resolve := resolver.ResourceResolverFunc(d.Resolve)
	validating := validatingadmissionpolicy.NewStrategy(d.Authorizer, resolve)
	// Compat: upstream stores mutating policies as v1beta1 for one more release.
	beta := schema.GroupVersion{Group: admissionregistration.GroupName, Version: "v1beta1"}

	return group{name: admissionregistration.GroupName, versions: []string{"v1"}, rows: []row{
		{
			name: "mutatingadmissionpolicies", kind: "MutatingAdmissionPolicy", category: "api-extensions", storage: beta,
			strategy: mutatingadmissionpolicy.NewStrategy(d.Authorizer, resolve),
		},
		{
			name: "mutatingadmissionpolicybindings", kind: "MutatingAdmissionPolicyBinding", category: "api-extensions", storage: beta,
			strategy: mutatingadmissionpolicybinding.NewStrategy(d.Authorizer, policies{d}, resolve),
		},
		{
			name: "mutatingwebhookconfigurations", kind: "MutatingWebhookConfiguration", category: "api-extensions",
			strategy: mutatingwebhookconfiguration.Strategy,
		},
		{
			name: "validatingadmissionpolicies", kind: "ValidatingAdmissionPolicy", category: "api-extensions",
			strategy: validating, status: validatingadmissionpolicy.NewStatusStrategy(validating),
		},
		{
			name: "validatingadmissionpolicybindings", kind: "ValidatingAdmissionPolicyBinding", category: "api-extensions",
			strategy: validatingadmissionpolicybinding.NewStrategy(d.Authorizer, policies{d}, resolve),
		},
		{
			name: "validatingwebhookconfigurations", kind: "ValidatingWebhookConfiguration", category: "api-extensions",
			strategy: validatingwebhookconfiguration.Strategy,
		},
		initializerRow(),
	}}
}

// policies finds policies for the strategies of their bindings.
type policies struct{ d Deps }

func (p policies) GetValidatingAdmissionPolicy(ctx context.Context, name string) (*admissionregistration.ValidatingAdmissionPolicy, error) {
	return p.d.ValidatingPolicy(ctx, name)
}

func (p policies) GetMutatingAdmissionPolicy(ctx context.Context, name string) (*admissionregistration.MutatingAdmissionPolicy, error) {
	return p.d.MutatingPolicy(ctx, name)
}
