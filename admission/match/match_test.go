package match_test

import (
	"context"
	"iter"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	appsv1beta1 "k8s.io/api/apps/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/scheme"

	"setpoint.dev/setpoint/admission/match"
)

// plane is a view of namespaces by name.
type plane map[string]*corev1.Namespace

func (plane) Plane(context.Context) string                          { return "main" }
func (plane) Revision(context.Context, schema.GroupResource) uint64 { return 1 }

func (p plane) Get(_ context.Context, resource schema.GroupVersionResource, _, name string) (runtime.Object, error) {
	if p[name] == nil {
		return nil, apierrors.NewNotFound(resource.GroupResource(), name)
	}
	return p[name], nil
}

func (plane) List(context.Context, schema.GroupVersionResource, string) iter.Seq2[runtime.Object, error] {
	return func(func(runtime.Object, error) bool) {}
}

// interfaces know deployments in two versions.
type interfaces struct {
	admission.ObjectInterfaces
	mapper runtime.EquivalentResourceMapper
}

func (i interfaces) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return i.mapper }

func newInterfaces() interfaces {
	r := runtime.NewEquivalentResourceRegistryWithIdentity(func(resource schema.GroupResource) string { return resource.Resource })
	r.RegisterKindFor(appsv1.SchemeGroupVersion.WithResource("deployments"), "", appsv1.SchemeGroupVersion.WithKind("Deployment"))
	r.RegisterKindFor(appsv1beta1.SchemeGroupVersion.WithResource("deployments"), "", appsv1beta1.SchemeGroupVersion.WithKind("Deployment"))
	return interfaces{admission.NewObjectInterfacesFromScheme(scheme.Scheme), r}
}

func rule(groups, versions, resources string, operations ...admissionregistrationv1.OperationType) admissionregistrationv1.NamedRuleWithOperations {
	return admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
		Operations: operations, Rule: admissionregistrationv1.Rule{APIGroups: []string{groups}, APIVersions: []string{versions}, Resources: []string{resources}},
	}}
}

func scoped(scope admissionregistrationv1.ScopeType, r admissionregistrationv1.NamedRuleWithOperations) []admissionregistrationv1.NamedRuleWithOperations {
	r.Scope = &scope
	return []admissionregistrationv1.NamedRuleWithOperations{r}
}

func named(name string, r admissionregistrationv1.NamedRuleWithOperations) []admissionregistrationv1.NamedRuleWithOperations {
	r.ResourceNames = []string{name}
	return []admissionregistrationv1.NamedRuleWithOperations{r}
}

func request(obj runtime.Object, resource schema.GroupVersionResource, kind, namespace string) admission.Attributes {
	return admission.NewAttributesRecord(obj, nil, resource.GroupVersion().WithKind(kind), namespace, "web", resource, "", admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "ada"})
}

