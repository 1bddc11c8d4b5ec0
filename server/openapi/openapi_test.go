package openapi_test

import (
	"crypto/sha512"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi3"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/server/openapi"
)

var reference = flag.String("reference", "", "`folder` with kube-apiserver's documents, to show differences; files are named like their paths below /openapi, with - for /")

// builtin is the list of kinds that kube-apiserver serves.
func builtin() *kinds.List {
	return kinds.Builtin(kinds.Deps{})
}

// few is a list of one kind.
func few() *kinds.List {
	return kinds.NewList([]*kinds.Resource{builtin().Find("apiextensions.k8s.io", "v1", "customresourcedefinitions")})
}

var everyVerb = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// fetch gets a path as it is, without a transport that expands bodies or
// follows redirects.
func fetch(t *testing.T, h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func serve(list *kinds.List) *openapi.Server {
	return openapi.New(func() *kinds.List { return list }, "v1.36.3")
}

type index struct {
	Paths map[string]struct{ ServerRelativeURL string }
}

func readIndex(t *testing.T, b []byte) map[string]*url.URL {
	t.Helper()
	var in index
	if err := json.Unmarshal(b, &in); err != nil {
		t.Fatal(err)
	}
	urls := map[string]*url.URL{}
	for name, entry := range in.Paths {
		u, err := url.Parse(entry.ServerRelativeURL)
		if err != nil {
			t.Fatal(err)
		}
		urls[name] = u
	}
	return urls
}

// upstreams is the list of kinds that kube-apiserver serves today.
func upstreams() *kinds.List {
	return kinds.NewList(slices.DeleteFunc(slices.Clone(builtin().All()), func(r *kinds.Resource) bool { return r.Name == "initializerconfigurations" }))
}

// Every document is kube-apiserver's, byte for byte, when what initializers add
// to it is left out. Its index, which is the
// golden file, has the SHA-512 of each. That of v2, where the fields of an
// operation's kind come in another order, is taken with fields sorted.
//
// To remake the file, start kube-apiserver with no flags that change what is
// served but those for storagemigration.k8s.io/v1beta1 (see kinds/testdata)
// and take /openapi/v3. When a document of ours changes on purpose, the
// constant revision goes up.
func TestDocumentsAreUpstreams(t *testing.T) {
	const v2 = "7DD44E8E178C4AA16BD1EA71972C5A597E0300031D9B330777A7B90AA33DB31C79CF806595544AE72C5BC77B0375A9452D7ADEC49AD388AC5233E1A5196616AC"
	golden, err := os.ReadFile("testdata/kube-apiserver-1.36.3.json")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"v2": v2}
	for name, u := range readIndex(t, golden) {
		want["v3/"+name] = u.Query().Get("hash")
	}
	list := upstreams()
	s := openapi.NewPlain(func() *kinds.List { return list }, "v1.36.3")
	got := map[string]string{"v2": ""}
	for name := range readIndex(t, fetch(t, s, "/openapi/v3").Body.Bytes()) {
		got["v3/"+name] = ""
	}
	for name := range got {
		b := fetch(t, s, "/openapi/"+name).Body.Bytes()
		if name == "v2" {
			b = sorted(t, b)
		}
		got[name] = fmt.Sprintf("%X", sha512.Sum512(b))
		if got[name] != want[name] && *reference != "" {
			t.Logf("%s (-want +got)\n%s", name, difference(t, name, b))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hashes of documents (-want +got)\n%s", diff)
	}
}

const metaV1 = "io.k8s.apimachinery.pkg.apis.meta.v1."

// sorted is a document with its fields in order.
func sorted(t *testing.T, b []byte) []byte {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What initializers add is there for clients that look for it.
func TestInitializersAreDescribed(t *testing.T) {
	s := serve(builtin())
	var doc spec3.OpenAPI
	if err := json.Unmarshal(fetch(t, s, "/openapi/v3/apis/admissionregistration.k8s.io/v1alpha1").Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	const kind = "io.k8s.api.admissionregistration.v1alpha1.InitializerConfiguration"
	config := doc.Components.Schemas[kind]
	if config == nil {
		t.Fatalf("no %s", kind)
	}
	want := []any{map[string]any{"group": "admissionregistration.k8s.io", "version": "v1alpha1", "kind": "InitializerConfiguration"}}
	if diff := cmp.Diff(want, config.Extensions["x-kubernetes-group-version-kind"]); diff != "" {
		t.Errorf("kinds (-want +got)\n%s", diff)
	}
	for _, name := range []string{"ObjectMeta", "Initializers", "Initializer"} {
		if doc.Components.Schemas[metaV1+name] == nil {
			t.Errorf("no %s", name)
		}
	}
	for path, has := range map[string]bool{
		"/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations":               true,
		"/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations/{name}":        false,
		"/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations/{name}/status": false,
	} {
		item := doc.Paths.Paths[path]
		if item == nil {
			t.Errorf("no %s", path)
			continue
		}
		if slices.ContainsFunc(item.Get.Parameters, func(p *spec3.Parameter) bool { return p.Name == "includeUninitialized" }) != has {
			t.Errorf("%s has the parameter: %t", path, !has)
		}
	}
}

func difference(t *testing.T, name string, b []byte) string {
	t.Helper()
	ref, err := os.ReadFile(filepath.Join(*reference, strings.ReplaceAll(name, "/", "-")))
	if err != nil {
		return err.Error()
	}
	var want, got any
	for from, to := range map[*any][]byte{&want: ref, &got: b} {
		if err := json.Unmarshal(to, from); err != nil {
			return err.Error()
		}
	}
	return cmp.Diff(want, got)
}

// What clients make of the documents, in the encodings that they ask for.
func TestClients(t *testing.T) {
	srv := httptest.NewServer(serve(builtin()))
	defer srv.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}

	v3 := openapi3.NewRoot(client.OpenAPIV3())
	gvs, err := v3.GroupVersions()
	if err != nil {
		t.Fatal(err)
	}
	if apps := (schema.GroupVersion{Group: "apps", Version: "v1"}); !slices.Contains(gvs, apps) {
		t.Errorf("%v is missing in %v", apps, gvs)
	}
	doc, err := v3.GVSpec(schema.GroupVersion{Version: "v1"}) // as protobuf
	if err != nil {
		t.Fatal(err)
	}
	if op := doc.Paths.Paths["/api/v1/namespaces/{namespace}/pods/{name}"]; op == nil || op.Patch == nil || op.Patch.OperationId != "patchCoreV1NamespacedPod" {
		t.Error("no operation patches a pod")
	}

	v2, err := client.OpenAPISchema() // as protobuf
	if err != nil {
		t.Fatal(err)
	}
	if n := len(v2.GetPaths().GetPath()); n < 400 {
		t.Errorf("v2 has %d paths", n)
	}
}

func TestNegotiation(t *testing.T) {
	s := serve(few())
	const path = "/openapi/v3/apis/apiextensions.k8s.io/v1"
	const pb2, pb3 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	for _, test := range []struct {
		name, path, accept string
		code               int
		contentType        string
	}{
		{"nothing asked", path, "", 200, "application/json"},
		{"anything", path, "*/*", 200, "application/json"},
		{"JSON", path, "application/json", 200, "application/json"},
		{"protobuf", path, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf", 200, pb3},
		{"protobuf without @", path, pb3, 200, pb3},
		{"first of several", path, "text/html, " + pb3 + ", application/json;q=0.5", 200, pb3},
		{"heaviest of several", path, pb3 + ";q=0.5, application/json", 200, "application/json"},
		{"unknown", path, "text/html", 406, ""},
		{"protobuf of another version", path, pb2, 406, ""},
		{"v2 protobuf", "/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf", 200, pb2},
		{"v2 JSON", "/openapi/v2", "", 200, "application/json"},
		{"index", "/openapi/v3", pb3, 200, "application/json"},
		{"group that is not served", "/openapi/v3/apis/apps/v1", "", 404, ""},
		{"version that is not served", "/openapi/v3/apis/apiextensions.k8s.io/v1beta1", "", 404, ""},
		{"no document", "/openapi/v3/", "", 404, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			resp := fetch(t, s, test.path, "Accept", test.accept)
			if got := resp.Header().Get("Content-Type"); resp.Code != test.code || got != test.contentType {
				t.Errorf("got %d %q, want %d %q", resp.Code, got, test.code, test.contentType)
			}
		})
	}
}

func TestCaching(t *testing.T) {
	s := serve(few())
	urls := readIndex(t, fetch(t, s, "/openapi/v3").Body.Bytes())
	current := urls["apis/apiextensions.k8s.io/v1"]
	etag := `"` + current.Query().Get("hash") + `"`

	for _, path := range []string{"/openapi/v2", "/openapi/v3", current.Path} {
		resp := fetch(t, s, path)
		tag := resp.Header().Get("Etag")
		if tag == "" || resp.Header().Get("Cache-Control") != "" {
			t.Errorf("%s: Etag %q, Cache-Control %q", path, tag, resp.Header().Get("Cache-Control"))
		}
		if path == current.Path && tag != etag {
			t.Errorf("%s: Etag %s is not the hash %s of the index", path, tag, etag)
		}
		for _, header := range []string{tag, `"other", ` + tag, "W/" + tag} {
			if resp = fetch(t, s, path, "If-None-Match", header); resp.Code != http.StatusNotModified || len(resp.Body.Bytes()) != 0 {
				t.Errorf("%s If-None-Match %s: %d", path, header, resp.Code)
			}
		}
		if resp = fetch(t, s, path, "If-None-Match", `"other"`); resp.Code != http.StatusOK {
			t.Errorf("%s If-None-Match other: %d", path, resp.Code)
		}
	}

	resp := fetch(t, s, current.String())
	if resp.Code != http.StatusOK || resp.Header().Get("Cache-Control") != "public, immutable" || resp.Header().Get("Expires") == "" {
		t.Errorf("with its hash: %d %v", resp.Code, resp.Header())
	}
	resp = fetch(t, s, current.Path+"?hash=OLD")
	if resp.Code != http.StatusMovedPermanently || resp.Header().Get("Location") != current.String() {
		t.Errorf("with an old hash: %d to %s", resp.Code, resp.Header().Get("Location"))
	}
}

func TestCompression(t *testing.T) {
	s := serve(few())
	for header, want := range map[string]string{
		"": "", "gzip": "gzip", "deflate, gzip;q=0.5": "gzip", "*": "gzip", "gzip;q=0": "", "identity": "", "br": "",
	} {
		for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/version"} {
			resp := fetch(t, s, path, "Accept-Encoding", header)
			b := resp.Body.Bytes()
			if got := resp.Header().Get("Content-Encoding"); got != want || (b[0] == '{') != (want == "") {
				t.Errorf("%s, %q: Content-Encoding %q, starts with %q", path, header, got, b[:1])
			}
		}
	}
}

func TestOnlyReading(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/openapi/v2", http.NoBody)
	w := httptest.NewRecorder()
	serve(kinds.NewList(nil)).ServeHTTP(w, r)
	if w.Code != http.StatusMethodNotAllowed {
		t.Error(w.Code)
	}
}

// widgets are of a kind that is not compiled in. It counts how often objects
// are asked for, as only the making of a document does.
type widgets struct {
	kinds.Scheme
	description string
	needs       []string // definitions
	asked       atomic.Int32
	described   atomic.Int32 // how often its definition was made
}

func (w *widgets) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	w.asked.Add(1)
	return nil, runtime.NewNotRegisteredErrForKind("widgets", kind)
}

