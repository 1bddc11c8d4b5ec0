// Package initializers_test lets objects wait for initializers, as clients see
// it: over HTTP, in JSON and protobuf, with a built-in kind and a custom one.
package initializers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// object is one in JSON.
type object = map[string]any

// world is a control plane and a way to speak to it of one kind.
type world struct {
	t     *testing.T
	plane *apptest.Plane
	http  *http.Client
	speech
}

// speech is a kind, and the representation that it is spoken of in.
type speech struct {
	name string
	// group and resource are what rules name.
	group, resource string
	path            string // of the kind's objects in namespace default
	kind, version   string
	spec            object
	protobuf        bool
}

var speeches = []speech{
	{name: "pods in JSON", resource: "pods", path: "/api/v1/namespaces/default/pods", kind: "Pod", version: "v1", spec: podSpec},
	{name: "pods in protobuf", resource: "pods", path: "/api/v1/namespaces/default/pods", kind: "Pod", version: "v1", spec: podSpec, protobuf: true},
	{
		name: "a custom kind", group: "example.org", resource: "widgets", path: "/apis/example.org/v1/namespaces/default/widgets",
		kind: "Widget", version: "example.org/v1", spec: object{"size": 1},
	},
}

var podSpec = object{"containers": []any{object{"name": "app", "image": "app:1"}}}

const widgets = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.org"},
"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// inEach runs a test for every kind and representation, each with a control
// plane of its own.
func inEach(t *testing.T, test func(*world)) {
	for _, s := range speeches {
		t.Run(s.name, func(t *testing.T) { test(begin(t, app.Config{}, s)) })
	}
}

// begin starts a control plane.
func begin(t *testing.T, cfg app.Config, s speech) *world {
	t.Helper()
	if cfg.Data == "" {
		cfg.Data = app.Memory
	}
	w := &world{t: t, plane: apptest.StartOn(t, cfg), speech: s}
	w.http = client(t, w.plane.Config)
	if s.group == "example.org" {
		if got := w.do("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgets); got.code != http.StatusCreated && got.code != http.StatusConflict {
			t.Fatal(got)
		}
	}
	return w
}

func client(t *testing.T, cfg *rest.Config) *http.Client {
	t.Helper()
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// as is the world of a user.
func (w *world) as(user string) *world {
	w.t.Helper()
	other := *w
	cfg := rest.CopyConfig(w.plane.Config)
	cfg.Impersonate.UserName = user
	if namespace, name, is := strings.Cut(strings.TrimPrefix(user, "system:serviceaccount:"), ":"); is && strings.HasPrefix(user, "system:serviceaccount:") && name != "" {
		cfg.Impersonate.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
	}
	other.http = client(w.t, cfg)
	return &other
}

// answer is what a request got.
type answer struct {
	code     int
	header   http.Header
	body     object
	warnings []string
}

func (a answer) String() string {
	text, _ := json.Marshal(a.body)
	return fmt.Sprintf("%d %s %q", a.code, text, a.warnings)
}

func (a answer) message() string {
	text, _ := a.body["message"].(string)
	return text
}

// do sends a request in JSON.
func (w *world) do(method, path, body string, headers ...string) answer {
	return w.send(context.Background(), method, path, []byte(body), append([]string{"Accept", "application/json", "Content-Type", "application/json"}, headers...)...)
}

func (w *world) send(ctx context.Context, method, path string, body []byte, headers ...string) answer {
	w.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, w.plane.URL+path, bytes.NewReader(body))
	if err != nil {
		w.t.Error(err)
		return answer{}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := w.http.Do(r)
	if err != nil {
		return answer{body: object{"message": err.Error()}}
	}
	defer func() { _ = response.Body.Close() }()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Error(err)
	}
	a := answer{code: response.StatusCode, header: response.Header}
	for _, warning := range response.Header.Values("Warning") {
		a.warnings = append(a.warnings, strings.TrimSuffix(strings.TrimPrefix(warning, `299 - "`), `"`))
	}
	if bytes.HasPrefix(got, magic) {
		got = fromProtobuf(w.t, got)
	}
	if err := json.Unmarshal(got, &a.body); err != nil && len(got) > 0 {
		a.body = object{"message": string(got)}
	}
	return a
}

