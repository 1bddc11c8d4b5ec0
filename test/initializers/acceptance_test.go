package initializers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/app"
)

func TestAnObjectIsHiddenUntilItIsInitialized(t *testing.T) {
	inEach(t, func(w *world) {
		seen := w.watch("")
		all := w.watch("includeUninitialized=true")
		created := w.creating("x", pending("test.k8s.io"), "")
		if diff := cmp.Diff([]string{"test.k8s.io"}, w.waits("x")); diff != "" {
			w.t.Error(diff)
		}
		still(w.t, created)
		if diff := cmp.Diff([][]string{{}, {"x"}}, [][]string{w.list(""), w.list("?includeUninitialized=true")}); diff != "" {
			w.t.Error(diff)
		}
		have := w.get("x").body
		delete(have["metadata"].(object), "initializers")
		if got := w.write(context.Background(), "PUT", w.path+"/x", have); got.code != http.StatusOK || pendingOf(got.body) != nil {
			w.t.Errorf("the write that completes it: %v", got)
		}
		got := within(w.t, created)
		if got.code != http.StatusCreated || pendingOf(got.body) != nil {
			w.t.Errorf("the answer of the create: %v", got)
		}
		if diff := cmp.Diff([]string{"ADDED x"}, seen(1)); diff != "" {
			w.t.Error(diff)
		}
		if diff := cmp.Diff([]string{"ADDED x", "MODIFIED x"}, all(2)); diff != "" {
			w.t.Error(diff)
		}
		again := w.merge("x", `{"metadata":{"initializers":{"pending":[{"name":"test.k8s.io"}]}}}`)
		if again.code != http.StatusUnprocessableEntity || !strings.Contains(again.message(), "field is immutable once initialization has completed") {
			w.t.Errorf("to begin again: %v", again)
		}
	})
}

// watch follows the kind in JSON; what it returns waits for some events and
// tells them.
func (w *world) watch(query string) func(n int) []string {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	from, _ := w.do("GET", w.path, "").body["metadata"].(object)["resourceVersion"].(string)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.plane.URL+w.path+"?watch=true&resourceVersion="+from+"&"+query, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := w.http.Do(r) //nolint:bodyclose // by who reads it
	if err != nil {
		w.t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer func() { _ = response.Body.Close() }()
		for s := bufio.NewScanner(response.Body); s.Scan(); {
			var e struct {
				Type   string
				Object struct{ Metadata struct{ Name string } }
			}
			if json.Unmarshal(s.Bytes(), &e) == nil {
				lines <- e.Type + " " + e.Object.Metadata.Name
			}
		}
	}()
	return func(n int) []string {
		var got []string
		for len(got) < n {
			select {
			case line := <-lines:
				got = append(got, line)
			case <-time.After(10 * time.Second):
				return got
			}
		}
		select { // there are no more
		case line := <-lines:
			got = append(got, line)
		case <-time.After(50 * time.Millisecond):
		}
		return got
	}
}

func TestAConfigurationHoldsFromItsWriteOn(t *testing.T) {
	inEach(t, func(w *world) {
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
	})
}

func TestWhoSaysThatNothingIsPendingNeedsTheRight(t *testing.T) {
	inEach(t, func(w *world) {
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
	})
}

func (w *world) groupResource() string {
	if w.group == "" {
		return w.resource
	}
	return w.resource + "." + w.group
}

// allow lets a user do something with the kind.
func (w *world) allow(user string, verbs ...string) {
	w.t.Helper()
	w.grant(user, object{"apiGroups": []any{w.group}, "resources": []any{w.resource}, "verbs": verbs})
}

