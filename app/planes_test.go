package app_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// ask sends a request with the admin's credentials, and returns the answer's
// code and body.
func ask(t testing.TB, cfg *rest.Config, method, path string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(context.Background(), method, cfg.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// forkOf makes a fork and returns a config of clients for it.
func forkOf(t testing.TB, p *apptest.Plane, name, query string) *rest.Config {
	t.Helper()
	if code, body := ask(t, p.Config, http.MethodPost, "/planes/"+name+query); code != http.StatusCreated {
		t.Fatalf("fork %s: %d %s", name, code, body)
	}
	return in(p, "/planes/"+name)
}

// in is a config of clients for what is below a path.
func in(p *apptest.Plane, path string) *rest.Config {
	cfg := rest.CopyConfig(p.Config)
	cfg.Host += path
	return cfg
}

func clients(t testing.TB, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	k, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func put(t testing.TB, k kubernetes.Interface, name, value string) *corev1.ConfigMap {
	t.Helper()
	m, err := k.CoreV1().ConfigMaps("default").Apply(context.Background(), applycorev1.ConfigMap(name, "default").WithData(map[string]string{"v": value}), metav1.ApplyOptions{FieldManager: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// value is what a config map says, "" when there is none.
func value(t testing.TB, k kubernetes.Interface, name string) string {
	t.Helper()
	m, err := k.CoreV1().ConfigMaps("default").Get(context.Background(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return m.Data["v"]
}

func TestForksAreIsolated(t *testing.T) {
	p := apptest.Start(t)
	main := clients(t, p.Config)
	put(t, main, "m", "before")
	a := clients(t, forkOf(t, p, "a", ""))
	put(t, main, "m", "main's")
	put(t, a, "m", "a's")
	put(t, a, "only-a", "x")
	b := clients(t, forkOf(t, p, "b", "?from=a"))
	put(t, b, "m", "b's")
	for _, test := range []struct {
		name string
		k    kubernetes.Interface
		m, o string
	}{{"main", main, "main's", ""}, {"a", a, "a's", "x"}, {"b", b, "b's", "x"}} {
		if m, o := value(t, test.k, "m"), value(t, test.k, "only-a"); m != test.m || o != test.o {
			t.Errorf("%s has %q and %q, want %q and %q", test.name, m, o, test.m, test.o)
		}
	}
	_, body := ask(t, p.Config, http.MethodGet, "/planes")
	var list struct {
		Kind  string
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ From string }
		}
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || list.Kind != "PlaneList" || fmt.Sprint(list.Items) != "[{{a} {main}} {{b} {a}} {{main} {}}]" {
		t.Errorf("planes are %s, %v", body, err)
	}
	if code, body := ask(t, p.Config, http.MethodDelete, "/planes/a"); code != http.StatusOK {
		t.Errorf("drop: %d %s", code, body)
	}
	if _, err := a.CoreV1().ConfigMaps("default").Get(t.Context(), "m", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after it was dropped: %v", err)
	}
	if got := value(t, b, "m"); got != "b's" {
		t.Errorf("a fork of it has %q", got)
	}
	again := clients(t, forkOf(t, p, "a", ""))
	if got := value(t, again, "m"); got != "main's" {
		t.Errorf("a new one of its name has %q", got)
	}
}

func TestPlanesThatCannotBe(t *testing.T) {
	p := apptest.Start(t)
	forkOf(t, p, "a", "")
	for _, test := range []struct {
		method, path string
		code         int
		want         string
	}{
		{"POST", "/planes/a", 409, `planes.setpoint.dev \"a\" already exists`},
		{"POST", "/planes/main", 409, "already exists"},
		{"POST", "/planes/A_b", 400, "no name for a plane"},
		{"POST", "/planes/b?from=none", 404, `planes.setpoint.dev \"none\" not found`},
		{"POST", "/planes/b?revision=999999999", 400, "newest"},
		{"POST", "/planes/b?revision=x", 400, "invalid revision"},
		{"POST", "/planes/b?controllers=maybe", 400, "invalid controllers"},
		{"DELETE", "/planes/none", 404, "not found"},
		{"DELETE", "/planes/main", 403, "forbidden"},
		{"DELETE", "/planes", 405, "not supported"},
		{"PUT", "/planes/a", 405, "not supported"},
		{"GET", "/planes/none", 404, "not found"},
		{"GET", "/planes/none/api/v1/pods", 404, `planes.setpoint.dev \"none\" not found`},
		{"GET", "/at/0/api/v1/pods", 400, "no revision"},
		{"GET", "/at/999999999/api/v1/pods", 400, "lies in the future"},
		{"GET", "/planes/a/planes", 404, ""},
		{"GET", "/planes/main/api/v1/namespaces/default", 200, `"default"`},
		{"GET", "/planes/a/openapi/v3", 200, "/openapi/v3/api/v1"},
		{"GET", "/planes/a/apis", 200, "APIGroupList"},
		{"GET", "/planes/a/version", 200, "gitVersion"},
		{"GET", "/planes/a/readyz", 200, "ok"},
	} {
		code, body := ask(t, p.Config, test.method, test.path)
		if code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s %s: %d %s", test.method, test.path, code, body)
		}
	}
}

func TestWhoHearsOfPlanes(t *testing.T) {
	p := apptest.Start(t)
	forkOf(t, p, "a", "")
	bob, stranger, liar := rest.CopyConfig(p.Config), rest.AnonymousClientConfig(p.Config), rest.AnonymousClientConfig(p.Config)
	bob.Impersonate.UserName = "bob"
	liar.BearerToken = "a lie"
	const (
		noPlane  = `cannot get resource \"planes\" in API group \"setpoint.dev\" at the cluster scope`
		noPods   = `cannot list resource \"pods\"`
		missing  = `planes.setpoint.dev \"none\" not found`
		unknown  = "Unauthorized"
		tooEarly = "no revision"
		tooLate  = "lies in the future"
	)
	for _, test := range []struct {
		name, path string
		as         *rest.Config
		code       int
		want       string
	}{
		{"who may", "/planes/none/api/v1/pods", p.Config, 404, missing},
		{"who may not", "/planes/none/api/v1/pods", bob, 403, noPlane},
		{"who may not, of the past", "/planes/none/at/1/api/v1/pods", bob, 403, noPlane},
		{"a stranger", "/planes/none/api/v1/pods", stranger, 403, noPlane},
		{"with a token that is none", "/planes/none/api/v1/pods", liar, 401, unknown},
		{"a fork without rights in it", "/planes/a/api/v1/pods", bob, 403, noPods},
		{"no revision", "/at/x/api/v1/pods", p.Config, 400, tooEarly},
		{"no revision, who may not", "/at/x/api/v1/pods", bob, 403, noPods},
		{"no revision, with a token that is none", "/at/x/api/v1/pods", liar, 401, unknown},
		{"the future", "/planes/a/at/999999999/api/v1/pods", p.Config, 400, tooLate},
		{"the future, who may not", "/planes/a/at/999999999/api/v1/pods", bob, 403, noPods},
	} {
		t.Run(test.name, func(t *testing.T) {
			if code, body := ask(t, test.as, http.MethodGet, test.path); code != test.code || !strings.Contains(body, test.want) {
				t.Errorf("%d %s", code, body)
			}
		})
	}
}

// Kinds ask about users, too: who writes a policy must be able to read what its
// parameters are of. In a fork that is for the fork to say.
func TestWhatKindsAskInAFork(t *testing.T) {
	p := apptest.Start(t)
	main := clients(t, p.Config)
	for name, group := range map[string]string{"policies": "admissionregistration.k8s.io", "parameters": ""} {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{"*"}, Verbs: []string{"*"}}}}
		if _, err := main.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, user := range []string{"of-fork", "of-main"} {
		bind(t, main, "policies", user)
	}
	fork := forkOf(t, p, "a", "")
	bind(t, clients(t, fork), "parameters", "of-fork")
	bind(t, main, "parameters", "of-main")
	for _, test := range []struct {
		name, user string
		in         *rest.Config
		may        bool
	}{
		{"granted in the fork, asks in the fork", "of-fork", fork, true},
		{"granted in the fork, asks in main", "of-fork", p.Config, false},
		{"granted in main, asks in the fork", "of-main", fork, false},
		{"granted in main, asks in main", "of-main", p.Config, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := rest.CopyConfig(test.in)
			cfg.Impersonate.UserName = test.user
			policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: test.user},
				Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
					ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
					MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
						RuleWithOperations: admissionregistrationv1.RuleWithOperations{
							Operations: []admissionregistrationv1.OperationType{"CREATE"},
							Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
						},
					}}},
					Validations: []admissionregistrationv1.Validation{{Expression: "true"}},
				},
			}
			_, err := clients(t, cfg).AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{})
			if test.may && err != nil || !test.may && !strings.Contains(fmt.Sprint(err), `must have "get" permission`) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestWhoMayFork(t *testing.T) {
	p := apptest.Start(t)
	bob := rest.CopyConfig(p.Config)
	bob.Impersonate.UserName = "bob"
	if code, body := ask(t, bob, http.MethodPost, "/planes/x"); code != http.StatusForbidden || !strings.Contains(body, `cannot create resource \"planes\" in API group \"setpoint.dev\"`) {
		t.Errorf("bob: %d %s", code, body)
	}
	main := clients(t, p.Config)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "forks"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"setpoint.dev"}, Resources: []string{"planes"}, Verbs: []string{"create"}}}}
	if _, err := main.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bind(t, main, "forks", "bob")
	if code, body := ask(t, bob, http.MethodPost, "/planes/x"); code != http.StatusCreated {
		t.Errorf("bob, with the right: %d %s", code, body)
	}
	// What is granted in a fork is granted there alone.
	fork := clients(t, in(p, "/planes/x"))
	bind(t, fork, "cluster-admin", "bob")
	inFork := rest.CopyConfig(bob)
	inFork.Host += "/planes/x"
	if _, err := clients(t, inFork).CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("bob in the fork: %v", err)
	}
	if _, err := clients(t, bob).CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("bob in main: %v", err)
	}
}

