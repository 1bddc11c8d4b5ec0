package initializers_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/app"
)

// What webhooks and policies see of the field, and that they cannot lose it.
func TestWebhooksAndPoliciesSeeTheField(t *testing.T) {
	inEach(
		t, app.Config{},
		row{name: "webhooks see the field and cannot lose it", holds: seenByWebhooks},
		row{name: "an empty list is one after a second round", holds: emptiedInTwoRounds},
		row{name: "initializers are given after the second round", holds: givenAtTheEnd},
		row{name: "policies see the field", holds: seenByPolicies},
	)
}

// seenByWebhooks: webhooks read what objects wait for where clients do, and
// nothing that they answer changes it.
func seenByWebhooks(w *world) {
	patches := map[string]string{
		"no-patch":             "",
		"label":                label(""),
		"annotations-gone":     `[{"op":"add","path":"/metadata/annotations","value":{}},{"op":"remove","path":"/metadata/annotations"}]`,
		"field-gone":           `[{"op":"remove","path":"/metadata/initializers"}]`,
		"another-list":         `[{"op":"add","path":"/metadata/initializers","value":{"pending":[]}}]`,
		"carried-as-in-memory": `[{"op":"add","path":"/metadata/annotations","value":{"initializers.setpoint.dev/carried":"{\"pending\":[]}"}}]`,
		"test-of-the-list":     `[{"op":"test","path":"/metadata/initializers/pending/0/name","value":"a.k8s.io"},{"op":"add","path":"/metadata/labels","value":{"patched":"yes"}}]`,
		"name-gone":            `[{"op":"remove","path":"/metadata/initializers/pending/0"}]`,
	}
	var mutating, validating reviews
	w.hook("mutating", []any{"UPDATE"}, nil, mutating.note(w.t, func(name string) string { return patches[name] }))
	w.hook("validating", []any{"CREATE", "UPDATE"}, nil, validating.note(w.t, nothing))
	for name, patch := range patches {
		if got := w.create(name, pending("a.k8s.io", "b.k8s.io"), all); got.code != http.StatusAccepted {
			w.t.Fatal(got)
		}
		if got := w.merge(name, `{"metadata":{"labels":{"mine":"yes"}}}`); got.code != http.StatusOK {
			w.t.Fatal(got)
		}
		got := w.get(name)
		if diff := cmp.Diff([]string{"a.k8s.io", "b.k8s.io"}, pendingOf(got.body)); diff != "" {
			w.t.Errorf("%s waits for:\n%s", name, diff)
		}
		if text := got.String(); strings.Contains(text, "setpoint.dev") || strings.Contains(patch, "patched") && !strings.Contains(text, `"patched":"yes"`) {
			w.t.Errorf("%s has become %v", name, text)
		}
		if diff := cmp.Diff([]string{"UPDATE a.k8s.io+b.k8s.io a.k8s.io+b.k8s.io"}, mutating.of(name)); diff != "" {
			w.t.Errorf("%s: the mutating webhook saw:\n%s", name, diff)
		}
		want := []string{"CREATE a.k8s.io+b.k8s.io", "UPDATE a.k8s.io+b.k8s.io a.k8s.io+b.k8s.io"}
		if diff := cmp.Diff(want, validating.of(name)); diff != "" {
			w.t.Errorf("%s: the validating webhook saw:\n%s", name, diff)
		}
	}
}

// emptiedInTwoRounds: a list that is emptied by who may stays so when a webhook
// has the object gone over once more.
func emptiedInTwoRounds(w *world) {
	var asked reviews
	w.hook("mutating", []any{"UPDATE"}, nil, asked.note(w.t, label))
	created := w.creating("x", pending("a.k8s.io", "b.k8s.io"), "")
	w.waits("x")
	got := w.put(func(o object) { o["metadata"].(object)["initializers"] = pending() })
	if got.code != http.StatusOK || pendingOf(got.body) != nil || len(got.warnings) > 0 {
		w.t.Errorf("%v", got)
	}
	if got := within(w.t, created); got.code != http.StatusCreated {
		w.t.Errorf("%v", got)
	}
}

