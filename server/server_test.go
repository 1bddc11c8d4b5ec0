package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/server/audit"
	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine/embedded"
)

// as is a client that acts as a user; "" is the admin.
func as(t *testing.T, p *apptest.Plane, name string, groups ...string) *kubernetes.Clientset {
	t.Helper()
	cfg := rest.CopyConfig(p.Config)
	if name != "" {
		cfg.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func must[T any](t *testing.T) func(got T, err error) T {
	return func(got T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
}

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func reading(resource string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}}}
}

func bindTo(role string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: meta(role), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}},
	}
}

func TestNobodyGrantsMoreThanTheyHave(t *testing.T) {
	p := apptest.Start(t)
	ctx := t.Context()
	admin := as(t, p, "")
	must[*rbacv1.RoleBinding](t)(admin.RbacV1().RoleBindings("default").Create(ctx, bindTo("admin"), metav1.CreateOptions{}))
	must[*rbacv1.Role](t)(admin.RbacV1().Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: meta("nodes"), Rules: reading("nodes")}, metav1.CreateOptions{}))
	rbac := as(t, p, "alice").RbacV1()
	roles, bindings := rbac.Roles("default"), rbac.RoleBindings("default")
	must[*rbacv1.Role](t)(roles.Create(ctx, &rbacv1.Role{ObjectMeta: meta("own"), Rules: reading("pods")}, metav1.CreateOptions{}))
	more := &rbacv1.Role{ObjectMeta: meta("own"), Rules: reading("nodes")}
	raw := must[[]byte](t)(json.Marshal(more))
	applied := func(name string) []byte {
		return []byte(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"` + name + `"},"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["nodes"]}]}`)
	}
	for _, test := range []struct {
		name    string
		write   func() error
		allowed bool
	}{
		{"create", func() error {
			_, err := roles.Create(ctx, &rbacv1.Role{ObjectMeta: meta("other"), Rules: reading("nodes")}, metav1.CreateOptions{})
			return err
		}, false},
		{"create, dry", func() error {
			_, err := roles.Create(ctx, &rbacv1.Role{ObjectMeta: meta("other"), Rules: reading("nodes")}, metav1.CreateOptions{DryRun: []string{"All"}})
			return err
		}, false},
		{"update", func() error { _, err := roles.Update(ctx, more, metav1.UpdateOptions{}); return err }, false},
		{"update that creates", func() error {
			_, err := roles.Update(ctx, &rbacv1.Role{ObjectMeta: meta("new"), Rules: reading("nodes")}, metav1.UpdateOptions{})
			return err
		}, false},
		{"merge patch", func() error {
			_, err := roles.Patch(ctx, "own", types.MergePatchType, raw, metav1.PatchOptions{})
			return err
		}, false},
		{"strategic patch", func() error {
			_, err := roles.Patch(ctx, "own", types.StrategicMergePatchType, raw, metav1.PatchOptions{})
			return err
		}, false},
		{"JSON patch", func() error {
			_, err := roles.Patch(ctx, "own", types.JSONPatchType, []byte(`[{"op":"replace","path":"/rules/0/resources/0","value":"nodes"}]`), metav1.PatchOptions{})
			return err
		}, false},
		{"apply", func() error {
			_, err := roles.Patch(ctx, "own", types.ApplyPatchType, applied("own"), metav1.PatchOptions{FieldManager: "me", Force: new(true)})
			return err
		}, false},
		{"apply that creates", func() error {
			_, err := roles.Patch(ctx, "fresh", types.ApplyPatchType, applied("fresh"), metav1.PatchOptions{FieldManager: "me"})
			return err
		}, false},
		{"finalizers of a greater role", func() error {
			_, err := roles.Patch(ctx, "nodes", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.org/x"]}}`), metav1.PatchOptions{})
			return err
		}, true},
		{"labels of a greater role", func() error {
			_, err := roles.Patch(ctx, "nodes", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
			return err
		}, false},
		{"bind less", func() error { _, err := bindings.Create(ctx, bindTo("view"), metav1.CreateOptions{}); return err }, true},
		{"bind more", func() error {
			_, err := bindings.Create(ctx, bindTo("cluster-admin"), metav1.CreateOptions{})
			return err
		}, false},
		{"for the cluster", func() error {
			_, err := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta("x"), Rules: reading("pods")}, metav1.CreateOptions{})
			return err
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.write()
			if test.allowed && err != nil || !test.allowed && !apierrors.IsForbidden(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTheImpersonatorIsRemembered(t *testing.T) {
	dir := t.TempDir()
	p := apptest.StartOn(t, app.Config{Data: dir})
	ctx := t.Context()
	must[*corev1.ConfigMap](t)(as(t, p, "alice", "system:masters").CoreV1().ConfigMaps("default").
		Create(ctx, &corev1.ConfigMap{ObjectMeta: meta("cm")}, metav1.CreateOptions{}))
	p.Stop()
	e := must[*embedded.Engine](t)(embedded.Open(ctx, embedded.Config{Dir: filepath.Join(dir, "store")}))
	s := must[*store.Store](t)(store.Open(ctx, store.Config{Engine: e}))
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	n := 0
	for c, err := range s.History(ctx, store.Main, "configmaps", "default/cm") {
		if err != nil {
			t.Fatal(err)
		}
		n++
		by := must[store.Provenance](t)(c.Provenance())
		if by.User != "alice" || by.Impersonator == "" || by.Impersonator == "alice" {
			t.Errorf("written by %q through %q", by.User, by.Impersonator)
		}
	}
	if n != 1 {
		t.Errorf("%d changes", n)
	}
}

func TestNodesReadWhatTheirPodsNeed(t *testing.T) {
	p := apptest.Start(t)
	ctx := t.Context()
	admin := as(t, p, "").CoreV1()
	for _, name := range []string{"mine", "other"} {
		must[*corev1.Secret](t)(admin.Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: meta(name)}, metav1.CreateOptions{}))
	}
	pod := &corev1.Pod{ObjectMeta: meta("web"), Spec: corev1.PodSpec{
		NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "mine"}}}},
	}}
	must[*corev1.Pod](t)(admin.Pods("default").Create(ctx, pod, metav1.CreateOptions{}))
	node := as(t, p, "system:node:n1", "system:nodes").CoreV1()
	eventually(t, "the node reads its secret", func() bool {
		_, err := node.Secrets("default").Get(ctx, "mine", metav1.GetOptions{})
		return err == nil
	})
	if _, err := node.Secrets("default").Get(ctx, "other", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another secret: %v", err)
	}
	if _, err := node.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}); err != nil {
		t.Errorf("its pods: %v", err)
	}
	if _, err := node.Pods("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("all pods: %v", err)
	}
	if err := admin.Pods("default").Delete(ctx, "web", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node no longer reads the secret", func() bool {
		_, err := node.Secrets("default").Get(ctx, "mine", metav1.GetOptions{})
		return apierrors.IsForbidden(err)
	})
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}