func bind(t *testing.T, k kubernetes.Interface, role, user string) {
	t.Helper()
	b := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role + "-" + user}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
	if _, err := k.RbacV1().ClusterRoleBindings().Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestTokensOfAFork(t *testing.T) {
	p := apptest.Start(t)
	main := clients(t, p.Config)
	if _, err := main.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fork := forkOf(t, p, "a", "")
	token := func(k kubernetes.Interface) string {
		made, err := k.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made.Status.Token
	}
	who := func(cfg *rest.Config, token string) error {
		cfg = rest.AnonymousClientConfig(cfg)
		cfg.BearerToken = token
		_, err := whoami(t, clients(t, cfg))
		return err
	}
	ofMain, ofFork := token(main), token(clients(t, fork))
	if err := who(fork, ofMain); err != nil {
		t.Errorf("main's token in the fork: %v", err)
	}
	if err := who(fork, ofFork); err != nil {
		t.Errorf("the fork's token in the fork: %v", err)
	}
	if err := who(p.Config, ofFork); !apierrors.IsUnauthorized(err) {
		t.Errorf("the fork's token in main: %v", err)
	}
}

func TestInformersInAFork(t *testing.T) {
	p := apptest.Start(t)
	main := clients(t, p.Config)
	put(t, main, "m", "1")
	fork := clients(t, forkOf(t, p, "a", ""))
	factory := informers.NewSharedInformerFactory(fork, 0)
	seen := make(chan string, 100)
	informer := factory.Core().V1().ConfigMaps().Informer()
	tell := func(obj any) {
		if m, ok := obj.(*corev1.ConfigMap); ok && m.Namespace == "default" {
			seen <- m.Name + "=" + m.Data["v"]
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: tell, UpdateFunc: func(_, obj any) { tell(obj) }}); err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(t.Context())
	factory.WaitForCacheSync(t.Context().Done())
	put(t, main, "m", "main's")
	put(t, fork, "m", "2")
	for _, want := range []string{"m=1", "m=2"} {
		select {
		case got := <-seen:
			if got != want {
				t.Errorf("the informer saw %s, want %s", got, want)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("the informer never saw %s", want)
		}
	}
}

const widgets = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"widgets","kind":"Widget"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

func TestDefinitionsOfAFork(t *testing.T) {
	p := apptest.Start(t)
	fork := forkOf(t, p, "a", "")
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	kind := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	definition := &unstructured.Unstructured{}
	if err := definition.UnmarshalJSON([]byte(widgets)); err != nil {
		t.Fatal(err)
	}
	k := dynamic.NewForConfigOrDie(fork)
	if _, err := k.Resource(crds).Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}}}
	if _, err := k.Resource(kind).Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := dynamic.NewForConfigOrDie(p.Config).Resource(kind).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("main knows the kind: %v", err)
	}
	if err := k.Resource(crds).Delete(t.Context(), definition.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		if _, err := k.Resource(crds).Get(ctx, definition.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the definition does not go after its objects: %v", err)
		}
		return ""
	})
}

