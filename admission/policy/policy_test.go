package policy_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/admission/webhook/webhooktest"
	"setpoint.dev/setpoint/app/apptest"
)

var limits = schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "limits"}

// fixture is a plane with a namespace of the tier gold, config maps to be
// parameters, and a custom kind.
type fixture struct {
	*testing.T
	client  *kubernetes.Clientset
	dynamic dynamic.Interface
	warned  []string
	mu      sync.Mutex // guards warned
	number  int
}

// HandleWarningHeader implements rest.WarningHandler.
func (f *fixture) HandleWarningHeader(_ int, _, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warned = append(f.warned, text)
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func start(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t}
	cfg := rest.CopyConfig(apptest.Start(t).Config)
	cfg.WarningHandler = f
	var err error
	f.client, err = kubernetes.NewForConfig(cfg)
	f.must(err)
	f.dynamic, err = dynamic.NewForConfig(cfg)
	f.must(err)
	_, err = f.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"tier": "gold"}}}, metav1.CreateOptions{})
	f.must(err)
	for name, most := range map[string]string{"small": "2", "large": "5"} {
		_, err = f.client.CoreV1().ConfigMaps("team").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"limit": "yes"}}, Data: map[string]string{"most": most},
		}, metav1.CreateOptions{})
		f.must(err)
	}
	f.define(cfg)
	return f
}

// define makes the custom kind, with an object to be a parameter.
func (f *fixture) define(cfg *rest.Config) {
	f.Helper()
	definitions, err := apiextensions.NewForConfig(cfg)
	f.must(err)
	open := true
	_, err = definitions.ApiextensionsV1().CustomResourceDefinitions().Create(f.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "limits.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: apiextensionsv1.ClusterScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "limits", Kind: "Limit"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"spec": {Type: "object", XPreserveUnknownFields: &open, Properties: map[string]apiextensionsv1.JSONSchemaProps{"most": {Type: "integer"}}},
				}},
			}}},
		},
	}, metav1.CreateOptions{})
	f.must(err)
	_, err = f.dynamic.Resource(limits).Create(f.Context(), limit("cluster", 3), metav1.CreateOptions{})
	f.must(err)
}

func limit(name string, most int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.org/v1", "kind": "Limit", "metadata": map[string]any{"name": name}, "spec": map[string]any{"most": most},
	}}
}

// on are constraints: resources of the core group or of the custom kind's.
func on(resource string) *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{"CREATE", "UPDATE"},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{"", "example.org"}, APIVersions: []string{"v1"}, Resources: []string{resource}},
		},
	}}}
}

// clear removes all policies.
func (f *fixture) clear() {
	f.Helper()
	api, all := f.client.AdmissionregistrationV1(), metav1.ListOptions{}
	f.must(api.ValidatingAdmissionPolicyBindings().DeleteCollection(f.Context(), metav1.DeleteOptions{}, all))
	f.must(api.ValidatingAdmissionPolicies().DeleteCollection(f.Context(), metav1.DeleteOptions{}, all))
	f.must(api.MutatingAdmissionPolicyBindings().DeleteCollection(f.Context(), metav1.DeleteOptions{}, all))
	f.must(api.MutatingAdmissionPolicies().DeleteCollection(f.Context(), metav1.DeleteOptions{}, all))
}

func (f *fixture) validate(name string, spec admissionregistrationv1.ValidatingAdmissionPolicySpec, bound admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
	f.Helper()
	if spec.MatchConstraints == nil {
		spec.MatchConstraints = on("configmaps")
	}
	if bound.ValidationActions == nil {
		bound.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	}
	bound.PolicyName = name
	api := f.client.AdmissionregistrationV1()
	_, err := api.ValidatingAdmissionPolicies().Create(f.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	f.must(err)
	_, err = api.ValidatingAdmissionPolicyBindings().Create(f.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name + "-bound"}, Spec: bound}, metav1.CreateOptions{})
	f.must(err)
}