const policy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
- level: None
  nonResourceURLs: ["/livez*"]
- level: Request
  omitStages: [RequestReceived]
  resources: [{group: "", resources: [configmaps]}]
- level: RequestResponse
`

func TestAudit(t *testing.T) {
	dir := t.TempDir()
	path, rules := filepath.Join(dir, "audit.log"), filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(rules, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	p := apptest.StartOn(t, app.Config{Data: app.Memory, Audit: audit.Config{Path: path, PolicyFile: rules}})
	ctx := t.Context()
	admin := as(t, p, "")
	core := admin.CoreV1()
	must[*corev1.ConfigMap](t)(core.ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: meta("cm"), Data: map[string]string{"k": "told-by-name"}}, metav1.CreateOptions{}))
	must[*corev1.Secret](t)(core.Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: meta("s"), StringData: map[string]string{"k": "hidden-secret"}}, metav1.CreateOptions{}))
	must[*corev1.Service](t)(core.Services("default").Create(ctx, &corev1.Service{ObjectMeta: meta("svc"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}))
	_, err := as(t, p, "bob").CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
	if !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	w := must[interface{ Stop() }](t)(func() (interface{ Stop() }, error) {
		return core.Services("default").Watch(ctx, metav1.ListOptions{})
	}())
	w.Stop()
	get(t, p, "/livez", "")
	get(t, p, "/version", "Bearer no-such-token")
	p.Stop()
	raw := must[[]byte](t)(os.ReadFile(path))
	for _, hidden := range []string{"hidden-secret", "aGlkZGVuLXNlY3JldA", "no-such-token", "managedFields", "/livez"} {
		if bytes.Contains(raw, []byte(hidden)) {
			t.Errorf("%s is in the log", hidden)
		}
	}
	events := map[string]auditv1.Event{}
	for line := range bytes.Lines(raw) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		what := e.RequestURI
		if e.ObjectRef != nil {
			what = e.ObjectRef.Resource
		}
		events[e.Verb+" "+what+" "+string(e.Stage)] = e
	}
	keys := func() string { return strings.Join(slices.Sorted(keysOf(events)), "\n") }
	for what, good := range map[string]func(e auditv1.Event) bool{
		"create configmaps ResponseComplete": func(e auditv1.Event) bool {
			return e.RequestObject != nil && e.ResponseObject == nil && e.ResponseStatus.Code == 201 && e.ObjectRef.Name == "cm" && bytes.Contains(e.RequestObject.Raw, []byte("told-by-name"))
		},
		"create secrets RequestReceived": func(auditv1.Event) bool { return true },
		"create secrets ResponseComplete": func(e auditv1.Event) bool {
			return e.Level == auditv1.LevelMetadata && e.RequestObject == nil && e.ResponseObject == nil && e.ObjectRef.Name == "s"
		},
		"create services ResponseComplete": func(e auditv1.Event) bool {
			return e.RequestObject != nil && e.ResponseObject != nil && bytes.Contains(e.ResponseObject.Raw, []byte(`"uid"`)) && e.User.Username != ""
		},
		"get nodes ResponseComplete": func(e auditv1.Event) bool {
			return e.ImpersonatedUser.Username == "bob" && e.ResponseStatus.Code == 403 && e.ResponseStatus.Reason == metav1.StatusReasonForbidden
		},
		"watch services ResponseStarted":  func(e auditv1.Event) bool { return e.ResponseStatus.Code == 200 },
		"watch services ResponseComplete": func(e auditv1.Event) bool { return e.ResponseObject == nil },
		"get /version ResponseComplete":   func(e auditv1.Event) bool { return e.ResponseStatus.Code == 401 },
	} {
		if e, ok := events[what]; !ok || !good(e) {
			t.Errorf("%s: there %v: %+v", what, ok, e)
		}
	}
	if _, ok := events["create configmaps RequestReceived"]; ok {
		t.Error("an omitted stage is told")
	}
	if t.Failed() {
		t.Log(keys())
	}
}

func keysOf(m map[string]auditv1.Event) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// get reads a path, with the admin's certificate when there is no
// authorization.
func get(t *testing.T, p *apptest.Plane, path, authorization string) (int, string) {
	t.Helper()
	cfg := rest.CopyConfig(p.Config)
	if authorization != "" {
		cfg.CertData, cfg.KeyData = nil, nil
	}
	client := must[*http.Client](t)(rest.HTTPClientFor(cfg))
	req := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL+path, http.NoBody))
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	res := must[*http.Response](t)(client.Do(req)) //nolint:bodyclose // closed below
	defer res.Body.Close()                         //nolint:errcheck // it is read
	return res.StatusCode, string(must[[]byte](t)(io.ReadAll(res.Body)))
}

func TestMetrics(t *testing.T) {
	p := apptest.Start(t)
	ctx := t.Context()
	core := as(t, p, "").CoreV1()
	must[*corev1.ConfigMap](t)(core.ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: meta("cm")}, metav1.CreateOptions{}))
	w := must[interface{ Stop() }](t)(func() (interface{ Stop() }, error) {
		w, err := core.ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
		if err == nil {
			<-w.ResultChan()
		}
		return w, err
	}())
	defer w.Stop()
	get(t, p, "/apis/made.up/v1/things", "")
	code, text := get(t, p, "/metrics", "")
	if code != 200 {
		t.Fatalf("%d: %s", code, text)
	}
	for _, want := range []string{
		`apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",subresource="",verb="POST",version="v1"} 1`,
		`apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="",scope="",subresource="",verb="LIST",version=""} 1`,
		`apiserver_longrunning_requests{component="apiserver",group="",resource="configmaps",scope="namespace",subresource="",verb="WATCH",version="v1"} 1`,
		`apiserver_watch_events_total{group="",resource="configmaps",version="v1"} `,
		`apiserver_storage_objects{resource="clusterroles.rbac.authorization.k8s.io"} `,
		`apiserver_current_inflight_requests{request_kind="readOnly"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s", want)
		}
	}
	cfg := rest.CopyConfig(p.Config)
	cfg.Impersonate.UserName = "bob"
	client := must[*http.Client](t)(rest.HTTPClientFor(cfg))
	res := must[*http.Response](t)(client.Get(p.URL + "/metrics")) //nolint:bodyclose // closed below
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("anybody: %d %v", res.StatusCode, err)
	}
}

func TestEventsExpire(t *testing.T) {
	dir := t.TempDir()
	p := apptest.StartOn(t, app.Config{Data: dir, EventTTL: time.Hour})
	ctx := t.Context()
	event := func(name string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Reason: "r", Message: "m", Type: "Normal",
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"},
		}
	}
	for i := range 30 {
		must[*corev1.Event](t)(as(t, p, "").CoreV1().Events("default").Create(ctx, event(fmt.Sprintf("e%d", i)), metav1.CreateOptions{}))
	}
	must[*corev1.ConfigMap](t)(as(t, p, "").CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: meta("stays")}, metav1.CreateOptions{}))
	p.Stop()

	// They are known to be old after a restart.
	p = apptest.StartOn(t, app.Config{Data: dir, EventTTL: 2 * time.Second})
	core := as(t, p, "").CoreV1()
	eventually(t, "old events are gone", func() bool {
		return len(must[*corev1.EventList](t)(core.Events("default").List(ctx, metav1.ListOptions{})).Items) == 0
	})
	// A write gives an event its time anew.
	must[*corev1.Event](t)(core.Events("default").Create(ctx, event("again"), metav1.CreateOptions{}))
	for range 5 {
		time.Sleep(600 * time.Millisecond)
		have := must[*corev1.Event](t)(core.Events("default").Get(ctx, "again", metav1.GetOptions{}))
		have.Count++
		must[*corev1.Event](t)(core.Events("default").Update(ctx, have, metav1.UpdateOptions{}))
	}
	eventually(t, "the event is gone", func() bool {
		_, err := core.Events("default").Get(ctx, "again", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	must[*corev1.ConfigMap](t)(core.ConfigMaps("default").Get(ctx, "stays", metav1.GetOptions{}))
}

func TestLimits(t *testing.T) {
	p := apptest.Start(t)
	client := must[*http.Client](t)(rest.HTTPClientFor(p.Config))
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	for _, test := range []struct {
		name, method, path, media, body string
		header                          string
		want                            []int
	}{
		{"a long URL", "GET", "/api/v1/pods?labelSelector=" + strings.Repeat("a", 2<<20), "", "", "", []int{431}},
		{"long headers", "GET", "/api/v1/pods", "", "", strings.Repeat("a", 2<<20), []int{431}},
		{"a big body", "POST", "/api/v1/namespaces/default/configmaps", "application/json", `{"data":{"a":"` + strings.Repeat("a", 4<<20) + `"}}`, "", []int{413}},
		{"deep JSON", "POST", "/api/v1/namespaces/default/configmaps", "application/json", `{"data":` + deep(100_000) + `}`, "", []int{400}},
		{"deep YAML", "POST", "/api/v1/namespaces/default/configmaps", "application/yaml", "data: " + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), "", []int{400}},
		{"a deep apply", "PATCH", "/api/v1/namespaces/default/configmaps/x?fieldManager=m", "application/apply-patch+yaml", deep(100_000), "", []int{400}},
		{"deep CBOR", "POST", "/api/v1/namespaces/default/configmaps", "application/cbor", "\xa1\x64data" + strings.Repeat("\x81", 100_000) + "\x00", "", []int{400}},
		{"deep tags in CBOR", "POST", "/api/v1/namespaces/default/configmaps", "application/cbor", strings.Repeat("\xd9\xd9\xf7", 100_000) + "\xa0", "", []int{400}},
		{"CBOR that promises much", "POST", "/api/v1/namespaces/default/configmaps", "application/cbor", "\xa1\x64data\x9b\x7f\xff\xff\xff\xff\xff\xff\xff", "", []int{400}},
		{"a big body of CBOR", "POST", "/api/v1/namespaces/default/configmaps", "application/cbor", "\xa1\x64data\x7a\x00\x40\x00\x00" + strings.Repeat("a", 4<<20), "", []int{413}},
		{"a deep apply in CBOR", "PATCH", "/api/v1/namespaces/default/configmaps/x?fieldManager=m", "application/apply-patch+cbor", "\xa1\x64data" + strings.Repeat("\x81", 100_000) + "\x00", "", []int{400}},
		{"protobuf that promises much", "POST", "/api/v1/namespaces/default/configmaps", "application/vnd.kubernetes.protobuf", "k8s\x00\x12\xff\xff\xff\xff\x07", "", []int{400}},
		{"a deep merge patch", "PATCH", "/api/v1/namespaces/default/configmaps/kube-root-ca.crt", "application/merge-patch+json", deep(100_000), "", []int{400, 404}},
		{"many operations", "PATCH", "/api/v1/namespaces/default", "application/json-patch+json", "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"Namespace"},`, 10_001) + `{"op":"test","path":"/kind","value":"Namespace"}]`, "", []int{413}},
	} {
		t.Run(test.name, func(t *testing.T) {
			req := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), test.method, p.URL+test.path, strings.NewReader(test.body)))
			req.Header.Set("Content-Type", test.media)
			if test.header != "" {
				req.Header.Set("X-Long", test.header)
			}
			res, err := client.Do(req)
			if err != nil {
				// Over a connection of several streams the client knows the bound,
				// or the connection is closed before there is an answer.
				text := err.Error()
				if !slices.Contains(test.want, 431) || !strings.Contains(text, "larger than peer's") && !strings.Contains(text, "GOAWAY") {
					t.Fatal(text[max(0, len(text)-200):])
				}
				return
			}
			body := must[[]byte](t)(io.ReadAll(res.Body))
			if err := res.Body.Close(); err != nil || !slices.Contains(test.want, res.StatusCode) {
				t.Errorf("%d %v: %.200s", res.StatusCode, err, body)
			}
		})
	}
}

