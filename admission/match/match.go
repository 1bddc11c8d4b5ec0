// Package match decides whether a request is one that somebody has asked for:
// a webhook, a policy, a binding or an initializer.
//
// In come criteria, read once for each revision of whoever asks, and the
// attributes of a request; out comes as what the request matched: the resource
// and kind that were asked for, which may be another version of the request's
// own. Namespaces are read through a view, so labels that were written before
// the request began decide it.
package match

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"

	"setpoint.dev/setpoint/admission/view"
)

// Criteria say which requests are asked for.
type Criteria struct {
	// Rules of which one must match, unless there are none and All is set. A
	// rule without names is for objects of any name.
	Rules []admissionregistrationv1.NamedRuleWithOperations
	All   bool
	// Exclude are rules of which none may match.
	Exclude []admissionregistrationv1.NamedRuleWithOperations
	// Policy says whether other versions of a resource are meant, too; nil
	// means Exact.
	Policy *admissionregistrationv1.MatchPolicyType
	// Namespaces and Objects select by labels. Compat: nil selects nothing, an
	// empty selector everything; nobody asks for a namespace of what is in none.
	Namespaces, Objects *metav1.LabelSelector
}

// Rules are plain rules in the form that Criteria have them.
func Rules(of []admissionregistrationv1.RuleWithOperations) []admissionregistrationv1.NamedRuleWithOperations {
	named := make([]admissionregistrationv1.NamedRuleWithOperations, len(of))
	for i, r := range of {
		named[i].RuleWithOperations = r
	}
	return named
}

// Matcher is criteria that are ready to be asked. It does not change.
type Matcher struct {
	criteria            Criteria
	namespaces, objects labels.Selector
	badNamespaces       error
	badObjects          error
}

// New reads criteria. A selector that cannot be read is an error of the
// requests that it would have to decide.
func New(c Criteria) *Matcher {
	m := &Matcher{criteria: c}
	m.namespaces, m.badNamespaces = metav1.LabelSelectorAsSelector(c.Namespaces)
	m.objects, m.badObjects = metav1.LabelSelectorAsSelector(c.Objects)
	return m
}

// As is as what a request matched.
type As struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
}

// Match returns as what the request matched, nil when it did not. A selector
// that cannot be decided is an error only of requests that all else is for.
func (m *Matcher) Match(ctx context.Context, objects view.Objects, a admission.Attributes, o admission.ObjectInterfaces) (*As, error) {
	// Rules first: they are the cheapest to ask, and most requests fail them.
	as, ruleErr := m.matchRules(a, o)
	if as == nil && ruleErr == nil {
		return nil, nil
	}
	inNamespace, namespaceErr := m.matchNamespace(ctx, objects, a)
	if !inNamespace && namespaceErr == nil {
		return nil, nil
	}
	ofObject, objectErr := m.matchObject(a)
	if !ofObject && objectErr == nil {
		return nil, nil
	}
	for _, err := range []error{ruleErr, namespaceErr, objectErr} {
		if err != nil {
			return nil, err
		}
	}
	return as, nil
}

func (m *Matcher) matchRules(a admission.Attributes, o admission.ObjectInterfaces) (*As, error) {
	if excluded, err := m.anyRule(m.criteria.Exclude, a, o); excluded != nil || err != nil {
		return nil, err
	}
	if m.criteria.All && len(m.criteria.Rules) == 0 {
		return &As{a.GetResource(), a.GetKind()}, nil
	}
	return m.anyRule(m.criteria.Rules, a, o)
}

