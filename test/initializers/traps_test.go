package initializers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/app"
)

// T1, T4: nobody is home, and what is left of it.
func TestADeadInitializerThatFails(t *testing.T) {
	inEach(t, func(w *world) {
		w.configure("c", w.forAll("dead.k8s.io", "failurePolicy", "Fail", "timeoutSeconds", 1))
		first := w.create("x", nil, "")
		if first.code != http.StatusGatewayTimeout || first.body["reason"] != "Timeout" || first.message() != `Timeout: initializer "dead.k8s.io" did not act within 1s` {
			w.t.Errorf("the creator reads %v", first)
		}
		if got := w.get("x"); got.code != http.StatusNotFound {
			w.t.Errorf("left behind: %v", got)
		}
		eventually(t, "the initializer is stalled", func() bool { return w.condition("c", "dead.k8s.io", "Stalled") == "True" })
		if got := w.condition("c", "dead.k8s.io", "Ready"); got != "False" {
			t.Errorf("Ready is %s", got)
		}
		// One object at a time finds out whether it is back.
		probe := w.creating("probe", nil, "")
		w.waits("probe")
		refused := w.create("y", nil, "")
		if refused.code != http.StatusServiceUnavailable || refused.header.Get("Retry-After") == "" || !strings.Contains(refused.message(), `initializer "dead.k8s.io" of configuration "c" is not available`) {
			w.t.Errorf("while it is stalled: %v", refused)
		}
		w.done("probe")
		if got := within(w.t, probe); got.code != http.StatusCreated {
			w.t.Errorf("the one that found out: %v", got)
		}
		back := w.creating("back", nil, "")
		w.waits("back")
		w.done("back")
		if got := within(w.t, back); got.code != http.StatusCreated {
			w.t.Errorf("once it is back: %v", got)
		}
		eventually(t, "the initializer is ready", func() bool { return w.condition("c", "dead.k8s.io", "Ready") == "True" })
		if w.group == "" {
			w.reported("InitializerTimeout", "x")
		}
	})
}

// reported waits for an event about an object.
func (w *world) reported(reason, name string) {
	w.t.Helper()
	eventually(w.t, reason+" of "+name, func() bool {
		got := w.do("GET", "/api/v1/namespaces/default/events?fieldSelector=reason="+reason+",involvedObject.name="+name, "")
		items, _ := got.body["items"].([]any)
		return len(items) == 1
	})
}

// condition is the status of a condition of an initializer.
func (w *world) condition(configuration, name, kind string) string {
	w.t.Helper()
	status, _ := w.statusOf(configuration, name)["conditions"].([]any)
	for _, c := range status {
		if c.(object)["type"] == kind {
			return c.(object)["status"].(string)
		}
	}
	return ""
}

func (w *world) statusOf(configuration, name string) object {
	w.t.Helper()
	status, _ := w.do("GET", configurations+"/"+configuration, "").body["status"].(object)
	all, _ := status["initializers"].([]any)
	for _, i := range all {
		if i.(object)["name"] == name {
			return i.(object)
		}
	}
	return nil
}

func TestADeadInitializerThatIsIgnored(t *testing.T) {
	inEach(t, func(w *world) {
		w.configure("c", w.forAll("dead.k8s.io", "failurePolicy", "Ignore", "timeoutSeconds", 1), w.forAll("alive.k8s.io"))
		created := w.creating("x", nil, "")
		w.waits("x")
		eventually(w.t, "the dead one is skipped", func() bool { return slices.Equal(pendingOf(w.get("x").body), []string{"alive.k8s.io"}) })
		w.done("x")
		got := within(w.t, created)
		annotations, _ := got.body["metadata"].(object)["annotations"].(object)
		if got.code != http.StatusCreated || annotations["initializers.setpoint.dev/skipped"] != "dead.k8s.io" {
			w.t.Errorf("%v", got)
		}
		w.reported("InitializerSkipped", "x")
		// It is stalled: after one that finds out, objects do without it.
		probe := w.creating("probe", nil, "")
		w.waits("probe")
		next := w.create("y", nil, "?includeUninitialized=true")
		if !slices.Equal(pendingOf(next.body), []string{"alive.k8s.io"}) || !slices.ContainsFunc(next.warnings, func(s string) bool { return strings.Contains(s, "was skipped") }) {
			w.t.Errorf("while it is stalled: %v", next)
		}
		w.done("probe")
		within(w.t, probe)
	})
}