// write sends an object in the representation of the world.
func (w *world) write(ctx context.Context, method, path string, body object) answer {
	w.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	if !w.protobuf {
		return w.send(ctx, method, path, text, "Accept", "application/json", "Content-Type", "application/json")
	}
	return w.send(ctx, method, path, toProtobuf(w.t, text), "Accept", protobufType+",application/json", "Content-Type", protobufType)
}

// read gets a path in the representation of the world.
func (w *world) read(path string) answer {
	w.t.Helper()
	accept := "application/json"
	if w.protobuf {
		accept = protobufType + ",application/json"
	}
	return w.send(context.Background(), "GET", path, nil, "Accept", accept)
}

// thing is an object of the kind. initializers may be nil: then the field is
// not there.
func (w *world) thing(name string, initializers any) object {
	metadata := object{"name": name, "namespace": "default"}
	if initializers != nil {
		metadata["initializers"] = initializers
	}
	return object{"apiVersion": w.version, "kind": w.kind, "metadata": metadata, "spec": w.spec}
}

// pending is a list of initializers.
func pending(names ...string) object {
	list := []any{}
	for _, name := range names {
		list = append(list, object{"name": name})
	}
	return object{"pending": list}
}

// pendingOf are the names that an object waits for; nil when it has no such
// field.
func pendingOf(obj object) []string {
	metadata, _ := obj["metadata"].(object)
	field, _ := metadata["initializers"].(object)
	if field == nil {
		return nil
	}
	names := []string{}
	entries, _ := field["pending"].([]any)
	for _, e := range entries {
		entry, _ := e.(object)
		name, _ := entry["name"].(string)
		names = append(names, name)
	}
	return names
}

// create creates an object and waits for the answer.
func (w *world) create(name string, initializers any, query string) answer {
	w.t.Helper()
	return w.write(context.Background(), "POST", w.path+query, w.thing(name, initializers))
}

// creating creates an object; its answer comes when it comes.
func (w *world) creating(name string, initializers any, query string) <-chan answer {
	got := make(chan answer, 1)
	go func() { got <- w.create(name, initializers, query) }()
	return got
}

