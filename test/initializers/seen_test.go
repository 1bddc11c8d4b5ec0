package initializers_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"

	"setpoint.dev/setpoint/admission"
	"setpoint.dev/setpoint/app"
)

// reviews are what a webhook was asked about objects, by name.
type reviews struct {
	mu   sync.Mutex // guards seen
	seen map[string][]string
}

// note remembers what a review says of initializers, and answers with the patch
// for the object, if there is one.
func (r *reviews) note(t *testing.T, patchFor func(name string) string) decider {
	return func(review *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
		text, err := json.Marshal(review)
		if err != nil || strings.Contains(string(text), "setpoint.dev") {
			t.Errorf("a review has %s, %v", text, err)
		}
		told := string(review.Request.Operation)
		for _, raw := range [][]byte{review.Request.OldObject.Raw, review.Request.Object.Raw} {
			var obj object
			if len(raw) > 0 && json.Unmarshal(raw, &obj) == nil {
				told += " " + strings.Join(pendingOf(obj), "+")
			}
		}
		r.add(review.Request.Name, told)
		if patch := patchFor(review.Request.Name); patch != "" {
			return patched(patch)
		}
		return &admissionv1.AdmissionResponse{Allowed: true}
	}
}

func (r *reviews) add(name, told string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string][]string{}
	}
	r.seen[name] = append(r.seen[name], told)
}

func nothing(string) string { return "" }

func label(string) string {
	return `[{"op":"add","path":"/metadata/labels","value":{"patched":"yes"}}]`
}

func (r *reviews) of(name string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen[name])
}

// Webhooks read what objects wait for where clients do, and nothing that they
// answer changes it.
func TestWebhooksSeeTheFieldAndCannotLoseIt(t *testing.T) {
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
	inEach(t, func(w *world) {
		var mutating, validating reviews
		w.hook("mutating", []any{"UPDATE"}, nil, mutating.note(w.t, func(name string) string { return patches[name] }))
		w.hook("validating", []any{"*"}, nil, validating.note(w.t, nothing))
		for name, patch := range patches {
			if got := w.create(name, pending("a.k8s.io", "b.k8s.io"), "?includeUninitialized=true"); got.code != http.StatusAccepted {
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
	})
}

// A list that is emptied by who may stays so when a webhook has the object gone
// over once more.
func TestAnEmptyListIsOneAfterASecondRound(t *testing.T) {
	inEach(t, func(w *world) {
		var asked reviews
		w.hook("mutating", []any{"UPDATE"}, nil, asked.note(w.t, label))
		created := w.creating("x", pending("a.k8s.io", "b.k8s.io"), "")
		w.waits("x")
		have := w.get("x").body
		have["metadata"].(object)["initializers"] = pending()
		if got := w.write(w.t.Context(), "PUT", w.path+"/x", have); got.code != http.StatusOK || pendingOf(got.body) != nil || len(got.warnings) > 0 {
			w.t.Errorf("%v", got)
		}
		if got := within(w.t, created); got.code != http.StatusCreated {
			w.t.Errorf("%v", got)
		}
	})
}

// Which initializers an object gets is decided of what all webhooks have made of
// it, and webhooks are not asked again because it got some.
func TestInitializersAreGivenAfterTheSecondRound(t *testing.T) {
	inEach(t, func(w *world) {
		var asked reviews
		w.hook("mutating", []any{"CREATE"}, object{"reinvocationPolicy": "IfNeeded"}, asked.note(w.t, label))
		w.configure("c", w.forAll("a.k8s.io", "objectSelector", object{"matchLabels": object{"patched": "yes"}}))
		if got := w.create("x", nil, "?includeUninitialized=true"); got.code != http.StatusAccepted || !slices.Equal(pendingOf(got.body), []string{"a.k8s.io"}) {
			w.t.Errorf("%v", got)
		}
		if diff := cmp.Diff([]string{"CREATE "}, asked.of("x")); diff != "" {
			w.t.Errorf("the webhook saw:\n%s", diff)
		}
	})
}

// Expressions read the field where clients do: in conditions, validations and
// patches. Policies change objects that wait, and not what they wait for.
func TestPoliciesSeeTheField(t *testing.T) {
	inEach(t, func(w *world) {
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
		labels, _ := got.body["metadata"].(object)["labels"].(object)
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
	})
}

// A pod that waits is new to the plugins that fill in new pods: what initializers
// add gets limits and a token like the rest.
func TestWhatInitializersAddIsFilledIn(t *testing.T) {
	w := begin(t, app.Config{Admission: admission.Options{Enable: []string{"ServiceAccount"}}}, speeches[0])
	w.make("/api/v1/namespaces/default/serviceaccounts", object{"metadata": object{"name": "default"}})
	w.make("/api/v1/namespaces/default/limitranges", object{"metadata": object{"name": "small"}, "spec": object{
		"limits": []any{object{"type": "Container", "default": object{"cpu": "200m"}, "defaultRequest": object{"cpu": "100m"}, "max": object{"cpu": "300m"}}},
	}})
	created := w.creating("x", pending("a.k8s.io", "b.k8s.io"), "")
	w.waits("x")
	for _, patch := range []string{
		`{"metadata":{"initializers":{"pending":[{"$patch":"delete","name":"a.k8s.io"}]}},"spec":{"containers":[{"name":"first","image":"side:1"}]}}`,
		`{"metadata":{"initializers":null},"spec":{"containers":[{"name":"last","image":"side:1"}]}}`,
	} {
		if got := w.do("PATCH", w.path+"/x", patch, "Content-Type", "application/strategic-merge-patch+json"); got.code != http.StatusOK {
			t.Fatal(got)
		}
	}
	got := within(t, created)
	if got.code != http.StatusCreated || len(containers(got.body)) != 3 {
		t.Fatal(got)
	}
	spec := got.body["spec"].(object)
	if volumes, _ := spec["volumes"].([]any); len(volumes) != 1 {
		t.Errorf("volumes %v", volumes)
	}
	for _, c := range spec["containers"].([]any) {
		c := c.(object)
		if mounts, _ := c["volumeMounts"].([]any); len(mounts) != 1 {
			t.Errorf("%v has no token: %v", c["name"], mounts)
		}
		if diff := cmp.Diff(object{"limits": object{"cpu": "200m"}, "requests": object{"cpu": "100m"}}, c["resources"]); diff != "" {
			t.Errorf("resources of %v:\n%s", c["name"], diff)
		}
	}
}

const policies = "/apis/admissionregistration.k8s.io/v1/"
