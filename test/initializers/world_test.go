// Package initializers_test lets objects wait for initializers, as clients see
// it: over HTTP, in JSON and protobuf, with a built-in kind and a custom one.
package initializers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// object is one in JSON.
type object = map[string]any

// world is a control plane, a namespace of it, and a way to speak of one kind.
type world struct {
	t         *testing.T
	ctx       context.Context // ends with the test
	plane     *apptest.Plane
	http      *http.Client
	namespace string
	speech
}

// row is something that holds of every kind in every representation.
type row struct {
	name  string // with the section or the trap that it is about
	holds func(*world)
	// not says of which speeches there is nothing to hold, and why.
	not map[string]string
	// long says that it takes its time. It runs beside others, and configures
	// nothing outside of its namespace.
	long bool
}

// inEach shows rows of every kind and representation on one control plane. Each
// has a namespace of its own, and what it configures goes with it.
func inEach(t *testing.T, cfg app.Config, rows ...row) {
	t.Helper()
	w := begin(t, cfg)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			if r.long {
				t.Parallel()
			}
			for _, s := range speeches {
				t.Run(s.name, func(t *testing.T) {
					if r.long {
						t.Parallel()
					}
					if why := r.not[s.name]; why != "" {
						t.Skip(why)
					}
					r.holds(w.row(t, s))
				})
			}
		})
	}
}

// begin starts a control plane that has all kinds that are spoken of.
func begin(t *testing.T, cfg app.Config) *world {
	t.Helper()
	if cfg.Data == "" {
		cfg.Data = app.Memory
	}
	cfg.EndAtOnce = true
	w := &world{t: t, ctx: t.Context(), plane: apptest.StartOn(t, cfg), namespace: "default", speech: speeches[0]}
	w.http = client(t, w.plane.Config)
	if got := w.do("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgets); got.code != http.StatusCreated && got.code != http.StatusConflict {
		t.Fatal(got)
	}
	return w
}

// TestMain lets rows that take their time wait together, however few processors
// there are.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

var namespaces atomic.Int64