func (f *fixture) mutate(name string, spec admissionregistrationv1.MutatingAdmissionPolicySpec) {
	f.Helper()
	if spec.MatchConstraints == nil {
		spec.MatchConstraints = on("configmaps")
	}
	if spec.ReinvocationPolicy == "" {
		spec.ReinvocationPolicy = admissionregistrationv1.NeverReinvocationPolicy
	}
	api := f.client.AdmissionregistrationV1()
	_, err := api.MutatingAdmissionPolicies().Create(f.Context(), &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	f.must(err)
	_, err = api.MutatingAdmissionPolicyBindings().Create(f.Context(), &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-bound"}, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
	}, metav1.CreateOptions{})
	f.must(err)
}

// create creates a config map with three entries and tells what came of it:
// the code and message, or its annotations and warnings.
func (f *fixture) create() string {
	f.Helper()
	f.number++
	f.warned = nil
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("map-%d", f.number)}, Data: map[string]string{"a": "1", "b": "2", "c": "3"}}
	made, err := f.client.CoreV1().ConfigMaps("team").Create(f.Context(), m, metav1.CreateOptions{})
	if status, ok := err.(apierrors.APIStatus); ok {
		return fmt.Sprintf("%d %s", status.Status().Code, strings.ReplaceAll(status.Status().Message, m.Name, "M"))
	}
	f.must(err)
	return strings.TrimSpace("created " + made.Annotations["seen"] + strings.Join(f.warned, "; "))
}

func rule(expression string) []admissionregistrationv1.Validation {
	return []admissionregistrationv1.Validation{{Expression: expression}}
}