func TestADeadInitializerThatIsWaitedFor(t *testing.T) {
	inEach(t, func(w *world) {
		w.configure("c", w.forAll("dead.k8s.io", "failurePolicy", "Wait", "timeoutSeconds", 1))
		if got := w.create("x", nil, "?timeout=2s"); got.code != http.StatusGatewayTimeout || !strings.Contains(got.message(), "requested timeout 2s") {
			w.t.Errorf("%v", got)
		}
		if diff := cmp.Diff([]string{"dead.k8s.io"}, w.waits("x")); diff != "" {
			w.t.Error(diff)
		}
		eventually(w.t, "the status tells of it", func() bool { return fmt.Sprint(w.statusOf("c", "dead.k8s.io")["pending"]) == "1" })
	})
}

func TestALeaseSpeaksForAnInitializer(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	lease := object{"lease": object{"namespace": "default", "name": "init"}}
	w.configure("c", w.forAll("fail.k8s.io", "controller", lease), w.forAll("ignore.k8s.io", "controller", lease, "failurePolicy", "Ignore"))
	missing := w.create("x", nil, "")
	if missing.code != http.StatusServiceUnavailable || !strings.Contains(missing.message(), "there is no lease default/init") {
		t.Errorf("%v", missing)
	}
	leases := "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	held := func(at time.Time) string {
		return fmt.Sprintf(`{"metadata":{"name":"init"},"spec":{"holderIdentity":"me","leaseDurationSeconds":30,"renewTime":%q}}`, at.UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
	}
	if got := w.do("POST", leases, held(time.Now().Add(-time.Minute))); got.code != http.StatusCreated {
		t.Fatal(got)
	}
	expired := w.create("x", nil, "")
	if expired.code != http.StatusServiceUnavailable || !strings.Contains(expired.message(), "its lease default/init has expired") {
		t.Errorf("%v", expired)
	}
	if got := w.get("x"); got.code != http.StatusNotFound {
		t.Errorf("stored: %v", got)
	}
	if got := w.do("PATCH", leases+"/init", held(time.Now()), "Content-Type", "application/merge-patch+json"); got.code != http.StatusOK {
		t.Fatal(got)
	}
	got := w.create("x", nil, "?includeUninitialized=true")
	if diff := cmp.Diff([]string{"fail.k8s.io", "ignore.k8s.io"}, pendingOf(got.body)); diff != "" {
		t.Error(diff)
	}
}

// T2: the initializer needs initializing.
func TestAnInitializerDoesNotWaitForItself(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	everything := object{"apiGroups": []any{"*"}, "apiVersions": []any{"*"}, "resources": []any{"*"}}
	itself := object{"serviceAccount": object{"namespace": "default", "name": "init"}}
	w.configure("c", object{"name": "self.k8s.io", "rules": []any{everything}, "controller": itself}, object{"name": "other.k8s.io", "rules": []any{everything}, "failurePolicy": "Wait"})
	if got := w.do("POST", "/api/v1/namespaces/default/serviceaccounts?includeUninitialized=true", `{"metadata":{"name":"init"}}`); got.code != http.StatusAccepted {
		t.Fatal(got)
	}
	if got := w.do("PATCH", "/api/v1/namespaces/default/serviceaccounts/init", `{"metadata":{"initializers":null}}`, "Content-Type", "application/merge-patch+json"); got.code != http.StatusOK {
		t.Fatal(got)
	}
	spec := object{"serviceAccountName": "init", "containers": podSpec["containers"]}
	template := object{"metadata": object{"labels": object{"a": "b"}}, "spec": spec}
	selected := object{"selector": object{"matchLabels": object{"a": "b"}}, "template": template}
	once := object{"metadata": object{"labels": object{"a": "b"}}, "spec": object{"serviceAccountName": "init", "containers": podSpec["containers"], "restartPolicy": "Never"}}
	for name, tc := range map[string]struct {
		path, kind, version string
		spec                any
		as                  string
		want                []string
	}{
		"its pod":         {"/api/v1/namespaces/default/pods", "Pod", "v1", spec, "", []string{"other.k8s.io"}},
		"another's pod":   {"/api/v1/namespaces/default/pods", "Pod", "v1", podSpec, "", []string{"self.k8s.io", "other.k8s.io"}},
		"its deployment":  {"/apis/apps/v1/namespaces/default/deployments", "Deployment", "apps/v1", selected, "", []string{"other.k8s.io"}},
		"its replica set": {"/apis/apps/v1/namespaces/default/replicasets", "ReplicaSet", "apps/v1", selected, "", []string{"other.k8s.io"}},
		"its daemon set":  {"/apis/apps/v1/namespaces/default/daemonsets", "DaemonSet", "apps/v1", selected, "", []string{"other.k8s.io"}},
		"its job":         {"/apis/batch/v1/namespaces/default/jobs", "Job", "batch/v1", object{"template": once}, "", []string{"other.k8s.io"}},
		"what it makes":   {"/api/v1/namespaces/default/configmaps", "ConfigMap", "v1", nil, "system:serviceaccount:default:init", []string{"other.k8s.io"}},
		"what others make": {
			"/api/v1/namespaces/default/configmaps", "ConfigMap", "v1", nil, "system:serviceaccount:default:else", []string{"self.k8s.io", "other.k8s.io"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			obj := object{"apiVersion": tc.version, "kind": tc.kind, "metadata": object{"name": strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "'", "")}}
			if tc.spec != nil {
				obj["spec"] = tc.spec
			}
			text, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			by := w
			if tc.as != "" {
				w.grant(tc.as, object{"apiGroups": []any{""}, "resources": []any{"configmaps"}, "verbs": []any{"create"}})
				by = w.as(tc.as)
			}
			got := by.do("POST", tc.path+"?includeUninitialized=true", string(text))
			if diff := cmp.Diff(tc.want, pendingOf(got.body)); diff != "" {
				t.Errorf("%v\n%s", got, diff)
			}
		})
	}
}

