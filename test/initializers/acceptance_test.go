package initializers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/app"
)

// What initializers were, and are again.
func TestAcceptance(t *testing.T) {
	inEach(
		t, app.Config{},
		row{name: "13.1 and T12, hidden until it is initialized", holds: hidden},
		row{name: "13.2, a configuration holds from its write on", holds: configured},
		row{name: "13.3, who says that nothing is pending needs the right", holds: bypassed},
		row{name: "13.4, mirror pods wait for nobody", holds: mirrored},
		row{name: "13.5, patches of the list", holds: patchedOff},
		row{name: "13.6, a failure is the creators answer", holds: failed},
		row{name: "13.6, a failure that is sent with the whole object", holds: failedByPUT},
		row{name: "13.7, a create ends with its time and the object stays", holds: timedOut},
		row{name: "13.8, rules", holds: ruled},
		row{name: "13.8, configurations that are none", holds: refused},
		row{name: "13.9, the order is that of names", holds: ordered},
		row{name: "who wants to see it wait is answered at once", holds: shown},
		row{name: "deleted while it waits", holds: deletedWaiting},
		row{name: "all are deleted, those that wait as well", holds: collected},
		row{name: "T13, other ways to create", holds: otherwiseCreated},
		row{name: "T13, a create by PUT waits", holds: createdByPUT, not: map[string]string{
			custom: "custom kinds are not created by PUT",
		}},
		row{name: "what waits may change as a whole", holds: changedAsAWhole},
		row{name: "templates need the right for pods", holds: templated, not: map[string]string{
			custom: "the control plane knows no pod template of a custom kind",
		}},
		row{name: "the PUT of the tutorial", holds: putByTutorial},
		row{name: "an update that says null", holds: putNull},
	)
}

func hidden(w *world) {
	seen := w.watch("")
	asking := w.watch(all[1:])
	created := w.creating("x", pending("test.k8s.io"), "")
	if diff := cmp.Diff([]string{"test.k8s.io"}, w.waits("x")); diff != "" {
		w.t.Error(diff)
	}
	still(w.t, created)
	if diff := cmp.Diff([][]string{{}, {"x"}}, [][]string{w.list(""), w.list(all)}); diff != "" {
		w.t.Error(diff)
	}
	if got := w.put(withoutField); got.code != http.StatusOK || pendingOf(got.body) != nil {
		w.t.Errorf("the write that completes it: %v", got)
	}
	got := within(w.t, created)
	if got.code != http.StatusCreated || pendingOf(got.body) != nil {
		w.t.Errorf("the answer of the create: %v", got)
	}
	if diff := cmp.Diff([]string{"ADDED x"}, seen(1)); diff != "" {
		w.t.Error(diff)
	}
	if diff := cmp.Diff([]string{"ADDED x", "MODIFIED x"}, asking(2)); diff != "" {
		w.t.Error(diff)
	}
	again := w.put(func(o object) { o["metadata"].(object)["initializers"] = pending("test.k8s.io") })
	if again.code != http.StatusUnprocessableEntity || !strings.Contains(again.message(), "field is immutable once initialization has completed") {
		w.t.Errorf("to begin again: %v", again)
	}
}

func configured(w *world) {
	w.configure("c", w.forAll("test.k8s.io"))
	created := w.creating("x", nil, "")
	if diff := cmp.Diff([]string{"test.k8s.io"}, w.waits("x")); diff != "" {
		w.t.Error(diff)
	}
	still(w.t, created)
	w.done("x")
	if got := within(w.t, created); got.code != http.StatusCreated || pendingOf(got.body) != nil {
		w.t.Errorf("%v", got)
	}
}

func bypassed(w *world) {
	w.configure("c", w.forAll("test.k8s.io"))
	for name, list := range map[string]object{"empty": pending(), "nothing": {}} {
		if got := w.create(name, list, ""); got.code != http.StatusCreated || pendingOf(got.body) != nil {
			w.t.Errorf("by who may: %v", got)
		}
	}
	w.allow("jane", "create")
	got := w.as("jane").create("hers", pending(), "")
	if got.code != http.StatusForbidden || !strings.HasPrefix(got.message(), w.groupResource()+` "hers" is forbidden: create with initializers denied:`) {
		w.t.Errorf("by who may not: %v", got)
	}
}

