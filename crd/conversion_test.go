package crd_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/cert"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/crd"
	"setpoint.dev/setpoint/kinds"
)

// review is a ConversionReview, of either version.
type review struct {
	metav1.TypeMeta `json:",inline"`
	Request         *struct {
		UID               string            `json:"uid"`
		DesiredAPIVersion string            `json:"desiredAPIVersion"`
		Objects           []json.RawMessage `json:"objects"`
	} `json:"request,omitempty"`
	Response map[string]any `json:"response,omitempty"`
}

// converted is a good answer: the objects in the version that is wanted, with
// a field that tells who did it.
func converted(t testing.TB, r *review) []any {
	t.Helper()
	var objects []any
	for _, raw := range r.Request.Objects {
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Error(err)
			continue
		}
		m["apiVersion"] = r.Request.DesiredAPIVersion
		if spec, ok := m["spec"].(map[string]any); ok {
			spec["by"] = r.APIVersion
		}
		objects = append(objects, m)
	}
	return objects
}

func answer(r *review, objects []any) map[string]any {
	return map[string]any{"uid": r.Request.UID, "result": map[string]any{"status": "Success"}, "convertedObjects": objects}
}

// serveWebhook runs a webhook over TLS that answers reviews by means of reply.
func serveWebhook(t testing.TB, reply func(w http.ResponseWriter, r *review)) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r := &review{}
		if err := json.NewDecoder(req.Body).Decode(r); err != nil {
			t.Error(err)
		}
		reply(w, r)
	}))
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func bundle(s *httptest.Server) string {
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// versioned is a definition in two versions that a webhook converts between.
func versioned(t testing.TB, plural, kind, url, ca, reviews string) *unstructured.Unstructured {
	t.Helper()
	u := definition(t, plural, kind, open)
	versions := read(t, fmt.Sprintf(`
versions:
- {name: v1, served: true, storage: true, schema: {openAPIV3Schema: %[1]s}}
- {name: v2, served: true, storage: false, schema: {openAPIV3Schema: %[1]s}}
conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [%[2]s], clientConfig: {url: %[3]q, caBundle: %[4]q}}}
`, open, reviews, url, ca))
	spec := u.Object["spec"].(map[string]any)
	spec["versions"], spec["conversion"] = versions.Object["versions"], versions.Object["conversion"]
	return u
}

func TestConversionByWebhook(t *testing.T) {
	say := func(change func(r *review, objects []any) map[string]any) func(http.ResponseWriter, *review) {
		return func(w http.ResponseWriter, r *review) {
			r.Response = change(r, converted(t, r))
			r.Request = nil
			_ = json.NewEncoder(w).Encode(r) // the server has gone
		}
	}
	metadata := func(change func(m map[string]any)) func(http.ResponseWriter, *review) {
		return say(func(r *review, objects []any) map[string]any {
			change(objects[0].(map[string]any)["metadata"].(map[string]any))
			return answer(r, objects)
		})
	}
	tests := []struct {
		name    string
		reviews string
		reply   func(http.ResponseWriter, *review)
		// by is who converted; want is the error otherwise.
		by, want string
	}{
		{"v1", "v1", say(answer), "apiextensions.k8s.io/v1", ""},
		{"v1beta1", "v1beta1", say(answer), "apiextensions.k8s.io/v1beta1", ""},
		{"the first that is known", "v7, v1beta1, v1", say(answer), "apiextensions.k8s.io/v1beta1", ""},
		{"labels may change", "v1", metadata(func(m map[string]any) { m["labels"] = map[string]any{"new": "label"} }), "apiextensions.k8s.io/v1", ""},
		{"refusal", "v1", say(func(r *review, _ []any) map[string]any {
			return map[string]any{"uid": r.Request.UID, "result": map[string]any{"status": "Failure", "message": "not today"}}
		}), "", "not today"},
		{"garbage", "v1", func(w http.ResponseWriter, _ *review) { _, _ = w.Write([]byte("garbage")) }, "", "couldn't get version/kind"},
		{"no response", "v1", say(func(*review, []any) map[string]any { return nil }), "", "no response provided"},
		{"server error", "v1", func(w http.ResponseWriter, _ *review) { http.Error(w, "broken", http.StatusInternalServerError) }, "", "an error on the server (\"broken\")"},
		{"wrong UID", "v1", say(func(r *review, objects []any) map[string]any {
			a := answer(r, objects)
			a["uid"] = "other"
			return a
		}), "", "expected response.uid"},
		{"wrong number", "v1", say(func(r *review, objects []any) map[string]any { return answer(r, append(objects, objects[0])) }), "", "returned 2 objects, expected 1"},
		{"no objects", "v1", say(func(r *review, _ []any) map[string]any { return answer(r, nil) }), "", "returned 0 objects, expected 1"},
		{"wrong version", "v1", say(func(r *review, objects []any) map[string]any {
			objects[0].(map[string]any)["apiVersion"] = "example.org/v9"
			return answer(r, objects)
		}), "", "invalid groupVersion"},
		{"wrong kind", "v1", say(func(r *review, objects []any) map[string]any {
			objects[0].(map[string]any)["kind"] = "Other"
			return answer(r, objects)
		}), "", "invalid kind"},
		{"other name", "v1", metadata(func(m map[string]any) { m["name"] = "other" }), "", "must have the same name"},
		{"other UID of the object", "v1", metadata(func(m map[string]any) { m["uid"] = "other" }), "", "must have the same UID"},
		{"no metadata", "v1", say(func(r *review, objects []any) map[string]any {
			delete(objects[0].(map[string]any), "metadata")
			return answer(r, objects)
		}), "", "must have the same name"},
		{"bad label", "v1", metadata(func(m map[string]any) { m["labels"] = map[string]any{"a b": "c d"} }), "", "metadata.labels"},
		{"finalizers are not its business", "v1", metadata(func(m map[string]any) { m["finalizers"] = []any{"example.org/x"} }), "apiextensions.k8s.io/v1", ""},
	}
	c := client(t, apptest.Start(t))
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			hook := serveWebhook(t, tt.reply)
			plural, kind := fmt.Sprintf("hooks%d", i), fmt.Sprintf("Hook%d", i)
			if _, err := c.Resource(definitions).Create(t.Context(), versioned(t, plural, kind, hook.URL, bundle(hook), tt.reviews), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			v1, v2 := resource(plural), resource(plural)
			v2.Version = "v2"
			if _, err := c.Resource(v1).Create(t.Context(), object(t, kind, "a"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			got, err := c.Resource(v2).Get(t.Context(), "a", metav1.GetOptions{})
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if tt.by != "" {
				if err != nil {
					t.Fatal(err)
				}
				if by, _, _ := unstructured.NestedString(got.Object, "spec", "by"); by != tt.by || got.GetAPIVersion() != "example.org/v2" || len(got.GetFinalizers()) > 0 {
					t.Errorf("got %v", got)
				}
			}
			// Whatever the webhook does, what is stored is there.
			if stored, err := c.Resource(v1).Get(t.Context(), "a", metav1.GetOptions{}); err != nil || stored.GetName() != "a" {
				t.Errorf("the stored object: %v, %v", stored, err)
			}
		})
	}
}

// A webhook may be named by a service. It is reached where the service says, and
// has to prove that it is the service.
func TestConversionByAService(t *testing.T) {
	c := client(t, apptest.Start(t))
	ctx := t.Context()
	certificate, key, err := cert.GenerateSelfSignedCertKey("hook.default.svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r := &review{}
		if err := json.NewDecoder(req.Body).Decode(r); err != nil || req.URL.Path != "/convert" {
			t.Errorf("%s: %v", req.URL, err)
		}
		r.Response = answer(r, converted(t, r))
		r.Request = nil
		_ = json.NewEncoder(w).Encode(r) // the server has gone
	}))
	hook.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	hook.StartTLS()
	t.Cleanup(hook.Close)
	port := int64(hook.Listener.Addr().(*net.TCPAddr).Port)
	put := func(resource schema.GroupVersionResource, text string) {
		t.Helper()
		if _, err := c.Resource(resource).Namespace("default").Create(ctx, read(t, text), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	services := schema.GroupVersionResource{Version: "v1", Resource: "services"}
	for _, name := range []string{"hook", "other"} {
		put(services, fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {type: ExternalName, externalName: localhost}}", name))
	}
	put(services, fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: idle}, spec: {ports: [{name: https, port: %d}]}}", port))
	put(schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: idle, labels: {kubernetes.io/service-name: idle}}
addressType: IPv4
ports: [{name: https, port: 443}]
endpoints: [{addresses: [192.0.2.1], conditions: {ready: false}}]
`)
	defined := func(plural, kind, service, reviews string) schema.GroupVersionResource {
		t.Helper()
		u := versioned(t, plural, kind, "", base64.StdEncoding.EncodeToString(certificate), reviews)
		_ = unstructured.SetNestedMap(u.Object, map[string]any{
			"caBundle": base64.StdEncoding.EncodeToString(certificate),
			"service":  map[string]any{"name": service, "namespace": "default", "path": "/convert", "port": port},
		}, "spec", "conversion", "webhook", "clientConfig") // it has one
		if _, err := c.Resource(definitions).Create(ctx, u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Resource(resource(plural)).Create(ctx, object(t, kind, "a"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		v2 := resource(plural)
		v2.Version = "v2"
		return v2
	}
	for _, version := range []string{"v1", "v1beta1"} {
		v2 := defined("found"+version, "Found"+version, "hook", version)
		got, err := c.Resource(v2).Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if by, _, _ := unstructured.NestedString(got.Object, "spec", "by"); by != "apiextensions.k8s.io/"+version {
			t.Errorf("got %v", got)
		}
	}
	refused := func(v2 schema.GroupVersionResource, kind, want string) {
		t.Helper()
		_, err := c.Resource(v2).Get(ctx, "a", metav1.GetOptions{})
		if begins := "conversion webhook for example.org/v1, Kind=" + kind + " failed: "; err == nil || !strings.Contains(err.Error(), begins) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s…%s", err, begins, want)
		}
		v1 := v2
		v1.Version = "v1"
		if _, err := c.Resource(v1).Get(ctx, "a", metav1.GetOptions{}); err != nil {
			t.Errorf("the stored object: %v", err)
		}
	}
	refused(defined("others", "Other", "other", "v1"), "Other", "certificate is valid for hook.default.svc, not other.default.svc")
	refused(defined("nones", "None", "none", "v1"), "None", `service "none" not found`)
	refused(defined("idles", "Idle", "idle", "v1"), "Idle", `no endpoints available for service "idle"`)
}

// fixed is a source of one definition that never changes.
type fixed struct{ stored crd.Stored }

func (f fixed) Revision() uint64 { return f.stored.Revision }
func (f fixed) Since(context.Context, uint64) ([]crd.Stored, bool, uint64, error) {
	return []crd.Stored{f.stored}, true, f.stored.Revision, nil
}

func (f fixed) Wait(ctx context.Context, _ uint64) error {
	<-ctx.Done()
	return ctx.Err()
}

// accepted is a definition as the store has it when its names are accepted.
func accepted(t testing.TB, u *unstructured.Unstructured) fixed {
	t.Helper()
	u.Object["status"] = map[string]any{
		"acceptedNames": u.Object["spec"].(map[string]any)["names"],
		"conditions":    []any{map[string]any{"type": "Established", "status": "True"}},
	}
	value, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	return fixed{crd.Stored{Name: u.GetName(), Revision: 7, Value: value}}
}

func TestAWebhookThatHangsIsGivenUp(t *testing.T) {
	released := make(chan struct{})
	var asked atomic.Int32
	hook := serveWebhook(t, func(http.ResponseWriter, *review) {
		asked.Add(1)
		<-released
	})
	defer close(released)
	u := versioned(t, "hangs", "Hang", hook.URL, bundle(hook), "v1")
	r := crd.NewRegistry(kinds.NewList(nil), accepted(t, u), &crd.Conversion{Timeout: 100 * time.Millisecond}, slog.New(slog.DiscardHandler))
	// On a busy machine the time may be over before the webhook is reached.
	for end := time.Now().Add(2 * time.Minute); asked.Load() == 0; {
		_, err := r.Kinds().Find("example.org", "v2", "hangs").Scheme.ConvertToVersion(object(t, "Hang", "a"), schema.GroupVersion{Group: "example.org", Version: "v2"})
		if err == nil || !strings.Contains(err.Error(), "conversion webhook for example.org/v1, Kind=Hang failed") {
			t.Fatalf("got %v", err)
		}
		if time.Now().After(end) {
			t.Fatal("the webhook was not asked")
		}
	}
}

func TestAServiceThatCannotBeFoundIsAnError(t *testing.T) {
	u := versioned(t, "lost", "Lost", "https://127.0.0.1:1/", "", "v1")
	hook := u.Object["spec"].(map[string]any)["conversion"].(map[string]any)["webhook"].(map[string]any)
	hook["clientConfig"] = map[string]any{"service": map[string]any{"name": "nobody", "namespace": "nowhere", "port": int64(443)}}
	r := crd.NewRegistry(kinds.NewList(nil), accepted(t, u), &crd.Conversion{Timeout: time.Second}, slog.New(slog.DiscardHandler))
	_, err := r.Kinds().Find("example.org", "v2", "lost").Scheme.ConvertToVersion(object(t, "Lost", "a"), schema.GroupVersion{Group: "example.org", Version: "v2"})
	if err == nil || !strings.Contains(err.Error(), "conversion webhook for") {
		t.Errorf("got %v", err)
	}
}

func TestADefinitionIsReadWhenItIsUsed(t *testing.T) {
	r := crd.NewRegistry(kinds.NewList(nil), accepted(t, definition(t, "lazies", "Lazy", open)), &crd.Conversion{}, slog.New(slog.DiscardHandler))
	found := r.Kinds().Find("example.org", "v1", "lazies")
	if found == nil {
		t.Fatal("the kind is not served")
	}
	if n := r.Used(); n != 0 {
		t.Errorf("%d definitions are read in full before they are used", n)
	}
	if err := found.Custom.Ready(); err != nil {
		t.Fatal(err)
	}
	if n := r.Used(); n != 1 {
		t.Errorf("%d definitions are read in full after one was used", n)
	}
}

func TestObjectsStoredByOtherRulesAreReadByTodays(t *testing.T) {
	c := client(t, apptest.Start(t))
	ctx := t.Context()
	if _, err := c.Resource(definitions).Create(ctx, definition(t, "stales", "Stale", open), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	before, err := c.Resource(resource("stales")).Create(ctx, object(t, "Stale", "a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change := []byte(`[{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value":
		{"type": "object", "properties": {"spec": {"type": "object", "properties": {"b": {"type": "string", "default": "new"}}}}}}]`)
	if _, err := c.Resource(definitions).Patch(ctx, "stales.example.org", "application/json-patch+json", change, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	check := func(what string, u *unstructured.Unstructured) {
		t.Helper()
		spec, _, _ := unstructured.NestedMap(u.Object, "spec")
		if len(spec) != 1 || spec["b"] != "new" || u.GetResourceVersion() != before.GetResourceVersion() {
			t.Errorf("%s: %v", what, u)
		}
	}
	got, err := c.Resource(resource("stales")).Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check("get", got)
	list, err := c.Resource(resource("stales")).List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatal(list, err)
	}
	check("list", &list.Items[0])
	w, err := c.Resource(resource("stales")).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e := <-w.ResultChan()
	u, ok := e.Object.(runtime.Unstructured).(*unstructured.Unstructured)
	if !ok {
		t.Fatalf("event %v", e)
	}
	check("watch", u)
}