// T3: what the control plane itself needs waits for nobody.
func TestTheControlPlaneWaitsForNobody(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	w.configure("c", object{"name": "all.k8s.io", "failurePolicy": "Wait", "rules": []any{object{"apiGroups": []any{"*"}, "apiVersions": []any{"*"}, "resources": []any{"*"}}}})
	for _, made := range [][2]string{
		{"/api/v1/namespaces", `{"metadata":{"name":"n"}}`},
		{"/api/v1/nodes", `{"metadata":{"name":"n"}}`},
		{"/api/v1/namespaces/default/events", `{"metadata":{"name":"n"},"involvedObject":{"namespace":"default"},"reason":"x","message":"x"}`},
		{"/apis/coordination.k8s.io/v1/namespaces/default/leases", `{"metadata":{"name":"n"}}`},
		{"/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"n"}}`},
		{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgets},
		{"/apis/apiregistration.k8s.io/v1/apiservices", `{"metadata":{"name":"v1.example.com"},"spec":{"group":"example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"service":{"namespace":"default","name":"x"}}}`},
		{configurations, `{"metadata":{"name":"n"}}`},
		{"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", `{"metadata":{"name":"n"}}`},
		{"/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`},
		{"/api/v1/namespaces/kube-system/configmaps", `{"metadata":{"name":"n"}}`},
	} {
		path, body := made[0], made[1]
		if got := w.do("POST", path+"?timeout=5s", body); got.code != http.StatusCreated {
			t.Errorf("%s: %v", path, got)
		}
	}
	if got := w.do("POST", "/api/v1/namespaces/default/configmaps?includeUninitialized=true", `{"metadata":{"name":"n"}}`); got.code != http.StatusAccepted {
		t.Errorf("what it does not need: %v", got)
	}
}

// T6: creates that wait do not come in the way of others.
func TestCreatesThatWaitTakeNoRoom(t *testing.T) {
	const many = 150
	w := begin(t, app.Config{Initializers: initializer.Settings{MaxWaiting: many}}, speeches[0])
	before := w.latency(t, "before")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var creates sync.WaitGroup
	for i := range many {
		creates.Go(func() { w.write(ctx, "POST", w.path, w.thing("held-"+strconv.Itoa(i), pending("dead.k8s.io"))) })
	}
	eventually(t, "all wait", func() bool { return w.metric(t, "setpoint_initializer_waiting_creates") == many })
	if n := w.metric(t, `apiserver_current_inflight_requests{request_kind="mutating"}`); n > 0 {
		t.Errorf("%v requests are counted as under way", n)
	}
	refused := w.create("one-more", pending("dead.k8s.io"), "")
	if refused.code != http.StatusTooManyRequests || refused.header.Get("Retry-After") == "" {
		t.Errorf("one more than may wait: %v", refused)
	}
	if got := w.get("one-more"); got.code != http.StatusNotFound {
		t.Errorf("it is stored: %v", got)
	}
	during := w.latency(t, "during")
	t.Logf("median of a create of another kind: %v with nothing waiting, %v with %d creates waiting", before, during, many)
	cancel()
	creates.Wait()
	eventually(t, "those whose clients have gone wait no longer", func() bool { return w.metric(t, "setpoint_initializer_waiting_creates") == 0 })
}

// latency is the median time of a create that waits for nobody.
func (w *world) latency(t *testing.T, name string) time.Duration {
	t.Helper()
	var times []time.Duration
	for i := range 100 {
		begun := time.Now()
		if got := w.do("POST", "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":"%s-%d"}}`, name, i)); got.code != http.StatusCreated {
			t.Fatal(got)
		}
		times = append(times, time.Since(begun))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// metric is the value of a line of the metrics, 0 when there is none.
func (w *world) metric(t *testing.T, line string) float64 {
	t.Helper()
	response, err := w.http.Get(w.plane.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.SplitSeq(string(text), "\n") {
		if value, is := strings.CutPrefix(l, line+" "); is {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// T7: who is not meant does not wait.
func TestSelectors(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	w.configure("c",
		w.forAll("namespace.k8s.io", "namespaceSelector", object{"matchLabels": object{"inject": "yes"}}),
		w.forAll("object.k8s.io", "objectSelector", object{"matchLabels": object{"inject": "yes"}}),
		w.forAll("condition.k8s.io", "matchConditions", []any{object{
			"name": "annotated", "expression": `has(object.metadata.annotations) && "envoy" in object.metadata.annotations && object.metadata.annotations["envoy"] == "true"`,
		}}),
	)
	if got := w.do("PATCH", "/api/v1/namespaces/default", `{"metadata":{"labels":{"inject":"no"}}}`, "Content-Type", "application/merge-patch+json"); got.code != http.StatusOK {
		t.Fatal(got)
	}
	if got := w.create("plain", nil, ""); got.code != http.StatusCreated || pendingOf(got.body) != nil {
		t.Errorf("%v", got)
	}
	if got := w.do("PATCH", "/api/v1/namespaces/default", `{"metadata":{"labels":{"inject":"yes"}}}`, "Content-Type", "application/merge-patch+json"); got.code != http.StatusOK {
		t.Fatal(got)
	}
	obj := w.thing("meant", nil)
	obj["metadata"].(object)["labels"] = object{"inject": "yes"}
	obj["metadata"].(object)["annotations"] = object{"envoy": "true"}
	got := w.write(context.Background(), "POST", w.path+"?includeUninitialized=true", obj)
	if diff := cmp.Diff([]string{"namespace.k8s.io", "object.k8s.io", "condition.k8s.io"}, pendingOf(got.body)); diff != "" {
		t.Error(diff)
	}
}

// T8: what is left out is not taken away by accident.
func TestAnUpdateThatDoesNotKnowTheList(t *testing.T) {
	inEach(t, func(w *world) {
		w.create("x", pending("a.k8s.io", "b.k8s.io"), "?includeUninitialized=true")
		have := w.get("x").body
		delete(have["metadata"].(object), "initializers")
		have["metadata"].(object)["labels"] = object{"a": "b"}
		got := w.write(context.Background(), "PUT", w.path+"/x", have)
		if got.code != http.StatusOK || !slices.Equal(pendingOf(got.body), []string{"a.k8s.io", "b.k8s.io"}) || !slices.Contains(got.warnings, "metadata.initializers absent from update: pending initializers kept") {
			w.t.Errorf("%v", got)
		}
		have = w.get("x").body
		have["metadata"].(object)["initializers"] = object{"pending": []any{}}
		if got := w.write(context.Background(), "PUT", w.path+"/x", have); got.code != http.StatusOK || pendingOf(got.body) != nil {
			w.t.Errorf("an empty list: %v", got)
		}
	})
}

func TestAnUpdateThatSaysNull(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	w.create("x", pending("a.k8s.io", "b.k8s.io"), "?includeUninitialized=true")
	have := w.get("x").body
	have["metadata"].(object)["initializers"] = nil
	if got := w.write(context.Background(), "PUT", w.path+"/x", have); got.code != http.StatusOK || pendingOf(got.body) != nil {
		t.Errorf("%v", got)
	}
}

func TestOnlyTheOwnerCompletesByLeavingOut(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	owner := "system:serviceaccount:default:init"
	w.configure("c", w.forAll("a.k8s.io", "controller", object{"serviceAccount": object{"namespace": "default", "name": "init"}}))
	w.create("x", nil, "?includeUninitialized=true")
	w.allow("tool", "get", "update", "initialize")
	w.allow(owner, "get", "update", "initialize")
	put := func(by *world) answer {
		have := w.get("x").body
		delete(have["metadata"].(object), "initializers")
		return by.write(context.Background(), "PUT", w.path+"/x", have)
	}
	if got := put(w.as("tool")); got.code != http.StatusOK || pendingOf(got.body) == nil || len(got.warnings) == 0 {
		t.Errorf("a tool: %v", got)
	}
	if got := put(w.as(owner)); got.code != http.StatusOK || pendingOf(got.body) != nil {
		t.Errorf("the owner: %v", got)
	}
}

func TestWhoMayWriteWhatWaits(t *testing.T) {
	inEach(t, func(w *world) {
		w.allow("jane", "get", "patch")
		w.create("x", pending("a.k8s.io", "b.k8s.io"), "?includeUninitialized=true")
		denied := w.as("jane").merge("x", `{"metadata":{"labels":{"a":"b"}}}`)
		if denied.code != http.StatusForbidden || !strings.Contains(denied.message(), "update to uninitialized resource denied:") {
			w.t.Errorf("without the right: %v", denied)
		}
		// The right to be one of the initializers is enough to take that off.
		w.allow("a", "get", "patch")
		w.grant("a:finer", object{"apiGroups": []any{"admissionregistration.k8s.io"}, "resources": []any{"initializers"}, "resourceNames": []any{"a.k8s.io"}, "verbs": []any{"initialize"}})
		w.bind("a-finer", "a")
		other := w.as("a").merge("x", `{"metadata":{"initializers":{"pending":[{"name":"a.k8s.io"}]}}}`)
		if other.code != http.StatusForbidden {
			w.t.Errorf("another's name: %v", other)
		}
		own := w.as("a").merge("x", `{"metadata":{"initializers":{"pending":[{"name":"b.k8s.io"}]}}}`)
		if own.code != http.StatusOK || len(own.warnings) > 0 {
			w.t.Errorf("its own name: %v", own)
		}
		more := w.merge("x", `{"metadata":{"initializers":{"pending":[{"name":"c.k8s.io"},{"name":"b.k8s.io"}]}}}`)
		if more.code != http.StatusOK || !slices.Contains(more.warnings, `metadata.initializers: \"c.k8s.io\" was added`) {
			w.t.Errorf("another name: %v", more)
		}
		if bad := w.merge("x", `{"metadata":{"initializers":{"pending":[{"name":"short"}]}}}`); bad.code != http.StatusUnprocessableEntity {
			w.t.Errorf("a name that is none: %v", bad)
		}
	})
}

