package kinds_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/kinds"
)

// discovery writes a list the way testdata/discovery.txt does.
func discovery(l *kinds.List) string {
	var b strings.Builder
	list := func(words []string) string {
		if len(words) == 0 {
			return "-"
		}
		return strings.Join(words, ",")
	}
	groups := slices.CompactFunc(slices.Clone(l.All()), func(a, b *kinds.Resource) bool { return a.Group == b.Group })
	for _, first := range groups {
		for _, version := range first.Versions {
			if slices.Contains(first.Undescribed, version) {
				continue // upstream serves it no more
			}
			fmt.Fprintf(&b, "\n%s\n", schema.GroupVersion{Group: first.Group, Version: version})
			for _, r := range l.All() {
				if r.Group != first.Group || !r.Serves(version) {
					continue
				}
				scope := "cluster"
				if r.Namespaced {
					scope = "namespaced"
				}
				fmt.Fprintln(&b, strings.Join([]string{
					r.Name, r.Singular, scope, r.Kind, list(r.Verbs), list(r.ShortNames), list(r.Categories),
				}, "  "))
				for _, name := range slices.Sorted(maps.Keys(r.Subresources)) {
					s := r.Subresources[name]
					kind := s.Kind.Kind
					if s.Kind.Version != "" {
						kind = s.Kind.Group + "/" + s.Kind.Version + "/" + kind
					}
					fmt.Fprintln(&b, strings.Join([]string{r.Name + "/" + name, "-", scope, kind, list(s.Verbs), "-", "-"}, "  "))
				}
			}
		}
	}
	return b.String()
}