// dial connects as the admin, speaking one of the protocols.
func dial(t *testing.T, p *apptest.Plane, protocol string) *tls.Conn {
	t.Helper()
	cfg := must[*tls.Config](t)(rest.TLSConfigFor(p.Config))
	cfg.NextProtos = []string{protocol}
	raw := must[net.Conn](t)(new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.URL, "https://")))
	cfg.ServerName = "127.0.0.1"
	conn := tls.Client(raw, cfg)
	t.Cleanup(func() { _ = conn.Close() }) // it may be cut off
	return conn
}

func TestClientsThatDoNotReadAreCutOff(t *testing.T) {
	p := apptest.StartOn(t, app.Config{Data: app.Memory, WriteTimeout: 300 * time.Millisecond})
	ctx := t.Context()
	core := as(t, p, "").CoreV1()
	big := strings.Repeat("x", 900<<10)
	for i := range 20 {
		must[*corev1.ConfigMap](t)(core.ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: meta(fmt.Sprintf("cm%d", i)), Data: map[string]string{"a": big}}, metav1.CreateOptions{}))
	}
	for _, path := range []string{"/api/v1/configmaps", "/api/v1/configmaps?watch=1"} {
		conn := dial(t, p, "http/1.1")
		must[int](t)(fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path))
		time.Sleep(4 * time.Second) // far longer than a write may take
		if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, conn)
		if n > 20*900<<10 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %d bytes came, and the connection is not closed: %v", path, n, err)
		}
	}
	// One that reads slowly, and one that waits, are not.
	conn := dial(t, p, "http/1.1")
	must[int](t)(fmt.Fprint(conn, "GET /api/v1/namespaces/kube-system/configmaps?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n"))
	in := bufio.NewReader(conn)
	must[string](t)(in.ReadString('\n'))
	time.Sleep(time.Second)
	must[*corev1.ConfigMap](t)(core.ConfigMaps("kube-system").Create(ctx, &corev1.ConfigMap{ObjectMeta: meta("late")}, metav1.CreateOptions{}))
	if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	for line := ""; !strings.Contains(line, `"late"`); {
		line = must[string](t)(in.ReadString('\n'))
	}
	// Nor is the same over a connection of several streams.
	idle, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	w := must[interface{ Stop() }](t)(func() (interface{ Stop() }, error) {
		w, err := core.Pods("").Watch(idle, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		time.Sleep(time.Second)
		_, err = core.Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: meta("p"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
		if err == nil {
			if e, ok := <-w.ResultChan(); !ok || e.Type != "ADDED" {
				t.Errorf("the watch has ended: %v", e)
			}
		}
		return w, err
	}())
	w.Stop()
}

// TestDrainReachesEveryConnection: a connection that shakes hands while the
// server ends is ended too, as the ones before it are.
func TestDrainReachesEveryConnection(t *testing.T) {
	p := apptest.Start(t)
	late := dial(t, p, "h2")  // shakes hands when it is first written to
	get(t, p, "/healthz", "") // connections are accepted in order: late is by now
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p.Stop() // fails the test unless all connections end by themselves
	}()
	eventually(t, "no new connection", func() bool {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.URL, "https://"))
		if err == nil {
			_ = c.Close() // it is not used
		}
		return err != nil
	})
	settings := "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	must[int](t)(io.WriteString(late, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+settings))
	must[int64](t)(io.Copy(io.Discard, late))
	<-stopped
}