// bind gives a user a role that there is.
func (w *world) bind(role, user string) {
	w.t.Helper()
	body := fmt.Sprintf(`{"metadata":{"name":"%s-of-%s"},"subjects":[{"kind":"User","name":%q,"apiGroup":"rbac.authorization.k8s.io"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q}}`, role, user, user, role)
	if got := w.do("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body); got.code != http.StatusCreated {
		w.t.Fatal(got)
	}
}

func TestStrictOwnership(t *testing.T) {
	w := begin(t, app.Config{Initializers: initializer.Settings{StrictOwnership: true}}, speeches[0])
	w.configure("c", w.forAll("a.k8s.io", "controller", object{"serviceAccount": object{"namespace": "default", "name": "init"}}), w.forAll("b.k8s.io"))
	w.create("x", nil, "?includeUninitialized=true")
	w.allow("tool", "get", "patch", "initialize")
	owner := "system:serviceaccount:default:init"
	w.allow(owner, "get", "patch", "initialize")
	one := `{"metadata":{"initializers":{"pending":[{"name":"b.k8s.io"}]}}}`
	if got := w.as("tool").merge("x", one); got.code != http.StatusForbidden || !strings.Contains(got.message(), `removing or moving initializer "a.k8s.io" denied`) {
		t.Errorf("not the owner: %v", got)
	}
	if got := w.as("tool").merge("x", `{"metadata":{"initializers":{"pending":[{"name":"b.k8s.io"},{"name":"a.k8s.io"}]}}}`); got.code != http.StatusForbidden {
		t.Errorf("another order: %v", got)
	}
	if got := w.as("tool").merge("x", `{"metadata":{"labels":{"a":"b"}}}`); got.code != http.StatusOK {
		t.Errorf("what is not the list: %v", got)
	}
	if got := w.as(owner).merge("x", one); got.code != http.StatusOK {
		t.Errorf("the owner: %v", got)
	}
	if got := w.as(owner).merge("x", `{"metadata":{"initializers":null}}`); got.code != http.StatusForbidden {
		t.Errorf("what is another's: %v", got)
	}
}