// mirrored: the annotation of mirror pods says nothing of other kinds.
func mirrored(w *world) {
	w.configure("c", w.forAll("test.k8s.io"))
	obj := w.thing("mirror", nil)
	obj["metadata"].(object)["annotations"] = object{"kubernetes.io/config.mirror": "x"}
	code, want := http.StatusAccepted, []string{"test.k8s.io"}
	if w.resource == "pods" {
		code, want = http.StatusCreated, nil
		obj["spec"] = object{"nodeName": "n", "containers": podSpec["containers"]}
	}
	if got := w.write("POST", w.path()+all, obj); got.code != code || !slices.Equal(pendingOf(got.body), want) {
		w.t.Error(got)
	}
}

func patchedOff(w *world) {
	for name, tc := range map[string]struct{ media, body string }{
		"strategic-last": {strategicType, `{"metadata":{"initializers":{"pending":[{"$patch":"delete","name":"a.k8s.io"}]}}}`},
		"strategic-null": {strategicType, `{"metadata":{"initializers":null}}`},
		"merge-empty":    {mergeType, `{"metadata":{"initializers":{"pending":[]}}}`},
		"merge-null":     {mergeType, `{"metadata":{"initializers":null}}`},
		"json":           {"application/json-patch+json", `[{"op":"remove","path":"/metadata/initializers"}]`},
		"json-last":      {"application/json-patch+json", `[{"op":"remove","path":"/metadata/initializers/pending/0"}]`},
	} {
		created := w.creating(name, pending("a.k8s.io"), "")
		w.waits(name)
		got := w.patch(name, tc.media, tc.body)
		if tc.media == strategicType && !w.strategic {
			if got.code != http.StatusUnsupportedMediaType {
				w.t.Errorf("%s: %v", name, got)
			}
			w.done(name)
		} else if got.code != http.StatusOK || pendingOf(got.body) != nil {
			w.t.Errorf("%s: %v", name, got)
		}
		if got := within(w.t, created); got.code != http.StatusCreated {
			w.t.Errorf("the create of %s: %v", name, got)
		}
	}
}

const teapot = `{"status":"Failure","code":418,"reason":"Teapot","message":"no coffee here"}`

func failed(w *world) {
	w.fails(func() answer { return w.merge("x", `{"metadata":{"initializers":{"result":`+teapot+`}}}`) })
}

func failedByPUT(w *world) {
	w.fails(func() answer {
		var result object
		if err := json.Unmarshal([]byte(teapot), &result); err != nil {
			w.t.Fatal(err)
		}
		return w.put(func(o object) { o["metadata"].(object)["initializers"].(object)["result"] = result })
	})
}

// fails has an object that waits fail by a write.
func (w *world) fails(fail func() answer) {
	w.t.Helper()
	seen, asking := w.watch(""), w.watch(all[1:])
	obj := w.thing("x", pending("a.k8s.io"))
	obj["metadata"].(object)["finalizers"] = []any{"example.org/keep"}
	created := soon(func() answer { return w.write("POST", w.path(), obj) })
	w.waits("x")
	if got := w.merge("x", `{"metadata":{"initializers":{"result":{"status":"Success"}}}}`); got.code != http.StatusUnprocessableEntity || !strings.Contains(got.message(), "must be 'Failure'") {
		w.t.Errorf("a result that is none: %v", got)
	}
	if got := fail(); got.code != http.StatusOK {
		w.t.Errorf("the write itself: %v", got)
	}
	if got := within(w.t, created); got.code != http.StatusTeapot || got.body["reason"] != "Teapot" || got.message() != "no coffee here" {
		w.t.Errorf("the create: %v", got)
	}
	if got := w.get("x"); got.code != http.StatusNotFound {
		w.t.Errorf("it is still there: %v", got)
	}
	if diff := cmp.Diff([]string{"ADDED x", "MODIFIED x", "DELETED x"}, asking(3)); diff != "" {
		w.t.Error(diff)
	}
	if got := seen(0); got != nil {
		w.t.Errorf("those who do not see it saw %v", got)
	}
	if got := w.create("x", nil, ""); got.code != http.StatusCreated {
		w.t.Errorf("the name is not free: %v", got)
	}
}

