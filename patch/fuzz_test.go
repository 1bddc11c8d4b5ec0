package patch_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"

	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"setpoint.dev/setpoint/patch"
)

// deployment is a real object, as a server keeps it.
func deployment(f *testing.F) (*appsv1.Deployment, []byte) {
	f.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "deployment.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	d := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(text, d); err != nil {
		f.Fatal(err)
	}
	legacyscheme.Scheme.Default(d)
	j, err := json.Marshal(d)
	if err != nil {
		f.Fatal(err)
	}
	return d, j
}

// maxPatch keeps inputs at a size at which the fuzzer makes way.
const maxPatch = 16 << 10

// grown fails when a patch has made more of an object than it may. Escapes can
// make a byte six.
func grown(t *testing.T, object, body, after []byte) {
	t.Helper()
	if most := 6 * (len(object) + len(body) + patch.MaxCopied); len(after) > most {
		t.Errorf("%d bytes with a patch of %d have become %d", len(object), len(body), len(after))
	}
}

func FuzzJSONPatch(f *testing.F) {
	_, object := deployment(f)
	for _, seed := range []string{
		`[]`, `{}`, `null`, `[null]`, `[{}]`, `[{"op":"add"}]`,
		`[{"op":"add","path":"/metadata/labels/x","value":"1"},{"op":"test","path":"/metadata/labels/x","value":"1"}]`,
		`[{"op":"replace","path":"/spec/replicas","value":5},{"op":"remove","path":"/spec/strategy"}]`,
		`[{"op":"add","path":"/spec/template/spec/containers/-","value":{"name":"z"}},{"op":"add","path":"/spec/template/spec/containers/1","value":null}]`,
		`[{"op":"move","from":"/spec/template/spec/containers/0","path":"/spec/template/spec/containers/1"}]`,
		`[{"op":"copy","from":"/spec","path":"/metadata/annotations/spec"},{"op":"copy","from":"/metadata","path":"/spec/m"},{"op":"copy","from":"","path":"/all"}]`,
		`[{"op":"remove","path":""}]`, `[{"op":"replace","path":"","value":[]}]`, `[{"op":"add","path":"/a~1b~0c","value":1}]`,
		`[{"op":"remove","path":"/spec/template/spec/containers/-1"}]`, `[{"op":"test","path":"/spec/none","value":null}]`,
		`[{"op":"add","path":"/spec/template/spec/containers/99999999999999999999","value":1}]`,
		`[{"op":"copy","from":"/spec/none","path":"/spec/other"}]`, `[{"op":"move","from":"/spec","path":"/spec/below"}]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > maxPatch {
			t.Skip("larger than a request may be")
		}
		got, err := patch.JSON(bytes.Clone(object), body)
		if err != nil {
			return
		}
		grown(t, object, body, got)
		p, err := jsonpatch.DecodePatch(body)
		if err != nil {
			t.Fatalf("upstream does not read it: %v", err)
		}
		want, err := p.Apply(bytes.Clone(object))
		if err != nil {
			t.Fatalf("upstream does not apply it: %v", err)
		}
		sameJSON(t, want, got)
	})
}

func FuzzMergePatch(f *testing.F) {
	_, object := deployment(f)
	for _, seed := range []string{
		`{}`, `null`, `[]`, `1`, `"x"`, `{"spec":null}`, `{"spec":{"replicas":null,"paused":true}}`, `{"metadata":{"labels":{"a":null,"b":"c"}}}`,
		`{"spec":{"template":{"spec":{"containers":[]}}}}`, `{"a":{"b":{"c":{"d":null}}}}`, `{"a":1,"a":{"b":null}}`, `{"":{"":null}}`, `{"\ud800":1}`, `{"n":1e400}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > maxPatch {
			t.Skip("larger than a request may be")
		}
		got, err := patch.Merge(bytes.Clone(object), body)
		if err != nil {
			return
		}
		grown(t, object, body, got)
		want, err := jsonpatch.MergePatch(bytes.Clone(object), body)
		if err != nil {
			t.Fatalf("upstream does not apply it: %v", err)
		}
		sameJSON(t, want, got)
		// Once more changes nothing.
		again, err := patch.Merge(got, body)
		if err != nil {
			t.Fatal(err)
		}
		sameJSON(t, got, again)
	})
}