// TestServesWhatUpstreamServes compares the table with what a kube-apiserver
// was seen to serve.
func TestServesWhatUpstreamServes(t *testing.T) {
	file, err := os.ReadFile("testdata/discovery.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want string
	for section := range strings.SplitSeq(strings.TrimSpace(string(file)), "\n\n") {
		if !strings.HasPrefix(section, "#") {
			want += "\n" + section + "\n"
		}
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(discovery(kinds.Builtin(kinds.Deps{})), "\n")); diff != "" {
		t.Errorf("upstream serves (-), we serve (+):\n%s", diff)
	}
}

// stored runs a test for each kind that is stored.
func stored(t *testing.T, test func(t *testing.T, r *kinds.Resource)) {
	t.Helper()
	for _, r := range kinds.Builtin(kinds.Deps{}).All() {
		if r.Create != nil {
			t.Run(r.GroupResource().String(), func(t *testing.T) { test(t, r) })
		}
	}
}

// empty is an object of the internal type with nothing but a name.
func empty(t *testing.T, r *kinds.Resource) runtime.Object {
	t.Helper()
	obj, err := r.New()
	if err != nil {
		t.Fatal(err)
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	m.SetName("it")
	if r.Namespaced {
		m.SetNamespace("there")
	}
	return obj
}

func TestStoredKindsAreComplete(t *testing.T) {
	stored(t, func(t *testing.T, r *kinds.Resource) {
		if r.Update == nil || r.Delete == nil || r.Fields == nil || r.Columns == nil || r.Table == "" {
			t.Error("a stored kind has strategies, fields, columns and a table")
		}
		if got := r.Create.NamespaceScoped(); got != r.Namespaced {
			t.Errorf("namespaced: strategy says %v, resource %v", got, r.Namespaced)
		}
		for name, s := range r.Subresources {
			if view := slices.Equal(s.Verbs, []string{"get", "patch", "update"}) || name == "finalize"; view != (s.Update != nil || s.Scale != nil) {
				t.Errorf("%s: verbs %v, strategy %v, scale %v", name, s.Verbs, s.Update, s.Scale)
			}
			if s.Name != name {
				t.Errorf("subresource %q is listed as %q", s.Name, name)
			}
		}
	})
}

// TestStoredKindsRoundTrip takes an object from every served version through
// the internal type to its stored bytes, and back. The first trip may add
// defaults of the stored version; the second changes nothing.
func TestStoredKindsRoundTrip(t *testing.T) {
	stored(t, func(t *testing.T, r *kinds.Resource) {
		scheme, ok := r.Scheme.(*runtime.Scheme)
		if !ok {
			t.Fatalf("built-in kinds come with a scheme, not a %T", r.Scheme)
		}
		codec := serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme, scheme, serializer.SerializerOptions{})
		convert := func(obj runtime.Object, to runtime.GroupVersioner) runtime.Object {
			out, err := r.Scheme.ConvertToVersion(obj, to)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		trip := func(sent runtime.Object, served schema.GroupVersion) runtime.Object {
			r.Scheme.Default(sent)
			var bytes bytes.Buffer
			if err := codec.Encode(convert(convert(sent, runtime.InternalGroupVersioner), r.Storage), &bytes); err != nil {
				t.Fatal(err)
			}
			read, kind, err := codec.Decode(bytes.Bytes(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if *kind != r.StorageKind() {
				t.Errorf("stored as %s, want %s", kind, r.StorageKind())
			}
			r.Scheme.Default(read)
			return convert(convert(read, runtime.InternalGroupVersioner), served)
		}
		for _, version := range r.Versions {
			served := r.GroupVersionKind(version).GroupVersion()
			once := trip(convert(empty(t, r), served), served)
			twice := trip(once.DeepCopyObject(), served)
			if diff := cmp.Diff(asJSON(t, once), asJSON(t, twice)); diff != "" {
				t.Errorf("%s: sent (-), came back (+):\n%s", version, diff)
			}
			if m, err := meta.Accessor(twice); err != nil || m.GetName() != "it" {
				t.Errorf("%s: lost its name: %v", version, err)
			}
		}
	})
}

func asJSON(t *testing.T, obj runtime.Object) string {
	t.Helper()
	b, err := json.MarshalIndent(obj, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFields(t *testing.T) {
	stored(t, func(t *testing.T, r *kinds.Resource) {
		set, err := r.Fields(empty(t, r))
		if err != nil {
			t.Fatal(err)
		}
		if set["metadata.name"] != "it" || (r.Namespaced && set["metadata.namespace"] != "there") {
			t.Errorf("fields %v", set)
		}
		for _, version := range r.Versions {
			if label, value, err := r.ConvertFieldLabel(version, "metadata.name", "x"); err != nil || label != "metadata.name" || value != "x" {
				t.Errorf("metadata.name=x in %s is %s=%s, %v", version, label, value, err)
			}
			if _, _, err := r.ConvertFieldLabel(version, "no.such.field", "x"); err == nil {
				t.Errorf("no.such.field can be selected in %s", version)
			}
		}
	})
	for label, want := range map[string]string{
		"events.k8s.io/regarding.kind": "involvedObject.kind",
		"/spec.nodeName":               "spec.nodeName",
	} {
		group, field, _ := strings.Cut(label, "/")
		name := map[string]string{"events.k8s.io": "events", "": "pods"}[group]
		got, _, err := kinds.Builtin(kinds.Deps{}).Find(group, "v1", name).ConvertFieldLabel("v1", field, "x")
		if err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", label, got, err, want)
		}
	}
}

func TestColumns(t *testing.T) {
	stored(t, func(t *testing.T, r *kinds.Resource) {
		table, err := r.Columns.ConvertToTable(t.Context(), empty(t, r), &metav1.TableOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(table.ColumnDefinitions) < 2 || len(table.Rows) != 1 || fmt.Sprint(table.Rows[0].Cells[0]) == "" {
			t.Errorf("table %+v", table)
		}
	})
}

func TestAPIServiceColumns(t *testing.T) {
	services := kinds.Builtin(kinds.Deps{}).Find("apiregistration.k8s.io", "v1", "apiservices")
	condition := func(status apiregistration.ConditionStatus, reason string) apiregistration.APIServiceStatus {
		return apiregistration.APIServiceStatus{Conditions: []apiregistration.APIServiceCondition{
			{Type: "Other", Status: apiregistration.ConditionFalse},
			{Type: apiregistration.Available, Status: status, Reason: reason},
		}}
	}
	list := &apiregistration.APIServiceList{
		ListMeta: metav1.ListMeta{ResourceVersion: "7"},
		Items: []apiregistration.APIService{
			{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Status: condition(apiregistration.ConditionTrue, "Local")},
			{ObjectMeta: metav1.ObjectMeta{Name: "unknown"}},
			{
				ObjectMeta: metav1.ObjectMeta{Name: "far"},
				Spec:       apiregistration.APIServiceSpec{Service: &apiregistration.ServiceReference{Namespace: "ns", Name: "svc"}},
				Status:     condition(apiregistration.ConditionFalse, "MissingEndpoints"),
			},
		},
	}
	table, err := services.Columns.ConvertToTable(t.Context(), list, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range table.Rows {
		got = append(got, fmt.Sprint(row.Cells[:3]...))
	}
	want := []string{"localLocalTrue", "unknownLocalUnknown", "farns/svcFalse (MissingEndpoints)"}
	if diff := cmp.Diff(want, got); diff != "" || table.ResourceVersion != "7" {
		t.Errorf("resourceVersion %s, rows (-want +got):\n%s", table.ResourceVersion, diff)
	}
}

func TestStorage(t *testing.T) {
	list := kinds.Builtin(kinds.Deps{})
	for _, c := range []struct{ group, version, name, storage, table string }{
		{"", "v1", "pods", "v1", "pods"},
		{"", "v1", "events", "v1", "events"},
		{"events.k8s.io", "v1", "events", "v1", "events"},
		{"apps", "v1", "deployments", "apps/v1", "deployments.apps"},
		{"autoscaling", "v1", "horizontalpodautoscalers", "autoscaling/v2", "horizontalpodautoscalers.autoscaling"},
		{"admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", "admissionregistration.k8s.io/v1beta1", "mutatingadmissionpolicies.admissionregistration.k8s.io"},
	} {
		r := list.Find(c.group, c.version, c.name)
		if r.Storage.String() != c.storage || r.Table != c.table {
			t.Errorf("%s: stored as %s in %s, want %s in %s", c.name, r.Storage, r.Table, c.storage, c.table)
		}
	}
	if r := list.Find("", "v1", "bindings"); r.Create != nil || r.Table != "" {
		t.Error("bindings are not stored")
	}
}

func TestScale(t *testing.T) {
	about := metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u", ResourceVersion: "5", Labels: map[string]string{"not": "shown"}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	two := int32(2)
	for _, c := range []struct {
		group, name string
		obj         runtime.Object
		replicas    func(runtime.Object) int32
	}{
		{
			"apps", "deployments",
			&apps.Deployment{ObjectMeta: about, Spec: apps.DeploymentSpec{Replicas: 2, Selector: selector}, Status: apps.DeploymentStatus{Replicas: 1}},
			func(o runtime.Object) int32 { return o.(*apps.Deployment).Spec.Replicas },
		},
		{
			"apps", "replicasets",
			&apps.ReplicaSet{ObjectMeta: about, Spec: apps.ReplicaSetSpec{Replicas: 2, Selector: selector}, Status: apps.ReplicaSetStatus{Replicas: 1}},
			func(o runtime.Object) int32 { return o.(*apps.ReplicaSet).Spec.Replicas },
		},
		{
			"apps", "statefulsets",
			&apps.StatefulSet{ObjectMeta: about, Spec: apps.StatefulSetSpec{Replicas: 2, Selector: selector}, Status: apps.StatefulSetStatus{Replicas: 1}},
			func(o runtime.Object) int32 { return o.(*apps.StatefulSet).Spec.Replicas },
		},
		{
			"", "replicationcontrollers",
			&core.ReplicationController{ObjectMeta: about, Spec: core.ReplicationControllerSpec{Replicas: &two, Selector: selector.MatchLabels}, Status: core.ReplicationControllerStatus{Replicas: 1}},
			func(o runtime.Object) int32 { return *o.(*core.ReplicationController).Spec.Replicas },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			scale := kinds.Builtin(kinds.Deps{}).Find(c.group, "v1", c.name).Subresources["scale"].Scale
			got, err := scale.Get(c.obj)
			if err != nil {
				t.Fatal(err)
			}
			want := &autoscaling.Scale{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u", ResourceVersion: "5"},
				Spec:       autoscaling.ScaleSpec{Replicas: 2},
				Status:     autoscaling.ScaleStatus{Replicas: 1, Selector: "app=web"},
			}
			if diff := cmp.Diff(runtime.Object(want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if gv := (schema.GroupVersion{Group: c.group, Version: "v1"}).String(); len(scale.Paths[gv]) != 2 {
				t.Errorf("no path to the replicas in %s: %v", gv, scale.Paths)
			}

			want.Spec.Replicas = -1
			if err := scale.Set(c.obj, want); !apierrors.IsInvalid(err) {
				t.Errorf("-1 replicas: %v", err)
			}
			want.Spec.Replicas, want.UID = 3, "other"
			if err := scale.Set(c.obj, want); !apierrors.IsConflict(err) {
				t.Errorf("another UID: %v", err)
			}
			if err := scale.Set(c.obj, c.obj); !apierrors.IsBadRequest(err) {
				t.Errorf("not a scale: %v", err)
			}
			if n := c.replicas(c.obj); n != 2 {
				t.Errorf("refused scales left %d replicas", n)
			}
			want.UID, want.ResourceVersion = "", ""
			if err := scale.Set(c.obj, want); err != nil || c.replicas(c.obj) != 3 {
				t.Errorf("%d replicas, %v", c.replicas(c.obj), err)
			}
			if m, _ := meta.Accessor(c.obj); m.GetResourceVersion() != "" {
				t.Errorf("the scale's resourceVersion decides, not %s", m.GetResourceVersion())
			}
		})
	}
}

func TestDeleteRules(t *testing.T) {
	list := kinds.Builtin(kinds.Deps{})

	classes := list.Find("scheduling.k8s.io", "v1", "priorityclasses")
	if _, err := classes.CheckDelete(t.Context(), "system-node-critical", nil); !apierrors.IsForbidden(err) {
		t.Errorf("a system class is deleted: %v", err)
	}
	if _, err := classes.CheckDelete(t.Context(), "mine", nil); err != nil {
		t.Error(err)
	}

	jobs := list.Find("batch", "v1", "jobs")
	ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{APIGroup: "batch", APIVersion: "v1"})
	background := metav1.DeletePropagationBackground
	if warning, err := jobs.CheckDelete(ctx, "", &metav1.DeleteOptions{}); err != nil || warning == "" {
		t.Errorf("%q, %v", warning, err)
	}
	if warning, err := jobs.CheckDelete(ctx, "", &metav1.DeleteOptions{PropagationPolicy: &background}); err != nil || warning != "" {
		t.Errorf("%q, %v", warning, err)
	}

	ns := &core.Namespace{Spec: core.NamespaceSpec{Finalizers: []core.FinalizerName{core.FinalizerKubernetes}}}
	linger := list.Find("", "v1", "namespaces").Linger
	linger.Mark(ns)
	if ns.Status.Phase != core.NamespaceTerminating || !linger.Held(ns) {
		t.Errorf("a full namespace is let go in phase %s", ns.Status.Phase)
	}
	ns.Spec.Finalizers = nil
	if linger.Held(ns) {
		t.Error("an empty namespace is held")
	}
}

func TestResetFields(t *testing.T) {
	pods := kinds.Builtin(kinds.Deps{}).Find("", "v1", "pods")
	for name, s := range map[string]rest.RESTUpdateStrategy{"pods": pods.Update, "status": pods.Subresources["status"].Update} {
		if len(kinds.ResetFields(s)) == 0 {
			t.Errorf("%s resets fields", name)
		}
	}
	for _, name := range []string{"resize", "ephemeralcontainers"} {
		if got := kinds.ResetFields(pods.Subresources[name].Update); got != nil {
			t.Errorf("%s resets %v", name, got)
		}
	}
}

// TestNilDeps writes what has to be asked about, with nobody to ask.
func TestNilDeps(t *testing.T) {
	list := kinds.Builtin(kinds.Deps{})
	for kind, spec := range map[string]string{
		"admissionregistration.k8s.io/validatingadmissionpolicies":       `{"paramKind":{"apiVersion":"v1","kind":"ConfigMap"}}`,
		"admissionregistration.k8s.io/validatingadmissionpolicybindings": `{"policyName":"p","paramRef":{"name":"x"}}`,
		"admissionregistration.k8s.io/mutatingadmissionpolicybindings":   `{"policyName":"p","paramRef":{"name":"x"}}`,
		"resource.k8s.io/resourceclaims":                                 `{"devices":{"requests":[{"name":"a","exactly":{"deviceClassName":"c","allocationMode":"ExactCount","count":1,"adminAccess":true}}]}}`,
	} {
		group, name, _ := strings.Cut(kind, "/")
		r := list.Find(group, "v1", name)
		obj, err := r.Scheme.New(r.GroupVersionKind("v1"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(`{"metadata":{"name":"it"},"spec":`+spec+`}`), obj); err != nil {
			t.Fatal(err)
		}
		internal, err := r.Scheme.ConvertToVersion(obj, schema.GroupVersion{Group: group, Version: runtime.APIVersionInternal})
		if err != nil {
			t.Fatal(err)
		}
		ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{APIGroup: group, APIVersion: "v1", Resource: name})
		if errs := r.Create.Validate(ctx, internal); len(errs) == 0 {
			t.Errorf("%s: allowed without asking", kind)
		}
	}
}

func BenchmarkBuiltin(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		kinds.Builtin(kinds.Deps{})
	}
}