// TestRequestsEndInTime: what is asked is answered within the server's time, or
// within what the client gives it, even if the client does not finish asking.
func TestRequestsEndInTime(t *testing.T) {
	p := apptest.StartOn(t, app.Config{Data: app.Memory, RequestTimeout: 300 * time.Millisecond})
	for _, query := range []string{"", "?timeout=100ms", "?timeout=1h", "?timeout=0s"} {
		conn := dial(t, p, "http/1.1")
		must[int](t)(fmt.Fprintf(conn, "POST /api/v1/namespaces/default/configmaps%s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", query))
		res := must[*http.Response](t)(http.ReadResponse(bufio.NewReader(conn), nil)) //nolint:bodyclose // closed below
		body := must[[]byte](t)(io.ReadAll(res.Body))
		_ = res.Body.Close() // it is read
		if res.StatusCode != http.StatusGatewayTimeout || !bytes.Contains(body, []byte("request did not complete within the allotted timeout")) {
			t.Errorf("%q: %d %s", query, res.StatusCode, body)
		}
	}
	if code, body := get(t, p, "/api/v1/configmaps?timeout=soon", ""); code != http.StatusBadRequest || !strings.Contains(body, "invalid timeout specified in the request URL") {
		t.Errorf("a time that is none: %d %s", code, body)
	}
	if code, body := get(t, p, "/api/v1/configmaps?timeout=soon&watch=1&timeoutSeconds=1", ""); code != http.StatusOK {
		t.Errorf("a watch: %d %s", code, body)
	}
}