// row is the world of one row.
func (w *world) row(t *testing.T, s speech) *world {
	t.Helper()
	one := *w
	one.t, one.ctx, one.speech = t, t.Context(), s
	one.namespace = fmt.Sprintf("row-%d", namespaces.Add(1))
	if got := one.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"`+one.namespace+`"}}`); got.code != http.StatusCreated {
		t.Fatal(got)
	}
	one.atEnd(one.path())
	return &one
}

// of is the world with another kind, in the same representation.
func (w *world) of(s speech) *world {
	other := *w
	s.protobuf = w.protobuf
	other.speech = s
	return &other
}

// atEnd removes what is at a path when the test has ended.
func (w *world) atEnd(path string) {
	w.t.Cleanup(func() {
		after := *w
		after.ctx = context.Background()
		if got := after.do("DELETE", path, `{"gracePeriodSeconds":0}`); got.code != http.StatusOK && got.code != http.StatusNotFound {
			w.t.Errorf("%s is not removed: %v", path, got)
		}
	})
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
	if account, is := strings.CutPrefix(user, "system:serviceaccount:"); is {
		namespace, _, _ := strings.Cut(account, ":")
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

// metadata is that of the object, or of the list, that came back.
func (a answer) metadata() object {
	m, _ := a.body["metadata"].(object)
	return m
}

// do sends a request in JSON.
func (w *world) do(method, path, body string, headers ...string) answer {
	w.t.Helper()
	return w.send(method, path, []byte(body), append([]string{"Accept", jsonType, "Content-Type", jsonType}, headers...)...)
}

const (
	jsonType      = "application/json"
	mergeType     = "application/merge-patch+json"
	strategicType = "application/strategic-merge-patch+json"
)

func (w *world) send(method, path string, body []byte, headers ...string) answer {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.ctx, method, w.plane.URL+path, bytes.NewReader(body))
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
		return answer{body: object{"message": err.Error()}}
	}
	a := answer{code: response.StatusCode, header: response.Header}
	for _, warning := range response.Header.Values("Warning") {
		a.warnings = append(a.warnings, strings.TrimSuffix(strings.TrimPrefix(warning, `299 - "`), `"`))
	}
	if isProtobuf(got) {
		a.body = fromProtobuf(w.t, got)
	} else if err := json.Unmarshal(got, &a.body); err != nil && len(got) > 0 {
		a.body = object{"message": string(got)}
	}
	return a
}

// write sends an object in the representation of the world, if its kind has
// that.
func (w *world) write(method, path string, body object) answer {
	w.t.Helper()
	text := encode(w.t, body)
	if raw := w.inProtobuf(text); raw != nil {
		return w.send(method, path, raw, "Accept", w.accepts(), "Content-Type", protobufType)
	}
	return w.send(method, path, text, "Accept", jsonType, "Content-Type", jsonType)
}

// inProtobuf is an object in protobuf, nil where it is spoken of in JSON.
func (w *world) inProtobuf(text []byte) []byte {
	if !w.protobuf {
		return nil
	}
	return toProtobuf(w.t, text)
}

// accepts is what answers may be in.
func (w *world) accepts() string {
	if w.protobuf {
		return protobufType + "," + jsonType
	}
	return jsonType
}

// read gets a path in the representation of the world.
func (w *world) read(path string) answer {
	w.t.Helper()
	return w.send("GET", path, nil, "Accept", w.accepts())
}

// patch patches an object. Patches are JSON for everybody; what comes back is in
// the representation of the world.
func (w *world) patch(name, media, patch string) answer {
	w.t.Helper()
	return w.send("PATCH", w.path()+"/"+name, []byte(patch), "Accept", w.accepts(), "Content-Type", media)
}

func (w *world) merge(name, patch string) answer {
	w.t.Helper()
	return w.patch(name, mergeType, patch)
}

// done takes all initializers off.
func (w *world) done(name string) {
	w.t.Helper()
	if got := w.merge(name, `{"metadata":{"initializers":null}}`); got.code != http.StatusOK {
		w.t.Fatalf("complete %s: %v", name, got)
	}
}

// add creates an object that the test needs.
func (w *world) add(path string, obj object) {
	w.t.Helper()
	if got := w.do("POST", path, string(encode(w.t, obj))); got.code != http.StatusCreated {
		w.t.Fatal(got)
	}
}

// make creates an object that the test needs, and removes it when the test has
// ended.
func (w *world) make(path string, obj object) {
	w.t.Helper()
	w.add(path, obj)
	w.atEnd(path + "/" + obj["metadata"].(object)["name"].(string))
}

func encode(t *testing.T, obj object) []byte {
	t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const configurations = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations"

// configure makes a configuration.
func (w *world) configure(name string, initializers ...object) {
	w.t.Helper()
	w.make(configurations, configuration(name, initializers...))
}

func configuration(name string, initializers ...object) object {
	return object{"metadata": object{"name": name}, "initializers": initializers}
}

// own is a name for an initializer that no other row has: what the server has
// seen of one is not forgotten at once.
func (w *world) own(name string) string { return name + "." + w.namespace + ".k8s.io" }

// forAll is an initializer for all objects of the world's kind; more says the
// rest of it, in pairs.
func (w *world) forAll(name string, more ...any) object {
	o := object{"name": name, "rules": []any{w.rule()}}
	for i := 0; i < len(more); i += 2 {
		o[more[i].(string)] = more[i+1]
	}
	return o
}

// here is like forAll, for objects of the world's namespace alone.
func (w *world) here(name string, more ...any) object {
	return w.forAll(name, append(more, "namespaceSelector", w.itsNamespace())...)
}

// itsNamespace selects that of the world.
func (w *world) itsNamespace() object {
	return object{"matchLabels": object{"kubernetes.io/metadata.name": w.namespace}}
}

func (w *world) rule() object {
	return object{"apiGroups": []any{w.group}, "apiVersions": []any{"*"}, "resources": []any{w.resource}}
}

// run is how an initializer is told of that runs as an account of the row's
// namespace.
func (w *world) run(account string) object {
	return object{"serviceAccount": object{"namespace": w.namespace, "name": account}}
}

// user is an account of the row's namespace.
func (w *world) user(account string) string {
	return "system:serviceaccount:" + w.namespace + ":" + account
}

// allow lets a user do something with the kind.
func (w *world) allow(user string, verbs ...string) {
	w.t.Helper()
	w.grant(user, object{"apiGroups": []any{w.group}, "resources": []any{w.resource}, "verbs": verbs})
}

// grant lets a user do what rules say.
func (w *world) grant(user string, rules ...object) {
	w.t.Helper()
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	name := object{"name": strings.ReplaceAll(user, ":", "-")}
	w.make(rbac+"clusterroles", object{"metadata": maps.Clone(name), "rules": rules})
	w.make(rbac+"clusterrolebindings", object{
		"metadata": maps.Clone(name), "subjects": []any{object{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}},
		"roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name["name"]},
	})
}

// within is what comes in time.
func within(t *testing.T, got <-chan answer) answer {
	t.Helper()
	select {
	case a := <-got:
		return a
	case <-time.After(2 * time.Minute):
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
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}