func TestThePast(t *testing.T) {
	p := apptest.Start(t)
	main := clients(t, p.Config)
	then := put(t, main, "m", "1").ResourceVersion
	put(t, main, "m", "2")
	put(t, main, "later", "x")
	fork := clients(t, forkOf(t, p, "a", ""))
	thenInFork := put(t, fork, "m", "3").ResourceVersion
	put(t, fork, "m", "4")
	past := clients(t, in(p, "/at/"+then))
	if got := value(t, past, "m"); got != "1" {
		t.Errorf("m was %q", got)
	}
	if got := value(t, past, "later"); got != "" {
		t.Errorf("later was %q", got)
	}
	list, err := past.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.ResourceVersion != then {
		t.Errorf("there were %d at %s, %v", len(list.Items), list.ResourceVersion, err)
	}
	if got := value(t, clients(t, in(p, "/planes/a/at/"+thenInFork)), "m"); got != "3" {
		t.Errorf("in the fork m was %q", got)
	}
	if got := value(t, clients(t, in(p, "/planes/a/at/"+then)), "m"); got != "1" {
		t.Errorf("before there was a fork m was %q", got)
	}
	if _, err := past.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a write: %v", err)
	}
	if _, err := past.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a watch: %v", err)
	}
	old := clients(t, forkOf(t, p, "old", "?revision="+then))
	if got := value(t, old, "m"); got != "1" {
		t.Errorf("a fork of then has %q", got)
	}
}

