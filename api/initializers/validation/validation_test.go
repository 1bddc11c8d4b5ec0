package validation_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/api/initializers/v1alpha1"
	"setpoint.dev/setpoint/api/initializers/validation"
)

func TestValidate(t *testing.T) {
	// What is given is the content of one initializer.
	for name, c := range map[string]struct {
		given string
		want  []string
	}{
		"as in 2018":     {given: `{name: envoy.initializer.kubernetes.io, rules: [{apiGroups: ["*"], apiVersions: ["*"], resources: [deployments]}]}`},
		"core group":     {given: `{name: a.b.c, rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods, services]}]}`},
		"no rules":       {given: `{name: a.b.c}`},
		"no name":        {given: `{}`, want: []string{`initializers[0].name: Required value`}},
		"one dot":        {given: `{name: b.c}`, want: []string{`initializers[0].name: Invalid value: "b.c": should be a domain with at least three segments separated by dots`}},
		"not a domain":   {given: `{name: A.b.c}`, want: []string{`initializers[0].name: Invalid value: "A.b.c": a lowercase RFC 1123 subdomain`}},
		"an empty rule":  {given: `{name: a.b.c, rules: [{}]}`, want: []string{`initializers[0].rules[0].apiGroups: Required value`, `initializers[0].rules[0].apiVersions: Required value`, `initializers[0].rules[0].resources: Required value`}},
		"empty entries":  {given: `{name: a.b.c, rules: [{apiGroups: [""], apiVersions: [""], resources: [""]}]}`, want: []string{`initializers[0].rules[0].apiVersions[0]: Required value`, `initializers[0].rules[0].resources[0]: Required value`}},
		"a subresource":  {given: `{name: a.b.c, rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods/status]}]}`, want: []string{`initializers[0].rules[0].resources[0]: Invalid value: "pods/status": must not specify subresources`}},
		"not all of all": {given: `{name: a.b.c, rules: [{apiGroups: [a, "*"], apiVersions: [v1, "*"], resources: [pods, "*"]}]}`, want: []string{`initializers[0].rules[0].apiGroups: Invalid value: ["a","*"]: if '*' is present, must not specify other API groups`, `initializers[0].rules[0].apiVersions: Invalid value: ["v1","*"]: if '*' is present, must not specify other API versions`, `initializers[0].rules[0].resources: Invalid value: ["pods","*"]: if '*' is present, must not specify other resources`}},
		"all that is new": {given: `
name: a.b.c
rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], scope: Namespaced}]
failurePolicy: Wait
timeoutSeconds: 600
namespaceSelector: {matchLabels: {a: b}}
objectSelector: {matchExpressions: [{key: a, operator: Exists}]}
matchConditions: [{name: opted, expression: '"a" in object.metadata.annotations'}]
matchPolicy: Equivalent
controller: {serviceAccount: {namespace: default, name: envoy}, lease: {namespace: default, name: envoy}}
`},
		"wrong words": {given: `{name: a.b.c, failurePolicy: Retry, matchPolicy: Some, rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], scope: Planet}]}`, want: []string{
			`initializers[0].rules[0].scope: Unsupported value: "Planet": supported values: "*", "Cluster", "Namespaced"`,
			`initializers[0].failurePolicy: Unsupported value: "Retry": supported values: "Fail", "Ignore", "Wait"`,
			`initializers[0].matchPolicy: Unsupported value: "Some": supported values: "Equivalent", "Exact"`,
		}},
		"no time":            {given: `{name: a.b.c, timeoutSeconds: 0}`, want: []string{`initializers[0].timeoutSeconds: Invalid value: 0: the timeout value must be between 1 and 600 seconds`}},
		"too much time":      {given: `{name: a.b.c, timeoutSeconds: 601}`, want: []string{`initializers[0].timeoutSeconds: Invalid value: 601: the timeout value must be between 1 and 600 seconds`}},
		"selectors":          {given: `{name: a.b.c, namespaceSelector: {matchLabels: {"?": b}}, objectSelector: {matchExpressions: [{key: a, operator: In}]}}`, want: []string{`initializers[0].namespaceSelector.matchLabels: Invalid value: "?"`, `initializers[0].objectSelector.matchExpressions[0].values: Required value`}},
		"conditions":         {given: `{name: a.b.c, matchConditions: [{name: x, expression: "1"}, {name: x, expression: "true"}, {expression: "nothing"}]}`, want: []string{`initializers[0].matchConditions[0].expression: Invalid value: "1": must evaluate to bool`, `initializers[0].matchConditions[1].name: Duplicate value: "x"`, `initializers[0].matchConditions[2].expression: Invalid value: "nothing"`, `initializers[0].matchConditions[2].name: Required value`}},
		"controller":         {given: `{name: a.b.c, controller: {serviceAccount: {}, lease: {namespace: A_, name: B_}}}`, want: []string{`initializers[0].controller.serviceAccount.namespace: Required value`, `initializers[0].controller.serviceAccount.name: Required value`, `initializers[0].controller.lease.namespace: Invalid value: "A_"`, `initializers[0].controller.lease.name: Invalid value: "B_"`}},
		"floor":              {given: `{name: a.b.c, rules: [{apiGroups: ["", rbac.authorization.k8s.io], apiVersions: ["*"], resources: [pods, nodes, roles]}]}`, want: []string{`initializers[0].rules[0].resources[1]: Invalid value: "nodes": nodes must not wait for initializers`, `initializers[0].rules[0].resources[2]: Invalid value: "roles": roles.rbac.authorization.k8s.io must not wait for initializers`}},
		"floor of any group": {given: `{name: a.b.c, rules: [{apiGroups: ["*"], apiVersions: ["*"], resources: [leases]}]}`, want: []string{`initializers[0].rules[0].resources[0]: Invalid value: "leases": leases.coordination.k8s.io must not wait`}},
		"floor by star":      {given: `{name: a.b.c, rules: [{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"]}]}`},
		"name of the floor":  {given: `{name: a.b.c, rules: [{apiGroups: [example.org], apiVersions: ["*"], resources: [nodes]}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			config := &v1alpha1.InitializerConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Initializers: make([]v1alpha1.Initializer, 1)}
			if err := yaml.UnmarshalStrict([]byte(c.given), &config.Initializers[0]); err != nil {
				t.Fatal(err)
			}
			v1alpha1.SetDefaults(config)
			var got []string
			for _, e := range validation.Validate(config) {
				got = append(got, e.Error())
			}
			ok := len(got) == len(c.want)
			for i := 0; ok && i < len(got); i++ {
				ok = strings.HasPrefix(got[i], c.want[i])
			}
			if !ok {
				t.Errorf("want, got:\n%s", cmp.Diff(c.want, got))
			}
		})
	}
}

func TestValidateStatus(t *testing.T) {
	old := &v1alpha1.InitializerConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "x", ResourceVersion: "1"}}
	c := old.DeepCopy()
	c.Status.Initializers = []v1alpha1.InitializerStatus{{Name: "a.b.c", Conditions: []metav1.Condition{{Type: "Ready"}}}, {Name: "a.b.c"}, {}}
	var got []string
	for _, e := range validation.ValidateStatus(c, old) {
		got = append(got, e.Field+": "+string(e.Type))
	}
	want := []string{
		"status.initializers[0].conditions[0].status: FieldValueNotSupported",
		"status.initializers[0].conditions[0].lastTransitionTime: FieldValueRequired",
		"status.initializers[0].conditions[0].reason: FieldValueRequired",
		"status.initializers[1].name: FieldValueDuplicate", "status.initializers[2].name: FieldValueRequired",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want, got:\n%s", diff)
	}
}
