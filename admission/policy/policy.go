// Package policy carries out ValidatingAdmissionPolicies and
// MutatingAdmissionPolicies: CEL expressions in the API that decide about
// requests, or change their objects, within the server.
//
// In come the attributes of a request; a policy speaks where it and one of its
// bindings match, once for each of the binding's parameters. Policies, bindings
// and parameters are read as of the last acknowledged write. An expression is
// compiled once for each revision of its policy, when it is first needed, and
// an object is made a CEL value once for all that look at it.
//
// Policies act in the order of their names, and a policy's bindings too, so that
// the same request gets the same answer.
package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"

	"setpoint.dev/setpoint/admission/match"
	"setpoint.dev/setpoint/admission/view"
	"setpoint.dev/setpoint/kinds"
)

// Names of the plugins.
const (
	ValidatingName = "ValidatingAdmissionPolicy"
	MutatingName   = "MutatingAdmissionPolicy"
)

// Config is what policies work with.
type Config struct {
	Objects view.Objects
	// Kinds are those that parameters may be of.
	Kinds func() *kinds.List
	// Authorizer answers what expressions ask about users.
	Authorizer authorizer.Authorizer
}

// bound is a policy with its bindings. C is what its expressions are
// compiled to.
type bound[C any] struct {
	name     string
	failure  admissionregistrationv1.FailurePolicyType
	matcher  *match.Matcher
	bad      error // why it cannot match anything
	param    *admissionregistrationv1.ParamKind
	bindings []binding
	compiled func() C
}

// binding says where, and with what, a policy holds.
type binding struct {
	name    string
	matcher *match.Matcher // nil matches all
	bad     error
	params  *admissionregistrationv1.ParamRef
	actions []admissionregistrationv1.ValidationAction
}

// newMatcher reads the constraints of a policy or binding.
func newMatcher(c *admissionregistrationv1.MatchResources) (*match.Matcher, error) {
	const none = "a nil %s selector was passed, please ensure selectors are initialized properly"
	switch {
	case c.NamespaceSelector == nil:
		return nil, fmt.Errorf(none, "namespace")
	case c.ObjectSelector == nil:
		return nil, fmt.Errorf(none, "object")
	}
	return match.New(match.Criteria{
		Rules: c.ResourceRules, All: true, Exclude: c.ExcludeResourceRules, Policy: c.MatchPolicy, Namespaces: c.NamespaceSelector, Objects: c.ObjectSelector,
	}), nil
}

// matches says as what a request matches the policy; nil when it does not.
func (p *bound[C]) matches(ctx context.Context, objects view.Objects, a admission.Attributes, o admission.ObjectInterfaces) (*match.As, error) {
	if p.bad != nil {
		return nil, p.bad
	}
	return p.matcher.Match(ctx, objects, a, o)
}

// matches says whether the binding is for the request.
func (b *binding) matches(ctx context.Context, objects view.Objects, a admission.Attributes, o admission.ObjectInterfaces) (bool, error) {
	if b.bad != nil || b.matcher == nil {
		return b.bad == nil, b.bad
	}
	as, err := b.matcher.Match(ctx, objects, a, o)
	return as != nil, err
}

// excluded are the resources that no policy is for: those that policies
// themselves are, which could not be undone, and questions about access.
var excluded = slices.Concat(exclusion.Excluded(), []schema.GroupResource{
	{Group: admissionregistrationv1.GroupName, Resource: "validatingadmissionpolicies"},
	{Group: admissionregistrationv1.GroupName, Resource: "validatingadmissionpolicybindings"},
	{Group: admissionregistrationv1.GroupName, Resource: "mutatingadmissionpolicies"},
	{Group: admissionregistrationv1.GroupName, Resource: "mutatingadmissionpolicybindings"},
})

// exempt says that no policy is for the request.
func exempt(a admission.Attributes) bool {
	return slices.Contains(excluded, a.GetResource().GroupResource())
}

// source is the policies of one kind that have bindings.
type source[C any] struct {
	policies, bindings schema.GroupVersionResource
	// read is a policy without its bindings; bind a binding, and the name of its
	// policy.
	read func(runtime.Object) (*bound[C], error)
	bind func(runtime.Object) (policy string, b binding, err error)

	memo view.Memo[[]*bound[C]]
	// kept are policies as of their revisions: what is compiled is not compiled
	// again because another one changes. The memo guards it.
	kept map[version]*bound[C]
}

// version is a state of a policy.
type version struct {
	uid      types.UID
	revision string
}

// all are the plane's policies that have bindings.
func (s *source[C]) all(ctx context.Context, objects view.Objects) ([]*bound[C], error) {
	return s.memo.Of(ctx, objects, []schema.GroupResource{s.policies.GroupResource(), s.bindings.GroupResource()}, func() ([]*bound[C], error) {
		bindings := map[string][]binding{}
		for obj, err := range objects.List(ctx, s.bindings, "") {
			if err != nil {
				return nil, err
			}
			of, b, err := s.bind(obj)
			if err != nil {
				return nil, err
			}
			bindings[of] = append(bindings[of], b)
		}
		var all []*bound[C]
		kept := map[version]*bound[C]{}
		for obj, err := range objects.List(ctx, s.policies, "") {
			if err != nil {
				return nil, err
			}
			v, p, err := s.policy(obj)
			if err != nil {
				return nil, err
			}
			kept[v] = p
			if of := bindings[p.name]; len(of) > 0 {
				with := *p
				with.bindings = of
				all = append(all, &with)
			}
		}
		s.kept = kept
		return all, nil
	})
}

func (s *source[C]) policy(obj runtime.Object) (version, *bound[C], error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return version{}, nil, err
	}
	v := version{m.GetUID(), m.GetResourceVersion()}
	if have := s.kept[v]; have != nil {
		return v, have, nil
	}
	p, err := s.read(obj)
	return v, p, err
}

// newBound reads what both kinds of policy have.
func newBound[C any](name string, failure *admissionregistrationv1.FailurePolicyType, param *admissionregistrationv1.ParamKind, constraints *admissionregistrationv1.MatchResources) *bound[C] {
	p := &bound[C]{name: name, param: param, failure: admissionregistrationv1.Fail}
	if failure != nil {
		p.failure = *failure
	}
	if constraints == nil {
		p.bad = errors.New("policy contained no match constraints, a required field")
		return p
	}
	p.matcher, p.bad = newMatcher(constraints)
	return p
}

func newBinding(name string, params *admissionregistrationv1.ParamRef, constraints *admissionregistrationv1.MatchResources) binding {
	b := binding{name: name, params: params}
	if constraints != nil {
		b.matcher, b.bad = newMatcher(constraints)
	}
	return b
}