func timedOut(w *world) {
	got := w.create("x", pending("a.k8s.io"), "?timeout=1s")
	if got.code != http.StatusGatewayTimeout || got.body["reason"] != "Timeout" || got.message() != "Timeout: request did not complete within requested timeout 1s" {
		w.t.Errorf("%v", got)
	}
	details, _ := got.body["details"].(object)
	want := object{
		"name": "x", "kind": w.resource, "uid": w.get("x").metadata()["uid"],
		"causes": []any{object{"reason": "InitializerPending", "field": "metadata.initializers.pending[0]", "message": "a.k8s.io for 1s"}},
	}
	if w.group != "" {
		want["group"] = w.group
	}
	if diff := cmp.Diff(want, details); diff != "" {
		w.t.Error(diff)
	}
	again := w.create("x", nil, "")
	if again.code != http.StatusConflict || !strings.HasPrefix(again.message(), "object is being initialized (waiting for a.k8s.io): "+w.groupResource()+` "x" already exists`) {
		w.t.Errorf("%v", again)
	}
}

// rule is one of lists that are told with commas.
func rule(groups, versions, resources string) object {
	split := func(s string) []any {
		var all []any
		for part := range strings.SplitSeq(s, ",") {
			all = append(all, part)
		}
		return all
	}
	return object{"apiGroups": split(groups), "apiVersions": split(versions), "resources": split(resources)}
}

func ruled(w *world) {
	w.configure("c",
		object{"name": "any-rule.k8s.io", "rules": []any{rule("apps", "v1", "deployments"), rule(w.group, "v1", w.resource)}},
		object{"name": "every.k8s.io", "rules": []any{rule("*", "*", "*")}},
		object{"name": "several.k8s.io", "rules": []any{rule("apps,"+w.group, "v2,v1", "jobs,"+w.resource)}},
		object{"name": "other-version.k8s.io", "rules": []any{rule(w.group, "v2", w.resource)}},
		object{"name": "other-group.k8s.io", "rules": []any{rule("extensions", "*", w.resource)}},
		object{"name": "other-resource.k8s.io", "rules": []any{rule(w.group, "*", "deployments")}},
		object{"name": "no-rules.k8s.io"},
	)
	got := w.create("x", nil, all)
	if diff := cmp.Diff([]string{"any-rule.k8s.io", "every.k8s.io", "several.k8s.io"}, pendingOf(got.body)); diff != "" {
		w.t.Error(diff)
	}
}

// refused: a configuration is JSON for everybody; what rules may not say of the
// kind is said of it.
func refused(w *world) {
	for name, tc := range map[string]struct {
		initializer object
		want        string
	}{
		"one dot":       {object{"name": "short.io", "rules": []any{w.rule()}}, "initializers[0].name: Invalid value: \"short.io\": should be a domain with at least three segments separated by dots"},
		"no name":       {object{"rules": []any{w.rule()}}, "initializers[0].name: Required value"},
		"a subresource": {object{"name": "a.k8s.io", "rules": []any{rule(w.group, "v1", w.resource+"/status")}}, `initializers[0].rules[0].resources[0]: Invalid value: "` + w.resource + `/status": must not specify subresources`},
		"all and more":  {object{"name": "a.k8s.io", "rules": []any{rule(w.group, "v1", w.resource+",*")}}, "if '*' is present, must not specify other resources"},
		"no versions":   {object{"name": "a.k8s.io", "rules": []any{object{"apiGroups": []any{w.group}, "resources": []any{w.resource}}}}, "initializers[0].rules[0].apiVersions: Required value"},
	} {
		body := object{"metadata": object{"name": "c"}, "initializers": []any{tc.initializer}}
		if got := w.write("POST", configurations, body); got.code != http.StatusUnprocessableEntity || !strings.Contains(got.message(), tc.want) {
			w.t.Errorf("%s: %v", name, got)
		}
	}
	for name, list := range map[string]object{"short-name": pending("short.io"), "no-name": pending("")} {
		if got := w.create(name, list, all); got.code != http.StatusUnprocessableEntity || !strings.Contains(got.message(), "metadata.initializers.pending[0].name: ") {
			w.t.Errorf("%s: %v", name, got)
		}
	}
}