func TestMatch(t *testing.T) {
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	pod := request(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}}}, pods, "Pod", "team")
	lost := request(&corev1.Pod{}, pods, "Pod", "nowhere")
	node := request(&corev1.Node{}, corev1.SchemeGroupVersion.WithResource("nodes"), "Node", "")
	namespace := request(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"tier": "gold"}}}, corev1.SchemeGroupVersion.WithResource("namespaces"), "Namespace", "web")
	deployment := request(&appsv1.Deployment{}, appsv1.SchemeGroupVersion.WithResource("deployments"), "Deployment", "team")

	everything, gold, silver := &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}, &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "silver"}}
	broken := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Sounds"}}}
	create, all := admissionregistrationv1.Create, []admissionregistrationv1.NamedRuleWithOperations{rule("*", "*", "*", admissionregistrationv1.OperationAll)}
	equivalent, exact := admissionregistrationv1.Equivalent, admissionregistrationv1.Exact
	beta := []admissionregistrationv1.NamedRuleWithOperations{rule("apps", "v1beta1", "deployments", create)}

	cases := map[string]struct {
		criteria match.Criteria
		request  admission.Attributes
		want     string // the resource that it matched as, nothing, or an error
	}{
		"everything":                      {match.Criteria{Rules: all}, pod, "/v1, Resource=pods"},
		"no rules":                        {match.Criteria{}, pod, ""},
		"no rules, where none means all":  {match.Criteria{All: true}, pod, "/v1, Resource=pods"},
		"another resource":                {match.Criteria{Rules: []admissionregistrationv1.NamedRuleWithOperations{rule("", "v1", "secrets", create)}}, pod, ""},
		"another operation":               {match.Criteria{Rules: []admissionregistrationv1.NamedRuleWithOperations{rule("", "v1", "pods", admissionregistrationv1.Delete)}}, pod, ""},
		"the second rule":                 {match.Criteria{Rules: []admissionregistrationv1.NamedRuleWithOperations{rule("", "v1", "secrets", create), rule("", "v1", "pods", create)}}, pod, "/v1, Resource=pods"},
		"a subresource is not meant":      {match.Criteria{Rules: []admissionregistrationv1.NamedRuleWithOperations{rule("", "v1", "pods/status", create)}}, pod, ""},
		"by name":                         {match.Criteria{Rules: named("web", all[0])}, pod, "/v1, Resource=pods"},
		"by another name":                 {match.Criteria{Rules: named("db", all[0])}, pod, ""},
		"excluded":                        {match.Criteria{Rules: all, Exclude: named("web", all[0])}, pod, ""},
		"in a namespace":                  {match.Criteria{Rules: scoped(admissionregistrationv1.NamespacedScope, all[0])}, pod, "/v1, Resource=pods"},
		"in a namespace, cluster only":    {match.Criteria{Rules: scoped(admissionregistrationv1.ClusterScope, all[0])}, pod, ""},
		"a namespace is cluster-wide":     {match.Criteria{Rules: scoped(admissionregistrationv1.ClusterScope, all[0])}, namespace, "/v1, Resource=namespaces"},
		"its namespace's labels":          {match.Criteria{Rules: all, Namespaces: gold}, pod, "/v1, Resource=pods"},
		"not its namespace's labels":      {match.Criteria{Rules: all, Namespaces: silver}, pod, ""},
		"in no namespace":                 {match.Criteria{Rules: all, Namespaces: silver}, node, "/v1, Resource=nodes"},
		"a namespace's own new labels":    {match.Criteria{Rules: all, Namespaces: gold}, namespace, "/v1, Resource=namespaces"},
		"a namespace that is not there":   {match.Criteria{Rules: all, Namespaces: gold}, lost, `namespaces "nowhere" not found`},
		"not there, and not asked for":    {match.Criteria{Rules: beta, Namespaces: gold}, lost, ""},
		"its labels":                      {match.Criteria{Rules: all, Objects: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}, pod, "/v1, Resource=pods"},
		"not its labels":                  {match.Criteria{Rules: all, Objects: gold}, pod, ""},
		"a selector that cannot be read":  {match.Criteria{Rules: all, Objects: broken}, pod, `Internal error occurred: "Sounds" is not a valid label selector operator`},
		"the same, but not its namespace": {match.Criteria{Rules: all, Namespaces: silver, Objects: broken}, pod, ""},
		"another version, exactly":        {match.Criteria{Rules: beta, Policy: &exact}, deployment, ""},
		"another version":                 {match.Criteria{Rules: beta, Policy: &equivalent}, deployment, "apps/v1beta1, Resource=deployments"},
		"excluded in another version":     {match.Criteria{Rules: all, Exclude: beta, Policy: &equivalent}, deployment, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for _, selector := range []**metav1.LabelSelector{&c.criteria.Namespaces, &c.criteria.Objects} {
				if *selector == nil {
					*selector = everything
				}
			}
			objects := plane{"team": {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"tier": "gold"}}}}
			as, err := match.New(c.criteria).Match(t.Context(), objects, c.request, newInterfaces())
			got := ""
			switch {
			case err != nil:
				got = err.Error()
			case as != nil:
				got = as.Resource.String()
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if as != nil && as.Kind.GroupVersion() != as.Resource.GroupVersion() {
				t.Errorf("matched %v as a %v", as.Resource, as.Kind)
			}
		})
	}
}

func TestExempt(t *testing.T) {
	for kind, want := range map[string]bool{"MutatingWebhookConfiguration": true, "ValidatingAdmissionPolicyBinding": true, "InitializerConfiguration": true, "Pod": false} {
		resource := schema.GroupVersionResource{Group: admissionregistrationv1.GroupName, Version: "v1", Resource: "any"}
		if got := match.Exempt(request(&corev1.Pod{}, resource, kind, "")); got != want {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
}

// askedOf allows who is asked about when they get pods, and nobody else.
type askedOf string

func (name askedOf) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == string(name) && a.GetResource() == "pods" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func TestConditions(t *testing.T) {
	ignore := admissionregistrationv1.Ignore
	cases := map[string]struct {
		expressions []string
		failure     *admissionregistrationv1.FailurePolicyType
		want        bool
		fails       string
	}{
		"none":              {nil, nil, true, ""},
		"true":              {[]string{"object.metadata.name == 'web'", "request.operation == 'CREATE'"}, nil, true, ""},
		"one is false":      {[]string{"object.metadata.name == 'web'", "oldObject != null"}, nil, false, ""},
		"the user may":      {[]string{"authorizer.group('').resource('pods').check('get').allowed()"}, nil, true, ""},
		"the user may not":  {[]string{"authorizer.group('').resource('nodes').check('get').allowed()"}, nil, false, ""},
		"an error":          {[]string{"object.spec.nothing == 1"}, nil, false, `pods "web" is forbidden: expression 'object.spec.nothing == 1' resulted in error: no such key: nothing`},
		"an error, ignored": {[]string{"object.spec.nothing == 1"}, &ignore, false, ""},
		"false and error":   {[]string{"object.spec.nothing == 1", "false"}, nil, false, ""},
	}
	pod := request(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, corev1.SchemeGroupVersion.WithResource("pods"), "Pod", "team")
	attributes, err := match.NewVersions(pod, newInterfaces()).VersionedAttribute(pod.GetKind())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			conditions := &match.Conditions{Name: "test", Kind: "webhook", Step: "admit", Failure: c.failure}
			for _, e := range c.expressions {
				conditions.Of = append(conditions.Of, admissionregistrationv1.MatchCondition{Name: "c", Expression: e})
			}
			got, err := conditions.Match(t.Context(), attributes, askedOf("ada"))
			fails := ""
			if err != nil {
				fails = err.Error()
			}
			if got != c.want || fails != c.fails {
				t.Errorf("%v, %q; want %v, %q", got, fails, c.want, c.fails)
			}
		})
	}
}
