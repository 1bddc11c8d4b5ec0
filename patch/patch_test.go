package patch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"

	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"setpoint.dev/setpoint/patch"
)

func TestJSONPatch(t *testing.T) {
	const object = `{"kind":"ConfigMap","data":{"a":"1"},"list":["x","y"]}`
	many := "[" + strings.TrimSuffix(strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, patch.MaxOperations+1), ",") + "]"
	bomb := `[{"op":"add","path":"/data/x","value":"` + strings.Repeat("x", 1000) + `"}`
	for i := range 40 {
		bomb += fmt.Sprintf(`,{"op":"copy","from":"/data","path":"/data/%d"}`, i)
	}
	bomb += "]"
	tooMany := func(err error) bool { _, is := errors.AsType[*patch.TooManyError](err); return is }
	invalid := func(err error) bool { _, is := errors.AsType[*patch.InvalidError](err); return is }
	unread := func(err error) bool { return err != nil && !tooMany(err) && !invalid(err) }
	for _, test := range []struct {
		name, patch, want string
		fails             func(error) bool
	}{
		{"operations come one after the other", `[{"op":"add","path":"/data/b","value":"2"},{"op":"move","from":"/data/b","path":"/data/c"}]`, `{"kind":"ConfigMap","data":{"a":"1","c":"2"},"list":["x","y"]}`, nil},
		{"a list is inserted into and appended to", `[{"op":"add","path":"/list/0","value":"w"},{"op":"add","path":"/list/-","value":"z"}]`, `{"kind":"ConfigMap","data":{"a":"1"},"list":["w","x","y","z"]}`, nil},
		{"one that fails leaves nothing", `[{"op":"add","path":"/data/b","value":"2"},{"op":"test","path":"/data/a","value":"9"}]`, "", invalid},
		{"what is absent cannot be removed", `[{"op":"remove","path":"/data/z"}]`, "", invalid},
		{"a place beyond the end of a list", `[{"op":"add","path":"/list/99999999","value":"z"}]`, "", invalid},
		{"an operation that there is not", `[{"op":"increase","path":"/data/a"}]`, "", invalid},
		{"the whole object replaced by nothing", `[{"op":"replace","path":""}]`, "", invalid},
		{"the whole object replaced by null", `[{"op":"replace","path":"","value":null}]`, "", invalid},
		{"the whole object compared with nothing", `[{"op":"test","path":""}]`, "", invalid},
		{"not a list", `{"op":"remove","path":"/data/a"}`, "", unread},
		{"not JSON", `[`, "", unread},
		{"too many operations", many, "", tooMany},
		{"copies of copies of copies", bomb, "", invalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := patch.JSON([]byte(object), []byte(test.patch))
			switch {
			case test.fails != nil && !test.fails(err), test.fails == nil && err != nil:
				t.Fatalf("got %.100s and %T %v", got, err, err)
			case err == nil:
				sameJSON(t, []byte(test.want), got)
			}
		})
	}
}

func sameJSON(t *testing.T, want, got []byte) {
	t.Helper()
	if diff := cmp.Diff(readJSON(t, want), readJSON(t, got)); diff != "" {
		t.Error(diff)
	}
}