func ordered(w *world) {
	w.configure("b", w.forAll("third.k8s.io"), w.forAll("first.k8s.io"))
	w.configure("a", w.forAll("second.k8s.io"), w.forAll("first.k8s.io"))
	got := w.create("x", nil, all)
	if diff := cmp.Diff([]string{"second.k8s.io", "first.k8s.io", "third.k8s.io"}, pendingOf(got.body)); diff != "" {
		w.t.Error(diff)
	}
}

func shown(w *world) {
	for i, value := range []string{"1", "true", "True", "t"} {
		got := w.create(fmt.Sprintf("x-%d", i), pending("a.k8s.io"), "?includeUninitialized="+value)
		if got.code != http.StatusAccepted || !slices.Equal(pendingOf(got.body), []string{"a.k8s.io"}) {
			w.t.Errorf("%s: %v", value, got)
		}
	}
	if got := w.create("y", nil, all); got.code != http.StatusCreated {
		w.t.Errorf("one that waits for nobody: %v", got)
	}
}

func deletedWaiting(w *world) {
	seen := w.watch("")
	created := w.creating("x", pending("a.k8s.io"), "")
	w.waits("x")
	if got := w.do("DELETE", w.path()+"/x?gracePeriodSeconds=0", ""); got.code != http.StatusOK {
		w.t.Errorf("%v", got)
	}
	if got := within(w.t, created); got.code != http.StatusInternalServerError || !strings.Contains(got.message(), "object deleted while waiting for creation") {
		w.t.Errorf("%v", got)
	}
	if got := seen(0); got != nil {
		w.t.Errorf("those who do not see it saw %v", got)
	}
}

func collected(w *world) {
	w.create("waits", pending("a.k8s.io"), all)
	w.create("seen", nil, "")
	// The right to initialize is none that is needed to delete.
	w.allow("jane", "deletecollection")
	if got := w.as("jane").do("DELETE", w.path()+"?gracePeriodSeconds=0", ""); got.code != http.StatusOK {
		w.t.Errorf("%v", got)
	}
	if left := w.list(all); len(left) > 0 {
		w.t.Errorf("left: %v", left)
	}
}

func otherwiseCreated(w *world) {
	w.configure("c", w.forAll("a.k8s.io"))
	dry := w.create("dry", nil, "?dryRun=All")
	if dry.code != http.StatusCreated || !slices.Equal(pendingOf(dry.body), []string{"a.k8s.io"}) {
		w.t.Errorf("dry run: %v", dry)
	}
	if got := w.get("dry"); got.code != http.StatusNotFound {
		w.t.Errorf("dry run stored it: %v", got)
	}
	result := w.create("failed", object{"pending": []any{}, "result": object{"status": "Failure"}}, "")
	if result.code != http.StatusUnprocessableEntity {
		w.t.Errorf("with a result: %v", result)
	}
	applied := soon(func() answer {
		return w.patch("applied?fieldManager=me", "application/apply-patch+yaml", string(encode(w.t, w.thing("applied", nil))))
	})
	w.waits("applied")
	still(w.t, applied)
	w.done("applied")
	if got := within(w.t, applied); got.code != http.StatusCreated || pendingOf(got.body) != nil {
		w.t.Errorf("apply: %v", got)
	}
	if managed, err := json.Marshal(w.get("applied").metadata()["managedFields"]); err != nil || strings.Contains(string(managed), "initializers") {
		w.t.Errorf("somebody owns the list: %s, %v", managed, err)
	}
}

func createdByPUT(w *world) {
	w = w.of(speech{resource: "endpoints", kind: "Endpoints", version: "v1"})
	w.configure("c", w.forAll("a.k8s.io"))
	created := soon(func() answer { return w.write("PUT", w.path()+"/x", w.thing("x", nil)) })
	w.waits("x")
	still(w.t, created)
	w.done("x")
	if got := within(w.t, created); got.code != http.StatusCreated || pendingOf(got.body) != nil {
		w.t.Errorf("%v", got)
	}
}

