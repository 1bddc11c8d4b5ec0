package initializers_test

import (
	"context"
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

// What sank initializers once. T1, T4, T5 and T10 are in dead_test.go, T8 in
// owner_test.go, T9 in final_test.go, T12 and T13 in acceptance_test.go.
func TestTraps(t *testing.T) {
	inEach(
		t, app.Config{},
		row{name: "T2, an initializer does not wait for itself", holds: notItself},
		row{name: "T3, the control plane waits for nobody", holds: floor},
		row{name: "T7, who is not meant does not wait", holds: selected},
		row{name: "T11, a name that is there twice is told of", holds: duplicate},
		row{name: "T14, what is added later brings no initializer", holds: addedLater},
	)
}

var everything = rule("*", "*", "*")

// notItself: with rules that match everything, the pods, workloads and works of an
// initializer wait for others alone.
func notItself(w *world) {
	w.make("/api/v1/namespaces/"+w.namespace+"/serviceaccounts", object{"metadata": object{"name": "init"}})
	w.configure("c",
		object{"name": "self.k8s.io", "rules": []any{everything}, "controller": w.run("init")},
		object{"name": "other.k8s.io", "rules": []any{everything}, "failurePolicy": "Wait"},
	)
	all := []string{"self.k8s.io", "other.k8s.io"}
	for _, user := range []string{"init", "else"} {
		w.allow(w.user(user), "create")
	}
	// Whatever its kind is: what it makes, and what others make.
	w.given("made-by-it", w.as(w.user("init")), w.spec, all[1:])
	w.given("made-by-another", w.as(w.user("else")), w.spec, all)
	if w.resource != "pods" {
		return // the control plane knows of no account in a custom kind
	}
	spec := object{"serviceAccountName": "init", "containers": podSpec["containers"]}
	once := object{"serviceAccountName": "init", "containers": podSpec["containers"], "restartPolicy": "Never"}
	workload := func(pod object) object {
		return object{"selector": object{"matchLabels": object{"a": "b"}}, "template": object{"metadata": object{"labels": object{"a": "b"}}, "spec": pod}}
	}
	w.given("its-pod", w, spec, all[1:])
	for resource, kind := range map[string]string{"deployments": "Deployment", "replicasets": "ReplicaSet", "daemonsets": "DaemonSet"} {
		set := w.of(speech{group: "apps", resource: resource, kind: kind, version: "apps/v1"})
		set.given("its-set", set, workload(spec), all[1:])
		set.given("anothers-set", set, workload(podSpec), all)
	}
	stateful := workload(spec)
	stateful["serviceName"] = "x"
	sets := w.of(speech{group: "apps", resource: "statefulsets", kind: "StatefulSet", version: "apps/v1"})
	sets.given("its-set", sets, stateful, all[1:])
	jobs := w.of(speech{group: "batch", resource: "jobs", kind: "Job", version: "batch/v1"})
	jobs.given("its-job", jobs, object{"template": object{"spec": once}}, all[1:])
	crons := w.of(speech{group: "batch", resource: "cronjobs", kind: "CronJob", version: "batch/v1"})
	crons.given("its-job", crons, object{"schedule": "@daily", "jobTemplate": object{"spec": object{"template": object{"spec": once}}}}, all[1:])
}

// given says what an object of somebody waits for.
func (w *world) given(name string, by *world, spec object, want []string) {
	w.t.Helper()
	obj := w.thing(name, nil)
	obj["spec"] = spec
	got := by.write("POST", w.path()+all, obj)
	if diff := cmp.Diff(want, pendingOf(got.body)); diff != "" {
		w.t.Errorf("%s %s: %v\n%s", w.kind, name, got, diff)
	}
}

// floor: what the control plane itself needs waits for nobody, nor does anything
// of its namespaces; and no rule may name it.
func floor(w *world) {
	w.configure("c", object{"name": "every.k8s.io", "failurePolicy": "Wait", "rules": []any{everything}})
	group := func(g, kind string) object { return object{"apiVersion": g, "kind": kind} }
	for path, obj := range map[string]object{
		"/api/v1/namespaces": group("v1", "Namespace"),
		"/api/v1/nodes":      group("v1", "Node"),
		"/api/v1/namespaces/" + w.namespace + "/events": {
			"apiVersion": "v1", "kind": "Event", "involvedObject": object{"namespace": w.namespace}, "reason": "x", "message": "x",
		},
		"/apis/coordination.k8s.io/v1/namespaces/" + w.namespace + "/leases":      group("coordination.k8s.io/v1", "Lease"),
		"/apis/rbac.authorization.k8s.io/v1/clusterroles":                         group("rbac.authorization.k8s.io/v1", "ClusterRole"),
		"/apis/rbac.authorization.k8s.io/v1/namespaces/" + w.namespace + "/roles": group("rbac.authorization.k8s.io/v1", "Role"),
		"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations":   group("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
		"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations":     group("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
		configurations: group("admissionregistration.k8s.io/v1alpha1", "InitializerConfiguration"),
		"/apis/apiregistration.k8s.io/v1/apiservices": {
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": object{"name": "v1." + w.namespace + ".example.com"},
			"spec": object{"group": w.namespace + ".example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1, "service": object{"namespace": "default", "name": "x"}},
		},
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": {
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": "gadgets." + w.namespace + ".example.org"},
			"spec": object{
				"group": w.namespace + ".example.org", "scope": "Namespaced", "names": object{"plural": "gadgets", "kind": "Gadget"},
				"versions": []any{object{"name": "v1", "served": true, "storage": true, "schema": object{"openAPIV3Schema": object{"type": "object"}}}},
			},
		},
		w.pathIn("kube-system"): w.thing("", nil),
	} {
		if metadata, _ := obj["metadata"].(object); metadata["name"] == nil || metadata["name"] == "" {
			obj["metadata"] = object{"name": "of-" + w.namespace}
		}
		if got := w.write("POST", path+"?timeout=5s", obj); got.code != http.StatusCreated || pendingOf(got.body) != nil {
			w.t.Errorf("%s: %v", path, got)
		}
		w.atEnd(path + "/" + obj["metadata"].(object)["name"].(string))
	}
	if got := w.write("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", group("authentication.k8s.io/v1", "SelfSubjectReview")); got.code != http.StatusCreated {
		w.t.Errorf("reviews: %v", got)
	}
	if got := w.create("x", nil, all); got.code != http.StatusAccepted {
		w.t.Errorf("what it does not need: %v", got)
	}
	named := object{"metadata": object{"name": "named"}, "initializers": []any{object{"name": "a.k8s.io", "rules": []any{w.rule(), rule("coordination.k8s.io", "*", "leases")}}}}
	if got := w.write("POST", configurations, named); got.code != http.StatusUnprocessableEntity || !strings.Contains(got.message(), "initializers[0].rules[1]") {
		w.t.Errorf("a rule that names leases: %v", got)
	}
}

func selected(w *world) {
	w.configure("c",
		w.forAll("namespace.k8s.io", "namespaceSelector", object{"matchLabels": object{"inject": "yes"}}),
		w.forAll("object.k8s.io", "objectSelector", object{"matchLabels": object{"inject": "yes"}}),
		w.forAll("condition.k8s.io", "matchConditions", []any{object{
			"name": "annotated", "expression": `has(object.metadata.annotations) && "envoy" in object.metadata.annotations && object.metadata.annotations["envoy"] == "true"`,
		}}),
	)
	label := func(value string) {
		w.t.Helper()
		if got := w.do("PATCH", "/api/v1/namespaces/"+w.namespace, `{"metadata":{"labels":{"inject":"`+value+`"}}}`, "Content-Type", mergeType); got.code != http.StatusOK {
			w.t.Fatal(got)
		}
	}
	label("no")
	if got := w.create("plain", nil, ""); got.code != http.StatusCreated || pendingOf(got.body) != nil {
		w.t.Errorf("%v", got)
	}
	label("yes")
	obj := w.thing("meant", nil)
	obj["metadata"].(object)["labels"] = object{"inject": "yes"}
	obj["metadata"].(object)["annotations"] = object{"envoy": "true"}
	got := w.write("POST", w.path()+all, obj)
	if diff := cmp.Diff([]string{"namespace.k8s.io", "object.k8s.io", "condition.k8s.io"}, pendingOf(got.body)); diff != "" {
		w.t.Error(diff)
	}
}

func duplicate(w *world) {
	twice := w.own("twice")
	w.configure("a", w.forAll(twice))
	w.configure("b", w.forAll(twice))
	eventually(w.t, "the second says so", func() bool { return w.condition("b", twice, "DuplicateName") == "True" })
	eventually(w.t, "the first does not", func() bool { return w.condition("a", twice, "DuplicateName") == "False" })
	got := w.create("x", nil, all)
	if diff := cmp.Diff([]string{twice}, pendingOf(got.body)); diff != "" {
		w.t.Error(diff)
	}
}

// addedLater: initializers act on new objects alone. Webhooks and policies act on
// updates.
func addedLater(w *world) {
	w.configure("c", w.forAll("condition.k8s.io", "objectSelector", object{"matchLabels": object{"inject": "yes"}}))
	if got := w.create("x", nil, ""); got.code != http.StatusCreated {
		w.t.Fatal(got)
	}
	if got := w.merge("x", `{"metadata":{"labels":{"inject":"yes"}}}`); got.code != http.StatusOK || pendingOf(got.body) != nil {
		w.t.Errorf("%v", got)
	}
}

// T6: creates that wait do not come in the way of others.
func TestCreatesThatWaitTakeNoRoom(t *testing.T) {
	inEach(t, app.Config{Initializers: initializer.Settings{MaxWaiting: manyWait}}, row{name: "T6, creates that wait take no room", holds: noRoom})
}

const (
	manyWait = 150
	waiting  = "setpoint_initializer_waiting_creates"
)

func noRoom(w *world) {
	before := w.latency("before")
	var creates sync.WaitGroup
	for i := range manyWait {
		creates.Go(func() { w.create("held-"+strconv.Itoa(i), pending("dead.k8s.io"), "") })
	}
	eventually(w.t, "all wait", func() bool { return w.metric(waiting) == manyWait })
	eventually(w.t, "none is counted as under way", func() bool { return w.metric(`apiserver_current_inflight_requests{request_kind="mutating"}`) == 0 })
	more := w.create("one-more", pending("dead.k8s.io"), "")
	if more.code != http.StatusTooManyRequests || more.header.Get("Retry-After") == "" {
		w.t.Errorf("one more than may wait: %v", more)
	}
	if got := w.get("one-more"); got.code != http.StatusNotFound {
		w.t.Errorf("it is stored: %v", got)
	}
	during := w.latency("during")
	w.t.Logf("median of a create of another kind: %v with nothing waiting, %v with %d creates waiting", before, during, manyWait)
	if got := w.do("DELETE", w.path()+"?gracePeriodSeconds=0", ""); got.code != http.StatusOK {
		w.t.Error(got)
	}
	creates.Wait()
	eventually(w.t, "none waits for an object that is gone", func() bool { return w.metric(waiting) == 0 })
	left := *w
	ctx, leave := context.WithCancel(w.ctx)
	left.ctx = ctx
	gone := left.creating("left", pending("dead.k8s.io"), "")
	w.waits("left")
	leave()
	within(w.t, gone)
	eventually(w.t, "those whose clients have gone wait no longer", func() bool { return w.metric(waiting) == 0 })
}

// latency is the median time of a create that waits for nobody.
func (w *world) latency(name string) time.Duration {
	w.t.Helper()
	var times []time.Duration
	for i := range 100 {
		begun := time.Now()
		if got := w.do("POST", "/api/v1/namespaces/"+w.namespace+"/configmaps", fmt.Sprintf(`{"metadata":{"name":"%s-%d"}}`, name, i)); got.code != http.StatusCreated {
			w.t.Fatal(got)
		}
		times = append(times, time.Since(begun))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// metric is the value of a line of the metrics, 0 when there is none.
func (w *world) metric(line string) float64 {
	w.t.Helper()
	response, err := w.http.Get(w.plane.URL + "/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	for l := range strings.SplitSeq(string(text), "\n") {
		if value, is := strings.CutPrefix(l, line+" "); is {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				w.t.Fatal(err)
			}
			return n
		}
	}
	return 0
}