// waits returns once the object is stored, and what it waits for.
func (w *world) waits(name string) []string {
	w.t.Helper()
	for range 600 {
		if got := w.get(name); got.code == http.StatusOK {
			return pendingOf(got.body)
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatalf("%s is not stored", name)
	return nil
}

func (w *world) get(name string) answer {
	w.t.Helper()
	return w.read(w.path + "/" + name)
}

// list are the names of the objects that a list has.
func (w *world) list(query string) []string {
	w.t.Helper()
	got := w.do("GET", w.path+query, "")
	names := []string{}
	items, _ := got.body["items"].([]any)
	for _, i := range items {
		metadata, _ := i.(object)["metadata"].(object)
		name, _ := metadata["name"].(string)
		names = append(names, name)
	}
	return names
}

// merge patches an object.
func (w *world) merge(name, patch string) answer {
	w.t.Helper()
	return w.do("PATCH", w.path+"/"+name, patch, "Content-Type", "application/merge-patch+json")
}

// done takes all initializers off.
func (w *world) done(name string) {
	w.t.Helper()
	if got := w.merge(name, `{"metadata":{"initializers":null}}`); got.code != http.StatusOK {
		w.t.Fatalf("complete %s: %v", name, got)
	}
}

// configure makes a configuration. Each initializer is a name, or an object.
func (w *world) configure(name string, initializers ...object) {
	w.t.Helper()
	text, err := json.Marshal(object{"apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "InitializerConfiguration", "metadata": object{"name": name}, "initializers": initializers})
	if err != nil {
		w.t.Fatal(err)
	}
	if got := w.do("POST", configurations, string(text)); got.code != http.StatusCreated {
		w.t.Fatalf("configuration %s: %v", name, got)
	}
}

const configurations = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations"

// forAll is an initializer for all objects of the world's kind; more says the
// rest of it, in pairs.
func (w *world) forAll(name string, more ...any) object {
	o := object{"name": name, "rules": []any{w.rule()}}
	for i := 0; i < len(more); i += 2 {
		o[more[i].(string)] = more[i+1]
	}
	return o
}

func (w *world) rule() object {
	return object{"apiGroups": []any{w.group}, "apiVersions": []any{"*"}, "resources": []any{w.resource}}
}

// within is what comes in time.
func within(t *testing.T, got <-chan answer) answer {
	t.Helper()
	select {
	case a := <-got:
		return a
	case <-time.After(20 * time.Second):
		t.Fatal("no answer")
		return answer{}
	}
}

// still says that there is no answer yet.
func still(t *testing.T, got <-chan answer) {
	t.Helper()
	select {
	case a := <-got:
		t.Fatalf("an answer already: %v", a)
	case <-time.After(150 * time.Millisecond):
	}
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}

const protobufType = "application/vnd.kubernetes.protobuf"

var magic = []byte("k8s\x00")

// The numbers of the fields that today's Go types do not have, or that wrap
// them.
const (
	metadataField     = 1  // of every object
	initializersField = 16 // of ObjectMeta
)

// toProtobuf is a pod in protobuf, with its initializers in the field that
// Kubernetes 1.7 to 1.15 had them in.
func toProtobuf(t *testing.T, text []byte) []byte {
	t.Helper()
	var pod corev1.Pod
	if err := json.Unmarshal(text, &pod); err != nil {
		t.Fatal(err)
	}
	raw, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var of struct {
		Metadata struct {
			Initializers *struct {
				Pending []struct{ Name string }
				Result  json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &of); err != nil {
		t.Fatal(err)
	}
	if list := of.Metadata.Initializers; list != nil {
		if list.Result != nil {
			t.Fatal("results are sent in JSON")
		}
		var field []byte
		for _, p := range list.Pending {
			entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), p.Name)
			field = protowire.AppendBytes(protowire.AppendTag(field, 1, protowire.BytesType), entry)
		}
		// A second part of a message is merged into the first.
		metadata := protowire.AppendBytes(protowire.AppendTag(nil, initializersField, protowire.BytesType), field)
		raw = protowire.AppendBytes(protowire.AppendTag(raw, metadataField, protowire.BytesType), metadata)
		raw = mergeFirst(t, raw)
	}
	wrapped := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: raw}
	body, err := wrapped.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(slices.Clone(magic), body...)
}

// mergeFirst puts the parts of a pod's metadata together, as encoders do.
func mergeFirst(t *testing.T, raw []byte) []byte {
	t.Helper()
	var metadata, rest []byte
	fields(t, raw, func(number protowire.Number, value, all []byte) {
		if number == metadataField {
			metadata = append(metadata, value...)
		} else {
			rest = append(rest, all...)
		}
	})
	return append(protowire.AppendBytes(protowire.AppendTag(nil, metadataField, protowire.BytesType), metadata), rest...)
}

// fields tells of the fields of a message, with their bytes where that is what
// they are.
func fields(t *testing.T, message []byte, tell func(number protowire.Number, value, all []byte)) {
	t.Helper()
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		m := protowire.ConsumeFieldValue(number, kind, message[n:])
		if m < 0 {
			t.Fatal(protowire.ParseError(m))
		}
		var value []byte
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message[n:])
		}
		tell(number, value, message[:n+m])
		message = message[n+m:]
	}
}

// fromProtobuf is an answer in protobuf as JSON.
func fromProtobuf(t *testing.T, body []byte) []byte {
	t.Helper()
	var wrapped runtime.Unknown
	if err := wrapped.Unmarshal(body[len(magic):]); err != nil {
		t.Fatal(err)
	}
	if wrapped.Kind != "Pod" {
		return statusFromProtobuf(t, wrapped.Raw)
	}
	var pod corev1.Pod
	if err := pod.Unmarshal(wrapped.Raw); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(&pod)
	if err != nil {
		t.Fatal(err)
	}
	var obj object
	if err := json.Unmarshal(text, &obj); err != nil {
		t.Fatal(err)
	}
	fields(t, wrapped.Raw, func(number protowire.Number, metadata, _ []byte) {
		if number != metadataField {
			return
		}
		fields(t, metadata, func(number protowire.Number, list, _ []byte) {
			if number == initializersField {
				obj["metadata"].(object)["initializers"] = listFromProtobuf(t, list)
			}
		})
	})
	text, err = json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func listFromProtobuf(t *testing.T, list []byte) object {
	t.Helper()
	var names []string
	fields(t, list, func(number protowire.Number, entry, _ []byte) {
		if number == 1 {
			fields(t, entry, func(_ protowire.Number, name, _ []byte) { names = append(names, string(name)) })
		}
	})
	return pending(names...)
}

func statusFromProtobuf(t *testing.T, raw []byte) []byte {
	t.Helper()
	var status metav1.Status
	if err := status.Unmarshal(raw); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(&status)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