// T10: a configuration that goes leaves nobody waiting.
func TestAConfigurationThatGoes(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute until an orphan is let go")
	}
	inEach(t, func(w *world) {
		w.t.Parallel() // it takes its time
		w.configure("c", w.forAll("gone.k8s.io", "failurePolicy", "Wait"))
		created := w.creating("x", nil, "?timeout=50s")
		w.waits("x")
		w.create("mine", pending("gone.k8s.io"), "?includeUninitialized=true")
		deleted := w.do("DELETE", configurations+"/c", "")
		if deleted.code != http.StatusOK || len(deleted.warnings) != 1 || !strings.HasPrefix(deleted.warnings[0], `2 objects wait for initializers of \"c\"`) {
			w.t.Errorf("%v", deleted)
		}
		select {
		case got := <-created:
			if got.code != http.StatusCreated || pendingOf(got.body) != nil {
				w.t.Errorf("%v", got)
			}
		case <-time.After(45 * time.Second):
			w.t.Error("it waits still")
		}
		if diff := cmp.Diff([]string{"gone.k8s.io"}, pendingOf(w.get("mine").body)); diff != "" {
			w.t.Errorf("one that its creator gave the name: %s", diff)
		}
	})
}

// T11: a name that is there twice is told of.
func TestDuplicateNamesAreToldOf(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	w.configure("a", w.forAll("twice.k8s.io"))
	w.configure("b", w.forAll("twice.k8s.io"))
	eventually(t, "the second says so", func() bool { return w.condition("b", "twice.k8s.io", "DuplicateName") == "True" })
	eventually(t, "the first does not", func() bool { return w.condition("a", "twice.k8s.io", "DuplicateName") == "False" })
	got := w.create("x", nil, "?includeUninitialized=true")
	if diff := cmp.Diff([]string{"twice.k8s.io"}, pendingOf(got.body)); diff != "" {
		t.Error(diff)
	}
}