func FuzzStrategicMergePatch(f *testing.F) {
	_, object := deployment(f)
	for _, seed := range []string{
		`{}`, `null`, `{"$patch":"replace"}`, `{"$patch":"delete"}`, `{"spec":{"$patch":"merge"}}`, `{"spec":{"$patch":1}}`,
		`{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}`, `{"spec":{"strategy":{"$retainKeys":"type"}}}`,
		`{"spec":{"template":{"spec":{"$setElementOrder/containers":[{"name":"b"},{"name":"a"}],"containers":[{"name":"b","image":"x"}]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"name":"a","$patch":"delete"},{"name":"new"}]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"$patch":"replace"},{"name":"only"}]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[null]}}}}`, `{"spec":{"template":{"spec":{"containers":[["x"]]}}}}`, `{"spec":{"template":{"spec":{"containers":{}}}}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["x.y/z"],"finalizers":["a.b/c"]}}`, `{"metadata":{"$setElementOrder/finalizers":["q"],"finalizers":["q"]}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":[{}]}}`, `{"metadata":{"$deleteFromPrimitiveList/":["x"]}}`, `{"$setElementOrder/":[]}`,
		`{"spec":{"template":{"spec":{"containers":[{"name":"a","env":[{"name":"A","value":null}],"ports":[{"containerPort":"80"}]}]}}}}`,
		`{"status":{"conditions":[{"type":"Available"}]}}`, `{"metadata":{"labels":{"a":null,"$patch":"replace"}}}`, `{"metadata":null}`, `{"spec":[]}`, `{"spec":{"replicas":{}}}`,
		`{"metadata":{"ownerReferences":[{"uid":"1"},{"uid":"2","$patch":"delete"}]}}`, `{"metadata":{"managedFields":[{"manager":"x"}]}}`,
	} {
		f.Add([]byte(seed))
	}
	read := func(t *testing.T, j []byte) map[string]any {
		m := map[string]any{}
		if err := json.Unmarshal(j, &m); err != nil {
			t.Skip("not an object")
		}
		return m
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > maxPatch {
			t.Skip("larger than a request may be")
		}
		got, err := patch.Strategic(read(t, object), read(t, body), &appsv1.Deployment{})
		if err != nil {
			return
		}
		after, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		grown(t, object, body, after)
		want, err := strategicpatch.StrategicMergePatch(object, body, &appsv1.Deployment{})
		if err != nil {
			t.Fatalf("upstream does not apply it: %v", err)
		}
		sameJSON(t, want, after)
	})
}

