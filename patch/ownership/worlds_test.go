package ownership_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"

	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"setpoint.dev/setpoint/patch/ownership"
)

// world is a kind to own fields of: in its versions, through its status or not,
// by upstream's field manager and by ours.
type world struct {
	name      string
	kinds     []schema.GroupVersionKind
	scheme    ownership.Scheme
	types     managedfields.TypeConverter
	untyped   bool
	fragments []string
	scopes    []scope // one for each version and subresource
}

type scope struct {
	kind        schema.GroupVersionKind
	subresource string
	upstream    *managedfields.FieldManager
	ours        *ownership.Manager
}

func worlds(t testing.TB) []*world {
	t.Helper()
	built := func(name, group, kind string, versions ...string) *world {
		w := &world{name: name, scheme: legacyscheme.Scheme, types: applyconfigurations.NewTypeConverter(legacyscheme.Scheme)}
		for _, v := range versions {
			w.kinds = append(w.kinds, schema.GroupVersionKind{Group: group, Version: v, Kind: kind})
		}
		return w.ready(t, name)
	}
	custom := func(name string, types managedfields.TypeConverter) *world {
		w := &world{name: name, scheme: customScheme{}, types: types, untyped: true}
		for _, v := range []string{"v1", "v2"} {
			w.kinds = append(w.kinds, schema.GroupVersionKind{Group: "example.org", Version: v, Kind: "Custom"})
		}
		return w.ready(t, "custom")
	}
	return []*world{
		built("pod", "", "Pod", "v1"),
		built("deployment", "apps", "Deployment", "v1"),
		built("configmap", "", "ConfigMap", "v1"),
		built("service", "", "Service", "v1"),
		built("autoscaler", "autoscaling", "HorizontalPodAutoscaler", "v1", "v2"),
		custom("structural", structural(t)),
		custom("schemaless", managedfields.NewDeducedTypeConverter()),
	}
}

// ready reads the fragments and makes the managers.
func (w *world) ready(t testing.TB, fragments string) *world {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", fragments+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w.fragments = strings.Split(string(text), "\n---\n")
	for _, kind := range w.kinds {
		for _, sub := range []string{"", "status"} {
			s, err := w.scope(kind, sub)
			if err != nil {
				t.Fatal(err)
			}
			w.scopes = append(w.scopes, s)
		}
	}
	return w
}

func (w *world) scope(kind schema.GroupVersionKind, sub string) (scope, error) {
	reset := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, k := range w.kinds {
		path := fieldpath.MakePathOrDie("status")
		if sub == "status" {
			path = fieldpath.MakePathOrDie("spec")
		}
		reset[fieldpath.APIVersion(k.GroupVersion().String())] = fieldpath.NewSet(path)
	}
	resets := fieldpath.NewExcludeFilterSetMap(reset)
	newManager, hub := managedfields.NewDefaultFieldManager, schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
	if w.untyped {
		newManager, hub = managedfields.NewDefaultCRDFieldManager, kind.GroupVersion()
	}
	upstream, err := newManager(w.types, w.scheme, w.scheme, w.scheme, kind, hub, sub, resets)
	return scope{kind, sub, upstream, ownership.New(ownership.Config{
		Kind: kind, Subresource: sub, Resets: resets, Scheme: w.scheme, Types: w.types, Untyped: w.untyped,
	})}, err
}

// fragment is one of the world's, with its blanks filled.
func (w *world) fragment(r *rand.Rand, version string) map[string]any {
	text := w.fragments[r.IntN(len(w.fragments))]
	for strings.HasPrefix(text, "# rare") && r.IntN(12) != 0 {
		text = w.fragments[r.IntN(len(w.fragments))]
	}
	text = strings.ReplaceAll(text, "SIZE", sizes[version])
	for strings.Contains(text, "$s") {
		text = strings.Replace(text, "$s", string(rune('a'+r.IntN(4))), 1)
	}
	for strings.Contains(text, "$n") {
		text = strings.Replace(text, "$n", fmt.Sprint(1+r.IntN(4)), 1)
	}
	m := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &m); err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	return whole(m).(map[string]any)
}

// whole turns numbers without a fraction into integers, as decoders do.
func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = whole(v[k])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}

// sizes is what versions of the custom kind call a field.
var sizes = map[string]string{"v1": "size", "v2": "count"}

// structural knows the custom kind by its schema.
func structural(t testing.TB) managedfields.TypeConverter {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "custom-schema.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	schemas := map[string]*spec.Schema{}
	for version, size := range sizes {
		s := &spec.Schema{}
		if err := yaml.Unmarshal([]byte(strings.Replace(string(text), "SIZE", size, 1)), s); err != nil {
			t.Fatal(err)
		}
		s.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": "example.org", "version": version, "kind": "Custom"}})
		schemas["org.example."+version+".Custom"] = s
	}
	types, err := managedfields.NewTypeConverter(schemas, false)
	if err != nil {
		t.Fatal(err)
	}
	return types
}

// customScheme is that of a kind without a Go type, whose versions differ by the
// name of a field.
type customScheme struct {
	runtime.ObjectConvertor
}

func (customScheme) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u, nil
}

func (customScheme) Default(obj runtime.Object) {
	u := obj.(*unstructured.Unstructured)
	if spec, ok := u.Object["spec"].(map[string]any); ok && spec["text"] == nil {
		spec["text"] = "default"
	}
}

func (customScheme) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	u := in.(*unstructured.Unstructured)
	from := u.GroupVersionKind()
	to, ok := target.KindForGroupVersionKinds([]schema.GroupVersionKind{from})
	if !ok || to.Version != "v1" && to.Version != "v2" {
		return nil, runtime.NewNotRegisteredErrForKind("custom", from.GroupKind().WithVersion(fmt.Sprint(target)))
	}
	if to == from {
		return in, nil
	}
	u = u.DeepCopy()
	u.SetGroupVersionKind(to)
	if spec, ok := u.Object["spec"].(map[string]any); ok {
		old, name := sizes[from.Version], sizes[to.Version]
		if v, has := spec[old]; has {
			delete(spec, old)
			spec[name] = v
		}
	}
	return u, nil
}