// grant gives a user a role.
func (w *world) grant(user string, rule object) {
	w.t.Helper()
	name := strings.NewReplacer(":", "-").Replace(user)
	subject := object{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
	for path, obj := range map[string]object{
		"clusterroles": {"metadata": object{"name": name}, "rules": []any{rule}},
		"clusterrolebindings": {
			"metadata": object{"name": name}, "subjects": []any{subject},
			"roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
		},
	} {
		text, err := json.Marshal(obj)
		if err != nil {
			w.t.Fatal(err)
		}
		if got := w.do("POST", "/apis/rbac.authorization.k8s.io/v1/"+path, string(text)); got.code != http.StatusCreated {
			w.t.Fatal(got)
		}
	}
}

func TestMirrorPodsWaitForNobody(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	w.configure("c", w.forAll("test.k8s.io"))
	pod := w.thing("mirror", nil)
	pod["metadata"].(object)["annotations"] = object{"kubernetes.io/config.mirror": "x"}
	pod["spec"] = object{"nodeName": "n", "containers": podSpec["containers"]}
	if got := w.write(context.Background(), "POST", w.path, pod); got.code != http.StatusCreated || pendingOf(got.body) != nil {
		t.Error(got)
	}
}

func TestPatchesOfTheList(t *testing.T) {
	for name, tc := range map[string]struct{ media, body string }{
		"strategic delete of the last": {"application/strategic-merge-patch+json", `{"metadata":{"initializers":{"pending":[{"$patch":"delete","name":"a.k8s.io"}]}}}`},
		"strategic null":               {"application/strategic-merge-patch+json", `{"metadata":{"initializers":null}}`},
		"merge with an empty list":     {"application/merge-patch+json", `{"metadata":{"initializers":{"pending":[]}}}`},
		"JSON patch":                   {"application/json-patch+json", `[{"op":"remove","path":"/metadata/initializers"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, app.Config{}, speeches[0])
			created := w.creating("x", pending("a.k8s.io"), "")
			w.waits("x")
			if got := w.do("PATCH", w.path+"/x", tc.body, "Content-Type", tc.media); got.code != http.StatusOK || pendingOf(got.body) != nil {
				t.Errorf("the patch: %v", got)
			}
			if got := within(t, created); got.code != http.StatusCreated {
				t.Errorf("the create: %v", got)
			}
		})
	}
}

func TestAFailureIsTheCreatorsAnswer(t *testing.T) {
	inEach(t, func(w *world) {
		all := w.watch("includeUninitialized=true")
		obj := w.thing("x", pending("a.k8s.io"))
		obj["metadata"].(object)["finalizers"] = []any{"example.org/keep"}
		created := make(chan answer, 1)
		go func() { created <- w.write(context.Background(), "POST", w.path, obj) }()
		w.waits("x")
		for text, body := range map[string]string{
			"must be 'Failure'": `{"metadata":{"initializers":{"result":{"status":"Success"}}}}`,
		} {
			if got := w.merge("x", body); got.code != http.StatusUnprocessableEntity || !strings.Contains(got.message(), text) {
				w.t.Errorf("%s: %v", body, got)
			}
		}
		got := w.merge("x", `{"metadata":{"initializers":{"result":{"status":"Failure","code":418,"reason":"Teapot","message":"no coffee here"}}}}`)
		if got.code != http.StatusOK {
			w.t.Errorf("the write itself: %v", got)
		}
		if got := within(w.t, created); got.code != http.StatusTeapot || got.body["reason"] != "Teapot" || got.message() != "no coffee here" {
			w.t.Errorf("the create: %v", got)
		}
		if got := w.get("x"); got.code != http.StatusNotFound {
			w.t.Errorf("it is still there: %v", got)
		}
		if diff := cmp.Diff([]string{"ADDED x", "MODIFIED x", "DELETED x"}, all(3)); diff != "" {
			w.t.Error(diff)
		}
		if got := w.create("x", nil, ""); got.code != http.StatusCreated {
			w.t.Errorf("the name is not free: %v", got)
		}
	})
}

func TestACreateEndsWithItsTimeAndTheObjectStays(t *testing.T) {
	inEach(t, func(w *world) {
		got := w.create("x", pending("a.k8s.io"), "?timeout=1s")
		if got.code != http.StatusGatewayTimeout || got.body["reason"] != "Timeout" || got.message() != "Timeout: request did not complete within requested timeout 1s" {
			w.t.Errorf("%v", got)
		}
		have := w.get("x")
		uid := have.body["metadata"].(object)["uid"]
		details, _ := got.body["details"].(object)
		want := object{
			"name": "x", "kind": w.resource, "uid": uid,
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
	})
}

func TestWhoWantsToSeeItWaitIsAnsweredAtOnce(t *testing.T) {
	inEach(t, func(w *world) {
		for i, value := range []string{"1", "true", "True", "t"} {
			got := w.create(fmt.Sprintf("x-%d", i), pending("a.k8s.io"), "?includeUninitialized="+value)
			if got.code != http.StatusAccepted || !slices.Equal(pendingOf(got.body), []string{"a.k8s.io"}) {
				w.t.Errorf("%s: %v", value, got)
			}
		}
		if got := w.create("y", nil, "?includeUninitialized=true"); got.code != http.StatusCreated {
			w.t.Errorf("one that waits for nobody: %v", got)
		}
	})
}

func TestDeletedWhileItWaits(t *testing.T) {
	inEach(t, func(w *world) {
		seen := w.watch("")
		created := w.creating("x", pending("a.k8s.io"), "")
		w.waits("x")
		if got := w.do("DELETE", w.path+"/x?gracePeriodSeconds=0", ""); got.code != http.StatusOK {
			w.t.Errorf("%v", got)
		}
		if got := within(w.t, created); got.code != http.StatusInternalServerError || !strings.Contains(got.message(), "object deleted while waiting for creation") {
			w.t.Errorf("%v", got)
		}
		if got := seen(0); got != nil {
			w.t.Errorf("those who do not see it saw %v", got)
		}
	})
}

func TestRules(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	rule := func(groups, versions, resources string) object {
		split := func(s string) []any {
			var all []any
			for part := range strings.SplitSeq(s, ",") {
				all = append(all, part)
			}
			return all
		}
		return object{"apiGroups": split(groups), "apiVersions": split(versions), "resources": split(resources)}
	}
	w.configure("c",
		object{"name": "any-rule.k8s.io", "rules": []any{rule("apps", "v1", "deployments"), rule("", "v1", "pods")}},
		object{"name": "all.k8s.io", "rules": []any{rule("*", "*", "*")}},
		object{"name": "other-version.k8s.io", "rules": []any{rule("", "v2", "pods")}},
		object{"name": "other-group.k8s.io", "rules": []any{rule("extensions", "*", "pods")}},
		object{"name": "no-rules.k8s.io"},
	)
	got := w.create("x", nil, "?includeUninitialized=true")
	if diff := cmp.Diff([]string{"any-rule.k8s.io", "all.k8s.io"}, pendingOf(got.body)); diff != "" {
		t.Error(diff)
	}
}

func TestTheOrderIsThatOfNames(t *testing.T) {
	inEach(t, func(w *world) {
		w.configure("b", w.forAll("third.k8s.io"), w.forAll("first.k8s.io"))
		w.configure("a", w.forAll("second.k8s.io"), w.forAll("first.k8s.io"))
		got := w.create("x", nil, "?includeUninitialized=true")
		if diff := cmp.Diff([]string{"second.k8s.io", "first.k8s.io", "third.k8s.io"}, pendingOf(got.body)); diff != "" {
			w.t.Error(diff)
		}
	})
}

func TestOtherWaysToCreate(t *testing.T) {
	inEach(t, func(w *world) {
		w.configure("c", w.forAll("a.k8s.io"))
		dry := w.create("dry", nil, "?dryRun=All")
		if dry.code != http.StatusCreated || !slices.Equal(pendingOf(dry.body), []string{"a.k8s.io"}) {
			w.t.Errorf("dry run: %v", dry)
		}
		if got := w.get("dry"); got.code != http.StatusNotFound {
			w.t.Errorf("dry run stored it: %v", got)
		}
		result := w.do("POST", w.path, `{"apiVersion":"`+w.version+`","kind":"`+w.kind+`","metadata":{"name":"failed","initializers":{"pending":[],"result":{"status":"Failure"}}},"spec":{}}`)
		if result.code != http.StatusUnprocessableEntity {
			w.t.Errorf("with a result: %v", result)
		}
		text, err := json.Marshal(w.thing("applied", nil))
		if err != nil {
			w.t.Fatal(err)
		}
		applied := make(chan answer, 1)
		go func() {
			applied <- w.do("PATCH", w.path+"/applied?fieldManager=me", string(text), "Content-Type", "application/apply-patch+yaml")
		}()
		w.waits("applied")
		still(w.t, applied)
		w.done("applied")
		if got := within(w.t, applied); got.code != http.StatusCreated || pendingOf(got.body) != nil {
			w.t.Errorf("apply: %v", got)
		}
		if managed, err := json.Marshal(w.get("applied").body["metadata"].(object)["managedFields"]); err != nil || strings.Contains(string(managed), "initializers") {
			w.t.Errorf("somebody owns the list: %s, %v", managed, err)
		}
	})
}

func TestACreateByPUTWaits(t *testing.T) {
	w := begin(t, app.Config{}, speech{resource: "endpoints", path: "/api/v1/namespaces/default/endpoints", kind: "Endpoints", version: "v1"})
	w.configure("c", w.forAll("a.k8s.io"))
	created := make(chan answer, 1)
	go func() { created <- w.write(context.Background(), "PUT", w.path+"/x", w.thing("x", nil)) }()
	w.waits("x")
	still(t, created)
	w.done("x")
	if got := within(t, created); got.code != http.StatusCreated || pendingOf(got.body) != nil {
		t.Errorf("%v", got)
	}
}

func TestAPodThatWaitsMayChangeAsAWhole(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	created := w.creating("x", pending("a.k8s.io"), "")
	w.waits("x")
	status := w.do("PATCH", w.path+"/x/status", `{"status":{"phase":"Running"}}`, "Content-Type", "application/merge-patch+json")
	if status.code != http.StatusUnprocessableEntity || !strings.Contains(status.message(), "status: Forbidden: must not update status when the object is uninitialized") {
		t.Errorf("status: %v", status)
	}
	bad := w.merge("x", `{"spec":{"containers":[{"name":"app","image":"app:1"},{"name":"app","image":"twice"}]}}`)
	if bad.code != http.StatusUnprocessableEntity {
		t.Errorf("a pod that is not valid: %v", bad)
	}
	more := w.merge("x", `{"metadata":{"initializers":null},"spec":{"containers":[{"name":"app","image":"app:1"},{"name":"side","image":"side:1","resources":{"limits":{"cpu":"1"}}}]}}`)
	if more.code != http.StatusOK {
		t.Errorf("a second container: %v", more)
	}
	got := within(t, created)
	containers, _ := got.body["spec"].(object)["containers"].([]any)
	if len(containers) != 2 || got.body["status"].(object)["qosClass"] != "Burstable" {
		t.Errorf("%v", got)
	}
	if late := w.merge("x", `{"spec":{"containers":[{"name":"app","image":"app:1"}]}}`); late.code != http.StatusUnprocessableEntity {
		t.Errorf("a change once it is complete: %v", late)
	}
}

func TestTemplatesNeedTheRightForPods(t *testing.T) {
	w := begin(t, app.Config{}, speech{
		group: "apps", resource: "deployments", path: "/apis/apps/v1/namespaces/default/deployments", kind: "Deployment", version: "apps/v1",
	})
	w.allow("jane", "create")
	body := func(name string) object {
		obj := w.thing(name, nil)
		obj["spec"] = object{"selector": object{"matchLabels": object{"a": "b"}}, "template": object{
			"metadata": object{"labels": object{"a": "b"}, "initializers": pending()}, "spec": podSpec,
		}}
		return obj
	}
	got := w.as("jane").write(context.Background(), "POST", w.path, body("hers"))
	if got.code != http.StatusForbidden || !strings.Contains(got.message(), "pod template with initializers denied") {
		t.Errorf("%v", got)
	}
	if got := w.write(context.Background(), "POST", w.path, body("mine")); got.code != http.StatusCreated {
		t.Errorf("%v", got)
	}
}