// readJSON reads JSON with numbers as they are written.
func readJSON(t *testing.T, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestMergePatch(t *testing.T) {
	for _, test := range []struct{ name, object, patch, want string }{
		{"fields are set and null removes", `{"a":{"b":"1","c":"2"}}`, `{"a":{"b":null,"d":"3"}}`, `{"a":{"c":"2","d":"3"}}`},
		{"a list is replaced", `{"a":[1,2,3]}`, `{"a":[4]}`, `{"a":[4]}`},
		{"null within a new object is left out", `{}`, `{"a":{"b":null,"c":1}}`, `{"a":{"c":1}}`},
		{"nothing changes nothing", `{"a":1}`, `{}`, `{"a":1}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := patch.Merge([]byte(test.object), []byte(test.patch))
			if err != nil {
				t.Fatal(err)
			}
			sameJSON(t, []byte(test.want), got)
		})
	}
	if _, err := patch.Merge([]byte(`{}`), []byte(`{`)); err == nil {
		t.Error("malformed JSON is taken")
	}
}

func fields(t testing.TB, text string) map[string]any {
	t.Helper()
	m := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestStrategicMergePatch(t *testing.T) {
	const object = `{metadata: {finalizers: [f/1, f/2]}, spec: {containers: [{name: a, image: i, args: [x]}, {name: b, image: i}]}}`
	for _, test := range []struct{ name, patch, want string }{
		{"lists are merged by key", `{spec: {containers: [{name: b, image: j}]}}`, `{metadata: {finalizers: [f/1, f/2]}, spec: {containers: [{name: a, image: i, args: [x]}, {name: b, image: j}]}}`},
		{"an item is deleted by key", `{spec: {containers: [{name: a, $patch: delete}]}}`, `{metadata: {finalizers: [f/1, f/2]}, spec: {containers: [{name: b, image: i}]}}`},
		{"lists without a key are replaced", `{spec: {$setElementOrder/containers: [{name: a}, {name: b}], containers: [{name: a, args: [y]}]}}`, `{metadata: {finalizers: [f/1, f/2]}, spec: {containers: [{name: a, image: i, args: [y]}, {name: b, image: i}]}}`},
		{"sets are joined", `{metadata: {finalizers: [f/3]}}`, `{metadata: {finalizers: [f/3, f/1, f/2]}, spec: {containers: [{name: a, image: i, args: [x]}, {name: b, image: i}]}}`},
		{"sets are taken from", `{metadata: {$deleteFromPrimitiveList/finalizers: [f/1]}}`, `{metadata: {finalizers: [f/2]}, spec: {containers: [{name: a, image: i, args: [x]}, {name: b, image: i}]}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := patch.Strategic(fields(t, object), fields(t, test.patch), &corev1.Pod{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(fields(t, test.want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := patch.Strategic(fields(t, object), fields(t, `{spec: {containers: [{image: j}]}}`), &corev1.Pod{}); err == nil {
		t.Error("an item without its key is taken")
	}
}

var ownership = patch.NewOwnership(legacyscheme.Scheme)

// apply applies a manifest and returns the object as JSON would show it.
func apply(t testing.TB, live runtime.Object, manager, manifest string, force bool) (runtime.Object, error) {
	t.Helper()
	m, err := ownership.For(corev1.SchemeGroupVersion.WithKind("ConfigMap"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	wanted := fields(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: cm}}`)
	wanted["data"] = fields(t, manifest)
	return m.Apply(live, &unstructured.Unstructured{Object: wanted}, manager, force)
}

func data(t testing.TB, obj runtime.Object) map[string]string {
	t.Helper()
	v, err := legacyscheme.Scheme.ConvertToVersion(obj, corev1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	return v.(*corev1.ConfigMap).Data
}

func TestApply(t *testing.T) {
	empty, err := legacyscheme.Scheme.ConvertToVersion(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm"}}, runtime.InternalGroupVersioner)
	if err != nil {
		t.Fatal(err)
	}
	type step struct {
		manager, data string
		force         bool
		want          string // the data afterwards; "" for a conflict
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"what its owner no longer names goes", []step{{"a", `{x: "1", y: "1"}`, false, `{x: "1", y: "1"}`}, {"a", `{x: "1"}`, false, `{x: "1"}`}}},
		{"another's field is a conflict", []step{{"a", `{x: "1"}`, false, `{x: "1"}`}, {"b", `{x: "2"}`, false, ""}}},
		{"the same value is shared, and stays while one names it", []step{
			{"a", `{x: "1"}`, false, `{x: "1"}`},
			{"b", `{x: "1", z: "1"}`, false, `{x: "1", z: "1"}`},
			{"a", `{}`, false, `{x: "1", z: "1"}`},
			{"b", `{z: "1"}`, false, `{z: "1"}`},
		}},
		{"force takes a field over", []step{
			{"a", `{x: "1", y: "1"}`, false, `{x: "1", y: "1"}`},
			{"b", `{x: "2"}`, true, `{x: "2", y: "1"}`},
			{"a", `{y: "1"}`, false, `{x: "2", y: "1"}`},
			{"a", `{x: "1", y: "1"}`, false, ""},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			live := empty.DeepCopyObject()
			for _, s := range test.steps {
				after, err := apply(t, live, s.manager, s.data, s.force)
				if s.want == "" {
					if !apierrors.IsConflict(err) {
						t.Fatalf("%+v: %v", s, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%+v: %v", s, err)
				}
				want := map[string]string{}
				for k, v := range fields(t, s.want) {
					want[k] = v.(string)
				}
				if diff := cmp.Diff(want, data(t, after)); diff != "" {
					t.Fatalf("%+v: %s", s, diff)
				}
				live = after
			}
		})
	}
}