// anyRule is as what the request matches the first rule that it matches: as
// itself, or as another version of itself where no rule is for it.
func (m *Matcher) anyRule(of []admissionregistrationv1.NamedRuleWithOperations, a admission.Attributes, o admission.ObjectInterfaces) (*As, error) {
	for i := range of {
		if matches(&of[i], a) {
			return &As{a.GetResource(), a.GetKind()}, nil
		}
	}
	if len(of) == 0 || m.criteria.Policy == nil || *m.criteria.Policy != admissionregistrationv1.Equivalent {
		return nil, nil
	}
	mapper := o.GetEquivalentResourceMapper()
	equivalents := mapper.EquivalentResourcesFor(a.GetResource(), a.GetSubresource())
	for i := range of {
		for _, other := range equivalents {
			if other == a.GetResource() || !matches(&of[i], elsewhere{a, other}) {
				continue
			}
			kind := mapper.KindFor(other, a.GetSubresource())
			if kind.Empty() {
				return nil, apierrors.NewInternalError(fmt.Errorf("unable to convert to %v: unknown kind", other))
			}
			return &As{other, kind}, nil
		}
	}
	return nil, nil
}

func matches(rule *admissionregistrationv1.NamedRuleWithOperations, a admission.Attributes) bool {
	r := rules.Matcher{Rule: rule.RuleWithOperations, Attr: a}
	return r.Matches() && (len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName()))
}

// elsewhere is a request as if it were for another resource.
type elsewhere struct {
	admission.Attributes
	resource schema.GroupVersionResource
}

func (e elsewhere) GetResource() schema.GroupVersionResource { return e.resource }

func (m *Matcher) matchObject(a admission.Attributes) (bool, error) {
	if m.badObjects != nil {
		return false, apierrors.NewInternalError(m.badObjects)
	}
	if m.objects.Empty() {
		return true, nil
	}
	return selects(m.objects, a.GetObject()) || selects(m.objects, a.GetOldObject()), nil
}

func selects(selector labels.Selector, obj runtime.Object) bool {
	if obj == nil {
		return false
	}
	described, err := meta.Accessor(obj)
	return err == nil && selector.Matches(labels.Set(described.GetLabels()))
}

var namespaces = corev1.SchemeGroupVersion.WithResource("namespaces")

func (m *Matcher) matchNamespace(ctx context.Context, objects view.Objects, a admission.Attributes) (bool, error) {
	if a.GetNamespace() == "" && a.GetResource().Resource != namespaces.Resource {
		return true, nil // Compat: what is in no namespace is asked for by every selector
	}
	if m.badNamespaces != nil {
		return false, apierrors.NewInternalError(m.badNamespaces)
	}
	if m.namespaces.Empty() {
		return true, nil
	}
	of, err := namespaceLabels(ctx, objects, a)
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok && apierrors.IsNotFound(err) {
		return false, status
	}
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return m.namespaces.Matches(of), nil
}

// namespaceLabels are those of the request's namespace. One that is being
// written has the labels that it will have.
func namespaceLabels(ctx context.Context, objects view.Objects, a admission.Attributes) (labels.Set, error) {
	if a.GetResource().Resource == namespaces.Resource && a.GetSubresource() == "" &&
		(a.GetOperation() == admission.Create || a.GetOperation() == admission.Update) {
		described, err := meta.Accessor(a.GetObject())
		if err != nil {
			return nil, err
		}
		return described.GetLabels(), nil
	}
	namespace, err := view.Get[*corev1.Namespace](ctx, objects, namespaces, "", a.GetNamespace())
	if err != nil {
		return nil, err
	}
	return namespace.Labels, nil
}

// Namespace is the namespace that the request's object is in; nil when it is
// in none. A namespace is in none.
func Namespace(ctx context.Context, objects view.Objects, a admission.Attributes) (*corev1.Namespace, error) {
	if a.GetNamespace() == "" || a.GetKind() == corev1.SchemeGroupVersion.WithKind("Namespace") {
		return nil, nil
	}
	return view.Get[*corev1.Namespace](ctx, objects, namespaces, "", a.GetNamespace())
}

// Exempt says that the request is for something that configures admission
// itself, which nothing may come in the way of: it could not be undone.
func Exempt(a admission.Attributes) bool {
	kind := a.GetKind()
	return rules.IsExemptAdmissionConfigurationResource(a) ||
		kind.Group == admissionregistrationv1.GroupName && kind.Kind == "InitializerConfiguration"
}