func TestControllersOfAFork(t *testing.T) {
	p := apptest.Start(t)
	fork := clients(t, forkOf(t, p, "a", "?controllers=true"))
	one := int32(1)
	labels := map[string]string{"app": "web"}
	_, err := fork.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		if pods, err := fork.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err != nil || len(pods.Items) != 1 {
			return fmt.Sprintf("the fork has %d pods, %v", len(pods.Items), err)
		}
		return ""
	})
	if sets, err := clients(t, p.Config).AppsV1().ReplicaSets("").List(t.Context(), metav1.ListOptions{}); err != nil || len(sets.Items) != 0 {
		t.Errorf("main has %d replica sets, %v", len(sets.Items), err)
	}
	if code, body := ask(t, p.Config, http.MethodDelete, "/planes/a"); code != http.StatusOK {
		t.Errorf("drop: %d %s", code, body)
	}
}

func TestKubectlInAFork(t *testing.T) {
	kubectl, err := filepath.Abs("../bin/kubectl-1.36")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(kubectl); err != nil {
		t.Skip("no stock kubectl: make kubectls builds it")
	}
	p := apptest.Start(t)
	forkOf(t, p, "a", "")
	run := func(in string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), kubectl, append([]string{"--kubeconfig", p.Kubeconfig, "--server", p.URL + "/planes/a", "--cache-dir", t.TempDir()}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("kubectl %v: %v\n%s", args, err, stderr.String())
		}
		return string(out)
	}
	manifest := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"v":"1"}}`
	if got := run(manifest, "apply", "-f", "-"); got != "configmap/m created\n" {
		t.Errorf("apply says %q", got)
	}
	if got := run(strings.Replace(manifest, "1\"}}", "2\"}}", 1), "apply", "--server-side", "--force-conflicts", "-f", "-"); got != "configmap/m serverside-applied\n" {
		t.Errorf("apply on the server says %q", got)
	}
	if got := run("", "get", "configmap", "m", "-o", "jsonpath={.data.v}"); got != "2" {
		t.Errorf("m is %q", got)
	}
	if got := run("", "explain", "configmap.data"); !strings.Contains(got, "FIELD: data") {
		t.Errorf("explain says %q", got)
	}
	if got := run("", "wait", "--for=jsonpath={.status.phase}=Active", "namespace/default"); !strings.Contains(got, "condition met") {
		t.Errorf("wait says %q", got)
	}
	if got := value(t, clients(t, p.Config), "m"); got != "" {
		t.Errorf("main has %q", got)
	}
}

func TestPatchesInAFork(t *testing.T) {
	p := apptest.Start(t)
	main := clients(t, p.Config)
	put(t, main, "m", "1")
	fork := clients(t, forkOf(t, p, "a", ""))
	if _, err := fork.CoreV1().ConfigMaps("default").Patch(t.Context(), "m", types.StrategicMergePatchType, []byte(`{"data":{"v":"2"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := fork.CoreV1().ConfigMaps("default").Delete(t.Context(), "m", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := value(t, main, "m"); got != "1" {
		t.Errorf("main has %q", got)
	}
}

// BenchmarkFork measures a fork of a plane with 10,000 objects of 1 KiB: the
// request that makes it, the first list in it until the first byte is there and
// until the last is, beside the same list in main, and what a fork costs in
// memory until it is written to. Times are medians; the least that a first list
// took is what it takes when nothing else wants the processors.
func BenchmarkFork(b *testing.B) {
	p := apptest.StartOn(b, app.Config{Data: app.Memory})
	k := clients(b, p.Config)
	text := strings.Repeat("x", 1000)
	for i := range 10_000 {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i)}, Data: map[string]string{"v": text}}
		if _, err := k.CoreV1().ConfigMaps("default").Create(context.Background(), m, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	client, err := rest.HTTPClientFor(p.Config)
	if err != nil {
		b.Fatal(err)
	}
	direct := &http.Client{Transport: unread{p.Handler, certificates(b, p.Config.CertData)}}
	const maps, protobuf = "/api/v1/namespaces/default/configmaps", "application/vnd.kubernetes.protobuf"
	for _, c := range []struct {
		name, query, accept, encoding string
		by                            *http.Client
	}{
		{"ten", "?limit=10", "", "identity", client},
		{"page", "?limit=500", "", "gzip", client}, // as kubectl asks
		{"all", "", "", "gzip", client},
		{"all plain", "", "", "identity", client},
		{"all protobuf", "", protobuf, "identity", client},
		{"all without network", "", "", "identity", direct},
	} {
		list := asker{c.by, p.URL, c.accept, c.encoding}
		b.Run(c.name, func(b *testing.B) {
			list.do(b, "GET", maps+c.query, 200)
			var fork, begun, first, main []time.Duration
			for b.Loop() {
				_, took := list.do(b, "POST", "/planes/p", 201)
				fork = append(fork, took)
				byFirst, took := list.do(b, "GET", "/planes/p"+maps+c.query, 200)
				begun, first = append(begun, byFirst), append(first, took)
				_, took = list.do(b, "GET", maps+c.query, 200)
				main = append(main, took)
				list.do(b, "DELETE", "/planes/p", 200)
			}
			b.ReportMetric(0, "ns/op")
			for unit, times := range map[string][]time.Duration{"fork-ms": fork, "first-byte-ms": begun, "first-ms": first, "main-ms": main} {
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, unit)
			}
			b.ReportMetric(float64(first[0].Microseconds())/1000, "least-first-ms")
		})
	}
	b.Run("memory", func(b *testing.B) {
		list := asker{client, p.URL, "", "identity"}
		const forks = 50
		for b.Loop() {
			before := heap()
			for i := range forks {
				list.do(b, "POST", fmt.Sprintf("/planes/f%d", i), 201)
				list.do(b, "GET", fmt.Sprintf("/planes/f%d%s?limit=10", i, maps), 200)
			}
			b.ReportMetric(float64(heap()-before)/forks/1024, "KiB/fork")
			for i := range forks {
				list.do(b, "DELETE", fmt.Sprintf("/planes/f%d", i), 200)
			}
		}
	})
}

