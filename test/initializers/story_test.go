package initializers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/app"
)

// apply creates what a file says.
func (w *world) apply(file string) answer {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		w.t.Fatal(err)
	}
	path := w.path
	switch {
	case strings.Contains(string(text), "kind: InitializerConfiguration"):
		path = configurations
	case strings.Contains(string(text), "kind: ConfigMap"):
		path = "/api/v1/namespaces/default/configmaps"
	}
	return w.send(context.Background(), "POST", path+"?timeout=20s", text, "Accept", "application/json", "Content-Type", "application/yaml")
}

// containers are the names of a pod's containers.
func containers(pod object) []string {
	var names []string
	spec, _ := pod["spec"].(object)
	all, _ := spec["containers"].([]any)
	for _, c := range all {
		names = append(names, c.(object)["name"].(string))
	}
	return names
}

// The story: a pod of somebody who knows nothing of it comes to life with two
// containers.
func TestSidecarsAppearByThemselves(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sidecar-injector")
	if out, err := exec.Command("go", "build", "-o", program, "../../examples/sidecar-injector").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, tc := range map[string]struct {
		args            []string
		plain, annotate []string
	}{
		"for every pod":           {plain: []string{"myapp-container", "envoy"}, annotate: []string{"myapp-container", "envoy"}},
		"for those that ask only": {args: []string{"-require-annotation"}, plain: []string{"myapp-container"}, annotate: []string{"myapp-container", "envoy"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, app.Config{}, speeches[0])
			for _, file := range []string{"envoy-initializer-configmap.yaml", "envoy-initializer-pod.yaml", "envoy-config.yaml"} {
				if got := w.apply(file); got.code != http.StatusCreated {
					t.Fatalf("%s: %v", file, got)
				}
			}
			run(t, program, append([]string{"-kubeconfig", w.plane.Kubeconfig}, tc.args...)...)
			for file, want := range map[string][]string{"myapp-pod.yaml": tc.plain, "myapp-pod-annotated.yaml": tc.annotate} {
				got := w.apply(file)
				if got.code != http.StatusCreated || pendingOf(got.body) != nil {
					t.Errorf("%s: %v", file, got)
				}
				if diff := cmp.Diff(want, containers(got.body)); diff != "" {
					t.Errorf("%s: %s", file, diff)
				}
				users, _ := got.body["spec"].(object)["containers"].([]any)
				if users[0].(object)["image"] != "busybox" || fmt.Sprint(users[0].(object)["command"]) != "[sh -c echo Hello Kubernetes! && sleep 3600]" {
					t.Errorf("the user's container was touched: %v", users[0])
				}
			}
		})
	}
}

// run runs a program until the test ends.
func run(t *testing.T, program string, args ...string) {
	t.Helper()
	c := exec.Command(program, args...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("%s: %v", program, err)
		}
	})
}

// A controller as it was written in 2018: it lists and watches with the
// parameter, acts when its name is the first, and sends one strategic merge patch that
// adds what it has to add and takes its name off.
func TestAControllerOf2018(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	w.configure("c", w.forAll("first.k8s.io"), w.forAll("envoy.initializer.kubernetes.io"))
	for _, me := range []string{"first.k8s.io", "envoy.initializer.kubernetes.io"} {
		w.controller(me)
	}
	created := w.creating("x", nil, "?timeout=20s")
	got := within(t, created)
	if got.code != http.StatusCreated || pendingOf(got.body) != nil {
		t.Fatalf("%v", got)
	}
	if diff := cmp.Diff([]string{"app", "by-first", "by-envoy"}, containers(got.body)); diff != "" {
		t.Error(diff)
	}
}

// controller runs a controller until the test ends.
func (w *world) controller(me string) {
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	list := w.do("GET", w.path+"?includeUninitialized=true", "")
	items, _ := list.body["items"].([]any)
	for _, pod := range items {
		w.act(me, pod.(object))
	}
	from := list.body["metadata"].(object)["resourceVersion"].(string)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.plane.URL+w.path+"?watch=true&includeUninitialized=true&resourceVersion="+from, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := w.http.Do(r) //nolint:bodyclose // by who reads it
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer func() { _ = response.Body.Close() }()
		for s := bufio.NewScanner(response.Body); s.Scan(); {
			var e struct {
				Type   string
				Object object
			}
			if json.Unmarshal(s.Bytes(), &e) == nil && e.Type != "DELETED" {
				w.act(me, e.Object)
			}
		}
	}()
}