// changedAsAWhole: a pod that waits is checked as one that is made; a custom
// kind has no rules of its own about changes.
func changedAsAWhole(w *world) {
	created := w.creating("x", pending("a.k8s.io"), "")
	w.waits("x")
	if w.resource == "pods" {
		status := w.patch("x/status", mergeType, `{"status":{"phase":"Running"}}`)
		if status.code != http.StatusUnprocessableEntity || !strings.Contains(status.message(), "status: Forbidden: must not update status when the object is uninitialized") {
			w.t.Errorf("status: %v", status)
		}
		bad := w.merge("x", `{"spec":{"containers":[{"name":"app","image":"app:1"},{"name":"app","image":"twice"}]}}`)
		if bad.code != http.StatusUnprocessableEntity {
			w.t.Errorf("a pod that is not valid: %v", bad)
		}
		limited := w.merge("x", `{"spec":{"containers":[{"name":"app","image":"app:1","resources":{"limits":{"cpu":"1"}}}]}}`)
		if status, _ := limited.body["status"].(object); limited.code != http.StatusOK || status["qosClass"] != "Burstable" {
			w.t.Errorf("the class of a pod follows its containers: %v", limited)
		}
	}
	w.inject("x")
	if got := within(w.t, created); got.code != http.StatusCreated || w.size(got.body) != 2 {
		w.t.Errorf("%v", got)
	}
	if w.resource == "pods" {
		if late := w.merge("x", `{"spec":{"containers":[{"name":"app","image":"app:1"}]}}`); late.code != http.StatusUnprocessableEntity {
			w.t.Errorf("a change once it is complete: %v", late)
		}
	}
}

func templated(w *world) {
	w = w.of(speech{group: "apps", resource: "deployments", kind: "Deployment", version: "apps/v1"})
	w.allow("jane", "create")
	body := func(name string, initializers object) object {
		obj := w.thing(name, nil)
		obj["spec"] = object{"selector": object{"matchLabels": object{"a": "b"}}, "template": object{
			"metadata": object{"labels": object{"a": "b"}, "initializers": initializers}, "spec": podSpec,
		}}
		return obj
	}
	got := w.as("jane").write("POST", w.path(), body("hers", pending()))
	if got.code != http.StatusForbidden || !strings.Contains(got.message(), "pod template with initializers denied") {
		w.t.Errorf("%v", got)
	}
	if got := w.write("POST", w.path(), body("mine", pending())); got.code != http.StatusCreated {
		w.t.Errorf("%v", got)
	}
	if got := w.write("POST", w.path(), body("none", pending("short"))); got.code != http.StatusUnprocessableEntity || !strings.Contains(got.message(), "spec.template.metadata.initializers.pending[0].name: ") {
		w.t.Errorf("a name that is none: %v", got)
	}
}

// putByTutorial: typed clients send the object without a field that they do not
// know, and that completes it.
func putByTutorial(w *world) {
	w.configure("c", w.forAll("only.k8s.io"))
	created := w.creating("x", nil, "")
	w.waits("x")
	if got := w.put(withoutField); got.code != http.StatusOK || pendingOf(got.body) != nil {
		w.t.Errorf("%v", got)
	}
	if got := within(w.t, created); got.code != http.StatusCreated {
		w.t.Errorf("%v", got)
	}
	// It is settled: what is sent again with an empty list changes nothing.
	again := w.put(func(o object) { o["metadata"].(object)["initializers"] = pending() })
	if again.code != http.StatusOK {
		w.t.Errorf("%v", again)
	}
}

// putNull: protobuf has no null; an empty list is said there.
func putNull(w *world) {
	w.create("x", pending("a.k8s.io", "b.k8s.io"), all)
	var nothing any
	if w.protobuf {
		nothing = object{}
	}
	if got := w.put(func(o object) { o["metadata"].(object)["initializers"] = nothing }); got.code != http.StatusOK || pendingOf(got.body) != nil || len(got.warnings) > 0 {
		w.t.Errorf("%v", got)
	}
}