// FuzzDifference turns two objects into the patches between them, which have to
// lead from one to the other.
func FuzzDifference(f *testing.F) {
	_, object := deployment(f)
	f.Add(int32(3), "a", "image", "k", "v", true)
	f.Add(int32(0), "zz", "", "", "", false)
	f.Add(int32(-1), "b", "$patch", "$retainKeys", "delete", true)
	f.Add(int32(1), "$patch", "i", "$patch", "replace", false)
	f.Fuzz(func(t *testing.T, replicas int32, container, image, key, value string, more bool) {
		b := &appsv1.Deployment{}
		if err := json.Unmarshal(object, b); err != nil {
			t.Fatal(err)
		}
		b.Spec.Replicas = &replicas
		if b.Labels == nil {
			b.Labels = map[string]string{}
		}
		b.Labels[key] = value
		spec := &b.Spec.Template.Spec
		spec.Containers[0].Image = image
		if more {
			added := spec.Containers[0].DeepCopy()
			added.Name = container
			for _, c := range spec.Containers {
				if c.Name == container {
					t.Skip("not a list that has keys")
				}
			}
			spec.Containers = append(spec.Containers, *added)
		} else {
			spec.Containers = spec.Containers[:1]
		}
		target, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		merge, err := jsonpatch.CreateMergePatch(object, target)
		if err != nil {
			t.Fatal(err)
		}
		got, err := patch.Merge(object, merge)
		if err != nil {
			t.Fatal(err)
		}
		sameJSON(t, target, got)
		if key == "" || key[0] == '$' {
			return // a label that reads as an instruction cannot be said this way
		}
		strategic, err := strategicpatch.CreateTwoWayMergePatch(object, target, &appsv1.Deployment{})
		if err != nil {
			t.Fatal(err)
		}
		a, p := map[string]any{}, map[string]any{}
		if err := json.Unmarshal(object, &a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(strategic, &p); err != nil {
			t.Fatal(err)
		}
		merged, err := patch.Strategic(a, p, &appsv1.Deployment{})
		if err != nil {
			t.Fatal(err)
		}
		j, err := json.Marshal(merged)
		if err != nil {
			t.Fatal(err)
		}
		sameJSON(t, target, j)
	})
}

func FuzzApply(f *testing.F) {
	d, _ := deployment(f)
	kind := appsv1.SchemeGroupVersion.WithKind("Deployment")
	live, err := legacyscheme.Scheme.ConvertToVersion(d, runtime.InternalGroupVersioner)
	if err != nil {
		f.Fatal(err)
	}
	manager, err := ownership.For(kind, "", nil)
	if err != nil {
		f.Fatal(err)
	}
	live = manager.Update(live, live, "owner")
	for _, seed := range []string{
		"{}", "null", "[]", "- a", "x", "a: b", "spec: {replicas: 5}", "spec: {replicas: many}", "spec: null", "metadata: {labels: {a: b}}",
		"spec: {template: {spec: {containers: [{name: a, image: other}]}}}", "spec: {template: {spec: {containers: [{image: nokey}]}}}",
		"spec: {template: {spec: {containers: [{name: a, ports: [{containerPort: 80}, {containerPort: 80, protocol: TCP}]}]}}}",
		"metadata: {managedFields: [{manager: x}]}", "metadata: {finalizers: [a.b/c, a.b/c]}", "metadata: {name: null, creationTimestamp: x}",
		"spec: {selector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}", "status: {conditions: [{type: Available, status: 'True'}]}",
		"spec: &x {template: *x}", "spec: {template: {spec: {volumes: [{name: v, emptyDir: {}}, {name: v}]}}}", "{\"spec\": {\"replicas\": 1e100}}",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, body []byte, force bool) {
		if len(body) > maxPatch {
			t.Skip("larger than a request may be")
		}
		wanted := map[string]any{}
		if yaml.Unmarshal(body, &wanted) != nil || wanted == nil {
			t.Skip("not an object")
		}
		wanted["apiVersion"], wanted["kind"] = kind.GroupVersion().String(), kind.Kind
		before := live.DeepCopyObject()
		got, err := manager.Apply(live, &unstructured.Unstructured{Object: runtime.DeepCopyJSON(wanted)}, "fuzz", force)
		if diff := cmp.Diff(before, live); diff != "" {
			t.Fatalf("it has changed what it was given: %s", diff)
		}
		if err != nil {
			return
		}
		// Who applies the same again changes nothing.
		again, err := manager.Apply(got, &unstructured.Unstructured{Object: wanted}, "fuzz", force)
		if err != nil {
			t.Fatalf("again: %v", err)
		}
		if diff := cmp.Diff(got, again, cmpopts.IgnoreFields(metav1.ManagedFieldsEntry{}, "Time")); diff != "" {
			t.Error(diff)
		}
	})
}