// act takes a controller's turn on a pod.
func (w *world) act(me string, pod object) {
	names := pendingOf(pod)
	if len(names) == 0 || names[0] != me {
		return
	}
	short, _, _ := strings.Cut(me, ".")
	var order []any
	for _, c := range append(containers(pod), "by-"+short) {
		order = append(order, object{"name": c})
	}
	patch := object{
		"metadata": object{"initializers": object{"pending": []any{object{"$patch": "delete", "name": me}}}},
		"spec": object{
			"$setElementOrder/containers": order,
			"containers":                  []any{object{"name": "by-" + short, "image": "side:1"}},
		},
	}
	text, err := json.Marshal(patch)
	if err != nil {
		w.t.Error(err)
	}
	name := pod["metadata"].(object)["name"].(string)
	if got := w.do("PATCH", w.path+"/"+name, string(text), "Content-Type", "application/strategic-merge-patch+json"); got.code != http.StatusOK || slices.Contains(pendingOf(got.body), me) {
		w.t.Errorf("%s: %v", me, got)
	}
}

// The deployment of the tutorial: typed clients send the object without a field
// that they do not know, and that completes it.
func TestTheTutorialsPUT(t *testing.T) {
	inEach(t, func(w *world) {
		w.configure("c", w.forAll("only.k8s.io"))
		created := w.creating("x", nil, "")
		w.waits("x")
		have := w.get("x").body
		delete(have["metadata"].(object), "initializers")
		if got := w.write(context.Background(), "PUT", w.path+"/x", have); got.code != http.StatusOK || pendingOf(got.body) != nil {
			w.t.Errorf("%v", got)
		}
		if got := within(w.t, created); got.code != http.StatusCreated {
			w.t.Errorf("%v", got)
		}
		// It is settled: what is sent again with an empty list changes nothing.
		have = w.get("x").body
		have["metadata"].(object)["initializers"] = pending()
		if got := w.write(context.Background(), "PUT", w.path+"/x", have); got.code != http.StatusOK {
			w.t.Errorf("%v", got)
		}
	})
}

// What initializers made of an object is checked as its creator's request.
func TestFinalAdmission(t *testing.T) {
	for name, tc := range map[string]struct {
		skip bool
		code int
	}{
		"on":  {code: http.StatusForbidden},
		"off": {skip: true, code: http.StatusCreated},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, app.Config{Initializers: initializer.Settings{SkipFinalAdmission: tc.skip}}, speeches[0])
			w.hook("validating", []any{"CREATE"}, nil, oneContainerForJane)
			w.allow("jane", "create")
			w.configure("c", w.forAll("a.k8s.io"))
			inject := func(name string) {
				got := w.merge(name, `{"metadata":{"initializers":null},"spec":{"containers":[{"name":"app","image":"app:1"},{"name":"side","image":"side:1"}]}}`)
				if got.code != http.StatusOK {
					t.Errorf("the write itself: %v", got)
				}
			}
			hers := w.as("jane").creating("hers", nil, "")
			w.waits("hers")
			inject("hers")
			got := within(t, hers)
			if got.code != tc.code || tc.code == http.StatusForbidden && !strings.Contains(got.message(), "jane may have one container") {
				t.Errorf("what its creator reads: %v", got)
			}
			if left := w.get("hers"); (left.code == http.StatusOK) != tc.skip {
				t.Errorf("what is left: %v", left)
			}
			mine := w.creating("mine", nil, "")
			w.waits("mine")
			inject("mine")
			if got := within(t, mine); got.code != http.StatusCreated || len(containers(got.body)) != 2 {
				t.Errorf("somebody else's: %v", got)
			}
		})
	}
}

// oneContainerForJane refuses pods of jane that have more than one container.
func oneContainerForJane(review *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	var pod object
	allowed := json.Unmarshal(review.Request.Object.Raw, &pod) == nil && (review.Request.UserInfo.Username != "jane" || len(containers(pod)) < 2)
	return &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: allowed, Result: &metav1.Status{Code: http.StatusForbidden, Message: "jane may have one container"}}
}
