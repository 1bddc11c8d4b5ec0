package discovery_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/server/discovery"
)

const (
	aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	protobuf   = "application/vnd.kubernetes.protobuf"
)

var builtin = kinds.Builtin(kinds.Deps{})

func newServer(list func() *kinds.List) *discovery.Server {
	return discovery.New(list, codec.New(legacyscheme.Scheme), "192.0.2.1:6443")
}

func ask(s http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func read[T any](t *testing.T, w *httptest.ResponseRecorder) T {
	t.Helper()
	var into T
	if err := json.Unmarshal(w.Body.Bytes(), &into); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %v: %.200s", w.Code, err, w.Body)
	}
	return into
}

// Whoever reads document by document learns the same as who reads all at once.
func TestBothFormsSayTheSame(t *testing.T) {
	s := newServer(func() *kinds.List { return builtin })
	one := map[string]metav1.APIResource{}
	groups := read[metav1.APIGroupList](t, ask(s, "GET", "/apis")).Groups
	paths := []string{"/api/v1"}
	for _, g := range groups {
		for _, v := range g.Versions {
			paths = append(paths, "/apis/"+v.GroupVersion)
		}
		if single := read[metav1.APIGroup](t, ask(s, "GET", "/apis/"+g.Name)); !cmp.Equal(single.Versions, g.Versions) {
			t.Errorf("%s: %v alone, %v among others", g.Name, single.Versions, g.Versions)
		}
	}
	for _, path := range paths {
		for _, r := range read[metav1.APIResourceList](t, ask(s, "GET", path)).APIResources {
			one[path+" "+r.Name] = r
		}
	}
	seen := map[string]bool{}
	check := func(root, group, version, name, kind string, namespaced bool, verbs []string) {
		t.Helper()
		path := root + "/" + group + "/" + version
		if group == "" {
			path = root + "/" + version
		}
		key := path + " " + name
		seen[key] = true
		r, there := one[key]
		if !there || r.Kind != kind || r.Namespaced != namespaced || !slices.Equal(r.Verbs, verbs) {
			t.Errorf("%s: %s %v %v at once, %+v alone", key, kind, namespaced, verbs, r)
		}
	}
	for _, root := range []string{"/api", "/apis"} {
		for _, g := range read[apidiscovery.APIGroupDiscoveryList](t, ask(s, "GET", root, "Accept", aggregated)).Items {
			for _, v := range g.Versions {
				for _, r := range v.Resources {
					namespaced := r.Scope == apidiscovery.ScopeNamespace
					if r.ResponseKind != nil {
						check(root, g.Name, v.Version, r.Resource, r.ResponseKind.Kind, namespaced, r.Verbs)
					}
					for _, sub := range r.Subresources {
						check(root, g.Name, v.Version, r.Resource+"/"+sub.Subresource, sub.ResponseKind.Kind, namespaced, sub.Verbs)
					}
				}
			}
		}
	}
	for key := range one {
		if !seen[key] {
			t.Errorf("%s is not in the aggregated form", key)
		}
	}
	if len(one) < 100 {
		t.Errorf("%d resources", len(one))
	}
}

func TestDocumentsInEveryEncoding(t *testing.T) {
	s := newServer(func() *kinds.List { return builtin })
	for _, test := range []struct{ accept, media string }{
		{"", codec.JSON},
		{"*/*", codec.JSON},
		{"application/*", codec.JSON},
		{"application/json", codec.JSON},
		{"application/yaml", codec.YAML},
		{protobuf, codec.Protobuf},
		{"text/html, application/yaml", codec.YAML},
		{"application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,application/json", codec.JSON},
	} {
		t.Run(test.accept, func(t *testing.T) {
			w := ask(s, "GET", "/apis/apps/v1", "Accept", test.accept)
			if w.Code != http.StatusOK || w.Header().Get("Content-Type") != test.media || w.Header().Get("Vary") != "Accept" {
				t.Fatalf("%d %v", w.Code, w.Header())
			}
			var l metav1.APIResourceList
			switch test.media {
			case codec.Protobuf:
				if _, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(w.Body.Bytes(), nil, &l); err != nil {
					t.Fatal(err)
				}
			default:
				if err := yaml.Unmarshal(w.Body.Bytes(), &l); err != nil {
					t.Fatal(err)
				}
			}
			if l.GroupVersion != "apps/v1" || !slices.ContainsFunc(l.APIResources, func(r metav1.APIResource) bool { return r.Name == "deployments/scale" && r.Group == "autoscaling" }) {
				t.Errorf("%+v", l)
			}
		})
	}
}

func TestAggregatedDocumentsAreSentWhenTheyHaveChanged(t *testing.T) {
	list := builtin
	s := newServer(func() *kinds.List { return list })
	first := ask(s, "GET", "/apis", "Accept", aggregated)
	tag := first.Header().Get("ETag")
	if first.Code != http.StatusOK || tag == "" || !strings.HasSuffix(first.Header().Get("Content-Type"), "as=APIGroupDiscoveryList") {
		t.Fatalf("%d %v", first.Code, first.Header())
	}
	if w := ask(s, "GET", "/apis", "Accept", aggregated, "If-None-Match", tag); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
		t.Errorf("unchanged: %d with %d bytes", w.Code, w.Body.Len())
	}
	list = kinds.NewList(slices.DeleteFunc(slices.Clone(builtin.All()), func(r *kinds.Resource) bool { return r.Group == "batch" }))
	w := ask(s, "GET", "/apis", "Accept", aggregated, "If-None-Match", tag)
	if w.Code != http.StatusOK || w.Header().Get("ETag") == tag || strings.Contains(w.Body.String(), `"batch"`) {
		t.Errorf("changed: %d %v", w.Code, w.Header())
	}
	if w := ask(s, "GET", "/apis/batch/v1"); w.Code != http.StatusNotFound {
		t.Errorf("a group that is gone: %d", w.Code)
	}
}

func TestTheOldestDocument(t *testing.T) {
	got := read[metav1.APIVersions](t, ask(newServer(func() *kinds.List { return builtin }), "GET", "/api/"))
	want := metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: "192.0.2.1:6443"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRefusals(t *testing.T) {
	s := newServer(func() *kinds.List { return builtin })
	for _, test := range []struct {
		method, path, accept string
		code                 int
		status               bool // it is a Status, not a page
	}{
		{"GET", "/apis/none", "", http.StatusNotFound, false},
		{"GET", "/apis/none/v1", "", http.StatusNotFound, false},
		{"GET", "/apis/apps/v9", "", http.StatusNotFound, true},
		{"GET", "/api/v9", "", http.StatusNotFound, true},
		{"GET", "/apis/apps/v1", "text/html", http.StatusNotAcceptable, true},
		{"GET", "/apis", "text/html", http.StatusNotAcceptable, true},
		{"POST", "/api/v1", "", http.StatusMethodNotAllowed, true},
		{"DELETE", "/apis/apps/v1", "", http.StatusMethodNotAllowed, true},
		{"POST", "/apis/apps", "", http.StatusOK, false},
	} {
		t.Run(test.method+" "+test.path+" "+test.accept, func(t *testing.T) {
			w := ask(s, test.method, test.path, "Accept", test.accept)
			var status metav1.Status
			isStatus := json.Unmarshal(w.Body.Bytes(), &status) == nil && status.Kind == "Status"
			if w.Code != test.code || isStatus != test.status || isStatus && int(status.Code) != test.code {
				t.Errorf("%d: %s", w.Code, w.Body)
			}
		})
	}
}
