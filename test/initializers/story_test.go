package initializers_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/app"
)

// The story: a pod of somebody who knows nothing of it comes to life with two
// containers.
func TestSidecarsAppearByThemselves(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sidecar-injector")
	if out, err := exec.Command("go", "build", "-o", program, "../../examples/sidecar-injector").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	both := []string{"myapp-container", "envoy"}
	for name, tc := range map[string]struct {
		args            []string
		plain, annotate []string
	}{
		"for every pod":           {plain: both, annotate: both},
		"for those that ask only": {args: []string{"-require-annotation"}, plain: both[:1], annotate: both},
	} {
		t.Run(name, func(t *testing.T) {
			inEach(t, app.Config{}, row{name: "13.11", not: map[string]string{custom: "sidecars are containers of pods"}, holds: func(w *world) {
				w.apply("/api/v1/namespaces/"+w.namespace+"/configmaps", "envoy-initializer-configmap.yaml")
				w.apply(w.path(), "envoy-initializer-pod.yaml")
				w.apply(configurations, "envoy-config.yaml")
				w.atEnd(configurations + "/envoy-config")
				runs(w.t, program, append([]string{"-kubeconfig", w.plane.Kubeconfig, "-namespace", w.namespace}, tc.args...)...)
				for file, want := range map[string][]string{"myapp-pod.yaml": tc.plain, "myapp-pod-annotated.yaml": tc.annotate} {
					pod := w.apply(w.path(), file)
					if diff := cmp.Diff(want, containers(pod)); diff != "" {
						w.t.Errorf("%s: %s", file, diff)
					}
					users, _ := pod["spec"].(object)["containers"].([]any)
					if users[0].(object)["image"] != "busybox" || fmt.Sprint(users[0].(object)["command"]) != "[sh -c echo Hello Kubernetes! && sleep 3600]" {
						w.t.Errorf("the user's container was touched: %v", users[0])
					}
				}
			}})
		})
	}
}

// apply creates what a file says: as it is, or in protobuf.
func (w *world) apply(path, file string) object {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		w.t.Fatal(err)
	}
	var got answer
	if inJSON, err := yaml.YAMLToJSON(text); err != nil {
		w.t.Fatal(err)
	} else if raw := w.inProtobuf(inJSON); raw != nil {
		got = w.send("POST", path+"?timeout=50s", raw, "Accept", w.accepts(), "Content-Type", protobufType)
	} else {
		got = w.send("POST", path+"?timeout=50s", text, "Accept", jsonType, "Content-Type", "application/yaml")
	}
	if got.code != http.StatusCreated || pendingOf(got.body) != nil {
		w.t.Fatalf("%s: %v", file, got)
	}
	return got.body
}

// runs runs a program until the test ends.
func runs(t *testing.T, program string, args ...string) {
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

// A controller as it was written in 2018.
func TestAControllerOf2018(t *testing.T) {
	inEach(t, app.Config{}, row{name: "raw requests and one patch", holds: func(w *world) {
		w.configure("c", w.forAll("first.k8s.io"), w.forAll("envoy.initializer.kubernetes.io"))
		for _, me := range []string{"first.k8s.io", "envoy.initializer.kubernetes.io"} {
			w.controller(me)
		}
		got := within(w.t, w.creating("x", nil, "?timeout=50s"))
		if got.code != http.StatusCreated || pendingOf(got.body) != nil {
			w.t.Fatalf("%v", got)
		}
		if diff := cmp.Diff([]string{"by-first", "by-envoy"}, added(got.body)); diff != "" {
			w.t.Error(diff)
		}
	}})
}

// added are the names of what controllers have added to an object, in the order
// of a pod's containers, or of a custom object's list.
func added(obj object) []string {
	names := containers(obj)
	spec, _ := obj["spec"].(object)
	list, _ := spec["added"].([]any)
	for _, n := range list {
		names = append(names, n.(string))
	}
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, "by-") })
}

// controller runs a controller until the test ends: it lists and watches with the
// parameter, and acts when its name is the first.
func (w *world) controller(me string) {
	w.t.Helper()
	list := w.read(w.path() + all)
	items, _ := list.body["items"].([]any)
	for _, obj := range items {
		w.act(me, obj.(object))
	}
	events := w.follow(list.metadata()["resourceVersion"].(string), all[1:])
	go func() {
		for {
			select {
			case e := <-events:
				if e.kind != "DELETED" {
					w.act(me, e.object)
				}
			case <-w.ctx.Done():
				return
			}
		}
	}()
}

// act takes a controller's turn on an object: one patch that adds what it has to
// add and takes its name off. That is a strategic merge patch where the kind takes
// such, as pods do, and a merge patch of the whole lists otherwise.
func (w *world) act(me string, obj object) {
	names := pendingOf(obj)
	if len(names) == 0 || names[0] != me {
		return
	}
	short, _, _ := strings.Cut(me, ".")
	mine := "by-" + short
	media, patch := mergeType, object{
		"metadata": object{"initializers": pending(names[1:]...), "resourceVersion": obj["metadata"].(object)["resourceVersion"]},
		"spec":     object{"added": append(added(obj), mine)},
	}
	if w.strategic {
		var order []any
		for _, c := range append(containers(obj), mine) {
			order = append(order, object{"name": c})
		}
		media, patch = strategicType, object{
			"metadata": object{"initializers": object{"pending": []any{object{"$patch": "delete", "name": me}}}},
			"spec":     object{"$setElementOrder/containers": order, "containers": []any{object{"name": mine, "image": "side:1"}}},
		}
	}
	name := obj["metadata"].(object)["name"].(string)
	if got := w.patch(name, media, string(encode(w.t, patch))); w.ctx.Err() == nil && (got.code != http.StatusOK || slices.Contains(pendingOf(got.body), me)) {
		w.t.Errorf("%s: %v", me, got)
	}
}