// unread has requests served whose answers nobody reads: what is left is what they
// cost the server without the network.
type unread struct {
	http.Handler
	as []*x509.Certificate
}

// RoundTrip implements http.RoundTripper.
func (u unread) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.RequestURI, r.Body, r.TLS = r.URL.RequestURI(), http.NoBody, &tls.ConnectionState{PeerCertificates: u.as}
	w := &nowhere{header: http.Header{}}
	u.ServeHTTP(w, r)
	return &http.Response{Status: http.StatusText(w.code), StatusCode: w.code, Header: w.header, Body: http.NoBody, Request: r}, nil
}

func certificates(t testing.TB, text []byte) []*x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	all, err := x509.ParseCertificates(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// nowhere is a writer of answers that keeps their head alone.
type nowhere struct {
	header http.Header
	code   int
}

func (n *nowhere) Header() http.Header         { return n.header }
func (n *nowhere) WriteHeader(code int)        { n.code = code }
func (n *nowhere) Write(b []byte) (int, error) { return len(b), nil }

// asker asks a server for things in one representation.
type asker struct {
	client                *http.Client
	url, accept, encoding string
}

// do sends a request and says how long it took until the first byte of the answer
// was there, and until the last was.
func (a asker) do(b *testing.B, method, path string, code int) (first, last time.Duration) {
	b.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, a.url+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Accept", a.accept)
	r.Header.Set("Accept-Encoding", a.encoding)
	begun := time.Now()
	response, err := a.client.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	first = time.Since(begun)
	_, err = io.Copy(io.Discard, response.Body)
	last = time.Since(begun)
	if err != nil || response.StatusCode != code || response.Body.Close() != nil {
		b.Fatalf("%s %s: %s, %v", method, path, response.Status, err)
	}
	return first, last
}

func heap() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) + int64(m.StackInuse)
}