// Deadlines and creators are kept through a restart.
func TestARestartForgetsNoDeadline(t *testing.T) {
	dir := t.TempDir()
	w := begin(t, app.Config{Data: dir}, speeches[0])
	w.configure("c", w.forAll("dead.k8s.io", "timeoutSeconds", 2))
	w.create("x", nil, "?includeUninitialized=true")
	w.plane.Stop()
	w = begin(t, app.Config{Data: dir}, speeches[0])
	eventually(t, "it goes", func() bool { return w.get("x").code == http.StatusNotFound })
}

// T5: a replica set counts the pods that wait.
func TestAReplicaSetDoesNotMultiplyItsPods(t *testing.T) {
	const replicas = 3
	for policy, settled := range map[string]func(w *world) bool{
		"Wait":   func(w *world) bool { return len(w.list("?includeUninitialized=true")) == replicas },
		"Ignore": func(w *world) bool { return len(w.list("")) == replicas },
		// One at a time finds out whether the initializer is back.
		"Fail": func(w *world) bool { return w.condition("c", "dead.k8s.io", "Stalled") == "True" },
	} {
		t.Run(policy, func(t *testing.T) {
			w := begin(t, app.Config{Controllers: []string{"replicaset"}}, speeches[0])
			w.configure("c", w.forAll("dead.k8s.io", "failurePolicy", policy, "timeoutSeconds", 1))
			body := fmt.Sprintf(`{"metadata":{"name":"set"},"spec":{"replicas":%d,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"app","image":"app:1"}]}}}}`, replicas)
			if got := w.do("POST", "/apis/apps/v1/namespaces/default/replicasets", body); got.code != http.StatusCreated {
				t.Fatal(got)
			}
			most := 0
			look := func() { most = max(most, len(w.list("?includeUninitialized=true"))) }
			eventually(t, "the set has done what it can", func() bool { look(); return settled(w) })
			for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				look()
			}
			t.Logf("at most %d pods at a time, %d now", most, len(w.list("?includeUninitialized=true")))
			if most > replicas {
				t.Errorf("%d pods for %d replicas", most, replicas)
			}
		})
	}
}