func TestValidating(t *testing.T) {
	f := start(t)
	type spec = admissionregistrationv1.ValidatingAdmissionPolicySpec
	type bound = admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec
	ignore, deny, allow, forbidden := admissionregistrationv1.Ignore, admissionregistrationv1.DenyAction, admissionregistrationv1.AllowAction, metav1.StatusReasonForbidden
	maps, custom := &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}, &admissionregistrationv1.ParamKind{APIVersion: "example.org/v1", Kind: "Limit"}
	named := func(name string, missing *admissionregistrationv1.ParameterNotFoundActionType) *admissionregistrationv1.ParamRef {
		return &admissionregistrationv1.ParamRef{Name: name, ParameterNotFoundAction: missing}
	}
	selected := &admissionregistrationv1.ParamRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"limit": "yes"}}, ParameterNotFoundAction: &deny}
	atMost := rule("size(object.data) <= int(params.data.most)")
	elsewhere := on("configmaps")
	elsewhere.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "silver"}}
	actions := func(of ...admissionregistrationv1.ValidationAction) bound { return bound{ValidationActions: of} }
	says := func(v admissionregistrationv1.Validation) spec {
		return spec{Validations: []admissionregistrationv1.Validation{v}}
	}
	denied := `422 configmaps "M" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p-bound' denied request: `
	cases := map[string]struct {
		spec  spec
		bound bound
		want  string
	}{
		"allowed":                       {spec{Validations: rule("size(object.data) == 3")}, bound{}, "created"},
		"denied":                        {spec{Validations: rule("size(object.data) < 3")}, bound{}, denied + "failed expression: size(object.data) < 3"},
		"with a message":                {says(admissionregistrationv1.Validation{Expression: "false", Message: "too much"}), bound{}, denied + "too much"},
		"with an expression's message":  {says(admissionregistrationv1.Validation{Expression: "false", Message: "too much", MessageExpression: "'has ' + string(size(object.data))"}), bound{}, denied + "has 3"},
		"with a message that fails":     {says(admissionregistrationv1.Validation{Expression: "false", Message: "too much", MessageExpression: "string(object.nothing)"}), bound{}, denied + "too much"},
		"with a reason":                 {says(admissionregistrationv1.Validation{Expression: "false", Message: "no", Reason: &forbidden}), bound{}, strings.Replace(denied, "422", "403", 1) + "no"},
		"warned":                        {says(admissionregistrationv1.Validation{Expression: "false", Message: "no"}), actions(admissionregistrationv1.Warn), "created Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-bound': no"},
		"audited":                       {says(admissionregistrationv1.Validation{Expression: "false", Message: "no"}), actions(admissionregistrationv1.Audit), "created"},
		"variables":                     {spec{Variables: []admissionregistrationv1.Variable{{Name: "n", Expression: "size(object.data)"}, {Name: "twice", Expression: "variables.n * 2"}}, Validations: rule("variables.twice == 7")}, bound{}, denied + "failed expression: variables.twice == 7"},
		"a variable that fails":         {spec{Variables: []admissionregistrationv1.Variable{{Name: "n", Expression: "object.nothing"}}, Validations: rule("variables.n == 7")}, bound{}, denied + `expression 'variables.n == 7' resulted in error: composited variable "n" fails to evaluate: no such key: nothing`},
		"an error":                      {spec{Validations: rule("object.nothing == 1")}, bound{}, denied + "expression 'object.nothing == 1' resulted in error: no such key: nothing"},
		"an error, ignored":             {spec{Validations: rule("object.nothing == 1"), FailurePolicy: &ignore}, bound{}, "created"},
		"a condition that holds":        {spec{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "request.operation == 'CREATE'"}}, Validations: rule("false")}, bound{}, denied + "failed expression: false"},
		"a condition that does not":     {spec{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "request.operation != 'CREATE'"}}, Validations: rule("false")}, bound{}, "created"},
		"a condition that fails":        {spec{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "object.nothing == 1"}}, Validations: rule("false")}, bound{}, denied + "expression 'object.nothing == 1' resulted in error: no such key: nothing"},
		"the user":                      {spec{Validations: rule("authorizer.group('').resource('pods').namespace('team').check('create').allowed() && request.userInfo.username != ''")}, bound{}, "created"},
		"the namespace":                 {spec{Validations: rule("namespaceObject.metadata.labels.tier == 'gold'")}, bound{}, "created"},
		"no old object":                 {spec{Validations: rule("oldObject == null")}, bound{}, "created"},
		"too costly":                    {spec{Validations: rule("[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, [1,2,3,4,5,6,7,8,9,10].all(g, true)))))))")}, bound{}, denied + "expression '[1,2,3,4,5,6,7,8,9,10].all("},
		"an annotation that fails":      {spec{AuditAnnotations: []admissionregistrationv1.AuditAnnotation{{Key: "k", ValueExpression: "string(object.nothing)"}}}, bound{}, denied + "expression 'string(object.nothing)' resulted in error: no such key: nothing"},
		"another namespace":             {spec{Validations: rule("false"), MatchConstraints: elsewhere}, bound{}, "created"},
		"bound to another namespace":    {spec{Validations: rule("false")}, bound{MatchResources: elsewhere}, "created"},
		"a parameter":                   {spec{ParamKind: maps, Validations: atMost}, bound{ParamRef: named("small", &deny)}, denied + "failed expression: size(object.data) <= int(params.data.most)"},
		"another parameter":             {spec{ParamKind: maps, Validations: atMost}, bound{ParamRef: named("large", &deny)}, "created"},
		"selected parameters":           {spec{ParamKind: maps, Validations: atMost}, bound{ParamRef: selected}, denied + "failed expression: size(object.data) <= int(params.data.most)"},
		"no parameter, denied":          {spec{ParamKind: maps, Validations: atMost}, bound{ParamRef: named("gone", &deny)}, denied + "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"},
		"no parameter, allowed":         {spec{ParamKind: maps, Validations: atMost}, bound{ParamRef: named("gone", &allow)}, "created"},
		"a parameter that is not bound": {spec{ParamKind: maps, Validations: rule("params == null")}, bound{}, "created"},
		"a custom parameter":            {spec{ParamKind: custom, Validations: rule("size(object.data) < params.spec.most")}, bound{ParamRef: named("cluster", &deny)}, denied + "failed expression: size(object.data) < params.spec.most"},
		"an unknown kind of parameter":  {spec{ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "example.org/v1", Kind: "Nothing"}, Validations: rule("true")}, bound{ParamRef: named("x", &deny)}, `422 configmaps "M" is forbidden: ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'example.org/v1, Kind=Nothing'`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f.T = t
			f.clear()
			f.validate("p", c.spec, c.bound)
			if got := f.create(); got != c.want && (!strings.HasPrefix(got, c.want) || !strings.HasSuffix(c.want, "(")) {
				t.Error(cmp.Diff(c.want, got))
			}
		})
	}
}