// givenAtTheEnd: which initializers an object gets is decided of what all webhooks
// have made of it, and webhooks are not asked again because it got some.
func givenAtTheEnd(w *world) {
	var asked reviews
	w.hook("mutating", []any{"CREATE"}, object{"reinvocationPolicy": "IfNeeded"}, asked.note(w.t, label))
	w.configure("c", w.forAll("a.k8s.io", "objectSelector", object{"matchLabels": object{"patched": "yes"}}))
	if got := w.create("x", nil, all); got.code != http.StatusAccepted || !slices.Equal(pendingOf(got.body), []string{"a.k8s.io"}) {
		w.t.Errorf("%v", got)
	}
	if diff := cmp.Diff([]string{"CREATE "}, asked.of("x")); diff != "" {
		w.t.Errorf("the webhook saw:\n%s", diff)
	}
}

const policies = "/apis/admissionregistration.k8s.io/v1/"

// seenByPolicies: expressions read the field where clients do: in conditions,
// validations and patches. Policies change objects that wait, and not what they
// wait for.
func seenByPolicies(w *world) {
	rule := w.rule()
	rule["operations"] = []any{"UPDATE"}
	const carried = `'initializers.setpoint.dev/carried' in object.metadata.?annotations.orValue({})`
	matches := object{"resourceRules": []any{rule}}
	waits := []any{object{"name": "waits", "expression": `object.metadata.?initializers.pending[0].name.orValue('') == 'a.k8s.io' && oldObject.metadata.initializers.pending.size() == 2`}}
	w.make(policies+"mutatingadmissionpolicies", object{"metadata": object{"name": "p"}, "spec": object{
		"matchConstraints": matches, "matchConditions": waits, "failurePolicy": "Fail", "reinvocationPolicy": "Never",
		"mutations": []any{
			object{"patchType": "JSONPatch", "jsonPatch": object{"expression": `[JSONPatch{op: "add", path: "/metadata/labels", value: {"json": object.metadata.initializers.pending[1].name}}]`}},
			object{"patchType": "ApplyConfiguration", "applyConfiguration": object{"expression": `Object{metadata: Object.metadata{labels: Object.metadata.labels{applied: object.metadata.initializers.pending[0].name}}}`}},
		},
	}})
	w.make(policies+"mutatingadmissionpolicybindings", object{"metadata": object{"name": "p"}, "spec": object{"policyName": "p"}})
	w.make(policies+"validatingadmissionpolicies", object{"metadata": object{"name": "p"}, "spec": object{
		"matchConstraints": matches, "matchConditions": waits, "failurePolicy": "Fail",
		"validations": []any{
			object{"expression": `!(` + carried + `)`, "message": "the annotation is seen"},
			object{"expression": `object.metadata.annotations.mine != 'no'`, "messageExpression": `'waits for ' + object.metadata.initializers.pending[0].name`},
		},
	}})
	w.make(policies+"validatingadmissionpolicybindings", object{"metadata": object{"name": "p"}, "spec": object{"policyName": "p", "validationActions": []any{"Deny"}}})
	created := w.creating("x", pending("a.k8s.io", "b.k8s.io"), "")
	w.waits("x")
	got := w.merge("x", `{"metadata":{"annotations":{"mine":"yes"}}}`)
	labels, _ := got.metadata()["labels"].(object)
	if diff := cmp.Diff(object{"json": "b.k8s.io", "applied": "a.k8s.io"}, labels); diff != "" {
		w.t.Errorf("the mutating policy has made %v:\n%s", got, diff)
	}
	if names := pendingOf(w.get("x").body); !slices.Equal(names, []string{"a.k8s.io", "b.k8s.io"}) {
		w.t.Errorf("it waits for %v", names)
	}
	if got := w.merge("x", `{"metadata":{"annotations":{"mine":"no"}}}`); got.code != http.StatusUnprocessableEntity || !strings.Contains(got.message(), "denied request: waits for a.k8s.io") {
		w.t.Errorf("the validating policy says %v", got)
	}
	w.done("x")
	if got := within(w.t, created); got.code != http.StatusCreated {
		w.t.Error(got)
	}
}