func (w *widgets) OpenAPIDigest() string { return w.description }

func (w *widgets) OpenAPIDefinition(_ schema.GroupVersionKind, ref common.ReferenceCallback) common.OpenAPIDefinition {
	w.described.Add(1)
	const metadata = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
	return common.OpenAPIDefinition{
		Schema: *new(spec.Schema).Typed("object", "").WithDescription(w.description).
			SetProperty("metadata", spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(metadata)}}),
		Dependencies: append([]string{metadata}, w.needs...),
	}
}

func custom(group string, s kinds.Scheme) *kinds.Resource {
	return &kinds.Resource{
		Group: group, Name: "widgets", Kind: "Widget", Namespaced: true,
		Versions: []string{"v1"}, Scheme: s, Verbs: everyVerb,
		Subresources: map[string]*kinds.Subresource{
			"turn":  {Name: "turn", Kind: schema.GroupVersionKind{Kind: "TurnOptions"}, Verbs: []string{"create", "get"}},
			"scale": {Name: "scale", Kind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}, Verbs: []string{"get", "patch", "update"}},
		},
	}
}

// Nothing is made before it is asked for, nor twice, nor again when another
// kind changes.
func TestLaziness(t *testing.T) {
	a, b := &widgets{}, &widgets{}
	listed := 0
	list := kinds.NewList([]*kinds.Resource{custom("a.example.org", a), custom("b.example.org", b)})
	s := openapi.New(func() *kinds.List { listed++; return list }, "1.36")
	if listed != 0 {
		t.Error("New asks for the list")
	}
	expect := func(when string, wantA, wantB int32) {
		t.Helper()
		if gotA, gotB := a.asked.Load(), b.asked.Load(); gotA != wantA || gotB != wantB {
			t.Errorf("%s: made %d and %d times, want %d and %d", when, gotA, gotB, wantA, wantB)
		}
	}
	before := readIndex(t, fetch(t, s, "/openapi/v3").Body.Bytes())
	fetch(t, s, "/openapi/v3/version")
	expect("after the index", 0, 0)
	const pathA = "/openapi/v3/apis/a.example.org/v1"
	fetch(t, s, pathA+"?hash=OLD")
	expect("after a redirect", 0, 0)
	fetch(t, s, pathA)
	fetch(t, s, pathA)
	fetch(t, s, pathA, "Accept", "application/com.github.proto-openapi.spec.v3@v1.0+protobuf")
	expect("after a document", 1, 0)
	if gotA, gotB := a.described.Load(), b.described.Load(); gotA != 1 || gotB != 0 {
		t.Errorf("after a document, definitions were made %d and %d times, want that of its group alone", gotA, gotB)
	}
	fetch(t, s, "/openapi/v2")
	fetch(t, s, "/openapi/v2")
	expect("after v2", 2, 1)

	b = &widgets{description: "changed"}
	list = kinds.NewList([]*kinds.Resource{list.All()[0], custom("b.example.org", b)})
	after := readIndex(t, fetch(t, s, "/openapi/v3").Body.Bytes())
	for name := range before {
		if same := *before[name] == *after[name]; same == (name == "apis/b.example.org/v1") {
			t.Errorf("%s: from %s to %s", name, before[name], after[name])
		}
	}
	fetch(t, s, pathA)
	fetch(t, s, "/openapi/v3/apis/b.example.org/v1")
	expect("after a change", 2, 1)
}