func patches(expression string) []admissionregistrationv1.Mutation {
	return []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{Expression: expression}}}
}

func applies(expression string) []admissionregistrationv1.Mutation {
	return []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: expression}}}
}

// sees appends to an annotation.
func sees(what string) []admissionregistrationv1.Mutation {
	return applies(`Object{metadata: Object.metadata{annotations: {"seen": (has(object.metadata.annotations) && "seen" in object.metadata.annotations ? object.metadata.annotations["seen"] : "") + "` + what + `"}}}`)
}

func TestMutating(t *testing.T) {
	f := start(t)
	type spec = admissionregistrationv1.MutatingAdmissionPolicySpec
	ignore, again := admissionregistrationv1.Ignore, admissionregistrationv1.IfNeededReinvocationPolicy
	cases := map[string]struct {
		policies []spec
		want     string
	}{
		"applied":              {[]spec{{Mutations: sees("a")}}, "created a"},
		"patched":              {[]spec{{Mutations: patches(`[JSONPatch{op: "add", path: "/metadata/annotations", value: {"seen": "b"}}]`)}}, "created b"},
		"by several":           {[]spec{{Mutations: sees("a")}, {Mutations: sees("b")}}, "created ab"},
		"several times by one": {[]spec{{Mutations: append(sees("a"), sees("b")...)}}, "created ab"},
		"once more":            {[]spec{{Mutations: sees("a"), ReinvocationPolicy: again}, {Mutations: sees("b")}}, "created aba"},
		"not its condition":    {[]spec{{Mutations: sees("a"), MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "object.metadata.name == 'x'"}}}}, "created"},
		"a variable":           {[]spec{{Variables: []admissionregistrationv1.Variable{{Name: "v", Expression: "'from ' + request.operation"}}, Mutations: applies(`Object{metadata: Object.metadata{annotations: {"seen": variables.v}}}`)}}, "created from CREATE"},
		"an error":             {[]spec{{Mutations: applies(`Object{metadata: Object.metadata{annotations: {"seen": object.nothing}}}`)}}, `403 policy 'p0' with binding 'p0-bound' denied request: expression 'Object{metadata: Object.metadata{annotations: {"seen": object.nothing}}}' resulted in error: no such key: nothing`},
		"an error, ignored":    {[]spec{{Mutations: applies(`Object{metadata: Object.metadata{annotations: {"seen": object.nothing}}}`), FailurePolicy: &ignore}}, "created"},
		"a patch of nothing":   {[]spec{{Mutations: patches(`[JSONPatch{op: "remove", path: "/data/x"}]`)}}, "403 policy 'p0' with binding 'p0-bound' denied request: JSON Patch: error in remove for path: '/data/x': Unable to remove nonexistent key: x: missing value"},
		"a test that fails":    {[]spec{{Mutations: patches(`[JSONPatch{op: "test", path: "/data/a", value: "9"}, JSONPatch{op: "remove", path: "/data"}]`)}}, "created"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f.T = t
			f.clear()
			for i, p := range c.policies {
				f.mutate(fmt.Sprintf("p%d", i), p)
			}
			if diff := cmp.Diff(c.want, f.create()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Policies see custom objects as they see others, and change them within their
// schema.
func TestCustomObjects(t *testing.T) {
	f := start(t)
	f.mutate("doubles", admissionregistrationv1.MutatingAdmissionPolicySpec{
		MatchConstraints: on("limits"), Mutations: patches(`[JSONPatch{op: "add", path: "/spec/most", value: object.spec.most * 2}, JSONPatch{op: "add", path: "/unknown", value: 1}]`),
	})
	f.validate("small", admissionregistrationv1.ValidatingAdmissionPolicySpec{MatchConstraints: on("limits"), Validations: rule("object.spec.most < 10")}, admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{})
	made, err := f.dynamic.Resource(limits).Create(t.Context(), limit("four", 4), metav1.CreateOptions{})
	f.must(err)
	if most, _, _ := unstructured.NestedInt64(made.Object, "spec", "most"); most != 8 {
		t.Errorf("the policy made %d of 4", most)
	}
	if _, there := made.Object["unknown"]; there {
		t.Error("a field that the schema does not know was kept")
	}
	if _, err = f.dynamic.Resource(limits).Create(t.Context(), limit("five", 5), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("the second policy did not see what the first made: %v", err)
	}
}

// A policy that wants to be asked again is, when a webhook has changed what it
// has made, and a webhook when a policy has.
func TestWebhooksAndPoliciesInTurn(t *testing.T) {
	f := start(t)
	hooks := webhooktest.Start(t)
	f.mutate("p", admissionregistrationv1.MutatingAdmissionPolicySpec{Mutations: sees("p"), ReinvocationPolicy: admissionregistrationv1.IfNeededReinvocationPolicy})
	address, none, again := hooks.URL+"/append/annotation=seen&value=h", admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.IfNeededReinvocationPolicy
	_, err := f.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "h"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "h.example.org", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, ReinvocationPolicy: &again,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &address, CABundle: hooks.CABundle},
			Rules:        []admissionregistrationv1.RuleWithOperations{on("configmaps").ResourceRules[0].RuleWithOperations},
		}},
	}, metav1.CreateOptions{})
	f.must(err)
	if want, got := "created phph", f.create(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// From the moment that the write of a policy's binding has returned, nothing is
// created that it denies, however many write.
func TestAPolicyHoldsAtOnce(t *testing.T) {
	f := start(t)
	for range 5 {
		f.clear()
		var holds atomic.Bool
		ctx, stop := context.WithCancel(t.Context())
		var writing sync.WaitGroup
		for range 16 {
			writing.Go(func() {
				for ctx.Err() == nil {
					held := holds.Load()
					_, err := f.client.CoreV1().ConfigMaps("team").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "storm-"}}, metav1.CreateOptions{})
					if status, ok := err.(apierrors.APIStatus); held && (!ok || status.Status().Code != http.StatusUnprocessableEntity) {
						t.Errorf("created although a policy denies it: %v", err)
						return
					}
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		f.validate("p", admissionregistrationv1.ValidatingAdmissionPolicySpec{Validations: rule("false")}, admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{})
		holds.Store(true)
		time.Sleep(60 * time.Millisecond)
		stop()
		writing.Wait()
	}
}

// What is wrong with the types in a policy's expressions is written into its
// status, also for custom kinds.
func TestTypesAreChecked(t *testing.T) {
	f := start(t)
	cases := map[string]struct{ resource, expression, want string }{
		"right":        {"configmaps", "object.data.a == 'b'", ""},
		"wrong":        {"configmaps", "object.nothing == 'b'", "undefined field 'nothing'"},
		"custom":       {"limits", "object.spec.most > 3", ""},
		"custom wrong": {"limits", "object.spec.most == 'many'", "found no matching overload for '_==_' applied to '(int, string)'"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f.T = t
			f.clear()
			group := ""
			if c.resource == "limits" {
				group = "example.org"
			}
			constraints := on(c.resource)
			constraints.ResourceRules[0].APIGroups = []string{group}
			f.validate("p", admissionregistrationv1.ValidatingAdmissionPolicySpec{MatchConstraints: constraints, Validations: rule(c.expression)}, admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{})
			for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
				p, err := f.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "p", metav1.GetOptions{})
				f.must(err)
				if p.Status.ObservedGeneration != p.Generation {
					if time.Now().After(end) {
						t.Fatal("not checked")
					}
					continue
				}
				got := fmt.Sprint(p.Status.TypeChecking.ExpressionWarnings)
				if c.want == "" && len(p.Status.TypeChecking.ExpressionWarnings) > 0 || !strings.Contains(got, c.want) {
					t.Errorf("%s, want %s", got, c.want)
				}
				return
			}
		})
	}
}