// Kinds that are not compiled in come with a schema of their own, or with a
// general one.
func TestCustomKinds(t *testing.T) {
	s := serve(kinds.NewList([]*kinds.Resource{
		custom("a.example.org", &widgets{description: "a thing"}),
		custom("b.example.org", struct{ kinds.Scheme }{runtime.NewScheme()}),
		custom("c.example.org", &widgets{description: "lost", needs: []string{"nowhere"}}),
		custom("a-example.org", &widgets{}), // operations are named like those of a.example.org
	}))
	for group, want := range map[string]string{"a": "a thing", "b": "", "c": ""} {
		var doc spec3.OpenAPI
		if err := json.Unmarshal(fetch(t, s, "/openapi/v3/apis/"+group+".example.org/v1").Body.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		name := "org.example." + group + ".v1.Widget"
		widget := doc.Components.Schemas[name]
		if widget == nil || doc.Components.Schemas[name+"List"] == nil {
			t.Fatalf("%s or its list is missing", name)
		}
		if widget.Description != want {
			t.Errorf("%s: description %q, want %q", name, widget.Description, want)
		}
		kind := []any{map[string]any{"group": group + ".example.org", "version": "v1", "kind": "Widget"}}
		if diff := cmp.Diff(kind, widget.Extensions["x-kubernetes-group-version-kind"]); diff != "" {
			t.Error(name, diff)
		}
		root := "/apis/" + group + ".example.org/v1/"
		patch := doc.Paths.Paths[root+"namespaces/{namespace}/widgets/{name}"].Patch
		if patch.RequestBody.Content["application/strategic-merge-patch+json"] != nil {
			t.Error(name, "takes strategic merge patches")
		}
		if doc.Paths.Paths[root+"watch/widgets"] != nil {
			t.Error(name, "is watched by path")
		}
		scale := doc.Paths.Paths[root+"namespaces/{namespace}/widgets/{name}/scale"].Get
		if got := scale.Responses.StatusCodeResponses[200].Content["application/json"].Schema.Ref.String(); got != "#/components/schemas/io.k8s.api.autoscaling.v1.Scale" {
			t.Error(name, "scale is a", got)
		}
	}
	if resp := fetch(t, s, "/openapi/v2"); resp.Code != http.StatusOK {
		t.Errorf("v2: %s", resp.Body.Bytes())
	}
}

func BenchmarkFirst(b *testing.B) {
	list := builtin()
	for _, path := range []string{"v3", "v3/version", "v3/apis/apps/v1", "v3/api/v1", "v2"} {
		for encoding, accept := range map[string]string{"json": "application/json", "protobuf": "application/com.github.proto-openapi.spec." + path[:2] + "@v1.0+protobuf"} {
			b.Run(strings.ReplaceAll(path, "/", "-")+"-"+encoding, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/openapi/"+path, http.NoBody)
					r.Header.Set("Accept", accept)
					r.Header.Set("Accept-Encoding", "gzip")
					w := httptest.NewRecorder()
					serve(list).ServeHTTP(w, r)
					if w.Code != http.StatusOK {
						b.Fatal(w.Code)
					}
				}
			})
		}
	}
}
