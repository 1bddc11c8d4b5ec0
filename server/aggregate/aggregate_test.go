package aggregate_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	watchtools "k8s.io/client-go/tools/watch"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/server/aggregate/aggregatetest"
)

// patience bounds every wait.
const patience = 2 * time.Minute

func services(cfg *rest.Config) registration.APIServiceInterface {
	return aggregator.NewForConfigOrDie(cfg).ApiregistrationV1().APIServices()
}

// await waits until the APIService's condition has a status, and returns it.
func await(t *testing.T, cfg *rest.Config, name string, is func(c apiregistrationv1.APIServiceCondition) bool) apiregistrationv1.APIServiceCondition {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var last apiregistrationv1.APIServiceCondition
	lw := &onlyNamed{services(cfg), name}
	_, err := watchtools.UntilWithSync(ctx, lw, &apiregistrationv1.APIService{}, nil, func(e watch.Event) (bool, error) {
		s, ok := e.Object.(*apiregistrationv1.APIService)
		if !ok {
			return false, nil
		}
		c := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available)
		if c == nil {
			return false, nil
		}
		last = *c
		return is(*c), nil
	})
	if err != nil {
		t.Fatalf("the condition is %+v: %v", last, err)
	}
	return last
}

func available(c apiregistrationv1.APIServiceCondition) bool {
	return c.Status == apiregistrationv1.ConditionTrue
}

func because(reason string) func(apiregistrationv1.APIServiceCondition) bool {
	return func(c apiregistrationv1.APIServiceCondition) bool { return c.Reason == reason }
}

// client speaks plain HTTP with a control plane.
func client(t *testing.T, cfg *rest.Config) *http.Client {
	t.Helper()
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func get(t *testing.T, cfg *rest.Config, path string, header ...string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cfg.Host+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	answer, err := client(t, cfg).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() //nolint:errcheck // it has been read
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body), answer.Header
}

// until asks again until it holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come to be that %s", what)
		}
	}
}

var plants = schema.GroupVersionResource{Group: aggregatetest.Group, Version: aggregatetest.Version, Resource: aggregatetest.Resource}

func plant(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": aggregatetest.Group + "/" + aggregatetest.Version, "kind": aggregatetest.Kind, "metadata": map[string]any{"name": name},
	}}
}

func as(cfg *rest.Config, who rest.ImpersonationConfig) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.Impersonate = who
	return c
}

// behind is a control plane with a server behind it.
func behind(t *testing.T) (*apptest.Plane, *aggregatetest.Server) {
	t.Helper()
	p, s := apptest.Start(t), aggregatetest.Start(t)
	s.Register(t, p.Config)
	await(t, p.Config, aggregatetest.APIService, available)
	return p, s
}

func TestRequestsReachTheOtherServer(t *testing.T) {
	t.Parallel()
	p, _ := behind(t)
	ctx := t.Context()
	c := dynamic.NewForConfigOrDie(p.Config).Resource(plants).Namespace("default")
	w, err := c.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := c.Create(ctx, plant("oak"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-w.ResultChan():
		if o, is := e.Object.(*unstructured.Unstructured); !is || e.Type != watch.Added || o.GetName() != "oak" {
			t.Errorf("the watch told %v", e)
		}
	case <-time.After(patience):
		t.Fatal("the watch tells nothing")
	}
	got, err := c.Get(ctx, "oak", metav1.GetOptions{})
	if err != nil || got.GetKind() != aggregatetest.Kind {
		t.Errorf("got %v, %v", got, err)
	}
	list, err := c.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("listed %v, %v", list, err)
	}
	if _, err := c.Get(ctx, "elm", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an absent plant: %v", err)
	}
}

func TestTheOtherServerIsToldWhoAsks(t *testing.T) {
	t.Parallel()
	p, s := behind(t)
	path := aggregatetest.Path + "/namespaces/default/plants"
	forged := []string{
		"X-Remote-User", "mallory", "X-Remote-Group", "system:masters", "X-Remote-Extra-Scopes", "all", "X-Remote-Uid", "7",
		"Authorization", "Basic bWFsbG9yeTpzZWNyZXQ=",
	}
	of := func(h http.Header) map[string][]string {
		told := map[string][]string{}
		for name, values := range h {
			if strings.HasPrefix(name, "X-Remote-") || strings.HasPrefix(name, "Impersonate-") || name == "Authorization" {
				told[name] = values
			}
		}
		slices.Sort(told["X-Remote-Group"])
		return told
	}
	extra := map[string][]string{"Example.com/Why": {"a test"}}
	for name, c := range map[string]struct {
		cfg    *rest.Config
		header []string
		want   map[string][]string
	}{
		"admin": {cfg: p.Config, want: map[string][]string{
			"X-Remote-User": {"setpoint-admin"}, "X-Remote-Group": {"system:authenticated", "system:masters"},
		}},
		"admin with headers of a front proxy": {cfg: p.Config, header: forged, want: map[string][]string{
			"X-Remote-User": {"setpoint-admin"}, "X-Remote-Group": {"system:authenticated", "system:masters"},
		}},
		"someone else": {
			cfg: as(p.Config, rest.ImpersonationConfig{UserName: "ann", UID: "u-1", Groups: []string{"system:masters"}, Extra: extra}),
			want: map[string][]string{
				"X-Remote-User": {"ann"}, "X-Remote-Uid": {"u-1"}, "X-Remote-Group": {"system:authenticated", "system:masters"},
				"X-Remote-Extra-Example.com%2fwhy": {"a test"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if code, body, _ := get(t, c.cfg, path, c.header...); code != http.StatusOK {
				t.Fatalf("%d: %s", code, body)
			}
			asked := s.Asked(path)
			last := asked[len(asked)-1]
			got := of(last.Header)
			delete(got, "X-Remote-Extra-Authentication.kubernetes.io%2fcredential-Id")
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			if last.Proxy != "front-proxy-client" {
				t.Errorf("the proxy showed the certificate of %q", last.Proxy)
			}
		})
	}
}

func TestWhoMayNotIsNotPassedOn(t *testing.T) {
	t.Parallel()
	p, s := behind(t)
	path := aggregatetest.Path + "/namespaces/default/plants"
	code, body, _ := get(t, as(p.Config, rest.ImpersonationConfig{UserName: "bob"}), path)
	if code != http.StatusForbidden || !strings.Contains(body, `plants.garden.example.com is forbidden: User \"bob\" cannot list resource`) {
		t.Errorf("%d: %s", code, body)
	}
	if n := len(s.Asked(path)); n > 0 {
		t.Errorf("the other server was asked %d times", n)
	}
}

func TestAClientThatGoesEndsItsWatch(t *testing.T) {
	t.Parallel()
	p, s := behind(t)
	ctx, cancel := context.WithCancel(t.Context())
	w, err := dynamic.NewForConfigOrDie(p.Config).Resource(plants).Namespace("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	w.Stop()
	select {
	case <-s.Ended():
	case <-time.After(patience):
		t.Error("the other server's watch goes on")
	}
}

func TestTheServersEndEndsWatchesInGoodOrder(t *testing.T) {
	t.Parallel()
	p, s := behind(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL+aggregatetest.Path+"/namespaces/default/plants?watch=1", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client(t, p.Config).Do(r) //nolint:bodyclose // whoever reads it closes it
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close() // it has been read
		ended <- err
	}()
	conn := upgraded(t, p)
	p.Stop()
	if err := <-ended; err != nil {
		t.Errorf("the watch ended with %v", err)
	}
	<-s.Ended()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the upgraded connection goes on")
	}
}

// upgraded is a connection to the other server's echo.
func upgraded(t *testing.T, p *apptest.Plane) net.Conn {
	t.Helper()
	cert, err := tls.X509KeyPair(p.Config.CertData, p.Config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", at.Host, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}}) //nolint:gosec,noctx // on loopback
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET %s/namespaces/default/plants/oak/echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", aggregatetest.Path); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReaderSize(conn, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close() // it has none
	if answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the upgrade was answered with %d", answer.StatusCode)
	}
	return conn
}

func TestUpgradesPassThrough(t *testing.T) {
	t.Parallel()
	p, s := behind(t)
	conn := upgraded(t, p)
	for _, text := range []string{"hello", "again"} {
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		back := make([]byte, len(text))
		if _, err := io.ReadFull(conn, back); err != nil || string(back) != text {
			t.Fatalf("%q came back: %v", back, err)
		}
	}
	asked := s.Asked(aggregatetest.Path + "/namespaces/default/plants/oak/echo")
	if len(asked) != 1 || asked[0].Header.Get("X-Remote-User") != "setpoint-admin" || asked[0].Proxy != "front-proxy-client" {
		t.Errorf("the other server saw %+v", asked)
	}
}

// groups are the aggregated document's groups with the freshness of versions.
func groups(t *testing.T, cfg *rest.Config) map[string]apidiscovery.APIGroupDiscovery {
	t.Helper()
	code, body, _ := get(t, cfg, "/apis", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	list := apidiscovery.APIGroupDiscoveryList{}
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK {
		t.Fatalf("%d: %s", code, body)
	}
	found := map[string]apidiscovery.APIGroupDiscovery{}
	for _, g := range list.Items {
		found[g.Name] = g
	}
	return found
}

func TestAServerThatGoesAndComesBack(t *testing.T) {
	t.Parallel()
	p, s := behind(t)
	path := aggregatetest.Path + "/namespaces/default/plants"
	v := groups(t, p.Config)[aggregatetest.Group].Versions
	if len(v) != 1 || v[0].Freshness != apidiscovery.DiscoveryFreshnessCurrent || len(v[0].Resources) != 1 || v[0].Resources[0].Resource != "plants" {
		t.Errorf("discovery tells %+v", v)
	}
	s.Down()
	code, body, _ := get(t, p.Config, path)
	if code != http.StatusServiceUnavailable {
		t.Errorf("%d: %s", code, body)
	}
	touch(t, p.Config)
	c := await(t, p.Config, aggregatetest.APIService, because("FailedDiscoveryCheck"))
	if c.Status != apiregistrationv1.ConditionFalse || !strings.Contains(c.Message, "failing or missing response from https://localhost:") || !strings.Contains(c.Message, aggregatetest.Path) {
		t.Errorf("the condition is %+v", c)
	}
	if code, body, h := get(t, p.Config, path); code != http.StatusServiceUnavailable || body != "service unavailable\n" || h.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("%d: %q", code, body)
	}
	v = groups(t, p.Config)[aggregatetest.Group].Versions
	if len(v) != 1 || v[0].Freshness != apidiscovery.DiscoveryFreshnessStale || len(v[0].Resources) > 0 {
		t.Errorf("discovery tells %+v", v)
	}
	s.Up(t)
	await(t, p.Config, aggregatetest.APIService, available)
	if v = groups(t, p.Config)[aggregatetest.Group].Versions; len(v) != 1 || v[0].Freshness != apidiscovery.DiscoveryFreshnessCurrent {
		t.Errorf("discovery tells %+v", v)
	}
	if code, body, _ := get(t, p.Config, path); code != http.StatusOK {
		t.Errorf("%d: %s", code, body)
	}
}

// touch changes the service, so that its APIService is checked now.
func touch(t *testing.T, cfg *rest.Config) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata": {"annotations": {"touched": "%d"}}}`, time.Now().UnixNano())
	_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Services(aggregatetest.Namespace).
		Patch(t.Context(), aggregatetest.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnUntrustedServerIsNotAsked(t *testing.T) {
	t.Parallel()
	p, s := apptest.Start(t), aggregatetest.Start(t)
	other := aggregatetest.Start(t)
	right := s.CA
	s.CA = other.CA
	s.Register(t, p.Config)
	c := await(t, p.Config, aggregatetest.APIService, because("FailedDiscoveryCheck"))
	if !strings.Contains(c.Message, "certificate signed by unknown authority") {
		t.Errorf("the condition is %+v", c)
	}
	if code, _, _ := get(t, p.Config, aggregatetest.Path); code != http.StatusServiceUnavailable {
		t.Errorf("answered with %d", code)
	}
	if asked := s.Asked(""); len(asked) > 0 {
		t.Errorf("it was asked %+v", asked)
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"caBundle": right}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := services(p.Config).Patch(t.Context(), aggregatetest.APIService, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, p.Config, aggregatetest.APIService, available)
	if code, body, _ := get(t, p.Config, aggregatetest.Path); code != http.StatusOK {
		t.Errorf("%d: %s", code, body)
	}
}

func TestConditionsSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	p := apptest.Start(t)
	ctx := t.Context()
	kube := kubernetes.NewForConfigOrDie(p.Config)
	port := int32(443)
	s := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: aggregatetest.APIService},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: aggregatetest.Group, Version: aggregatetest.Version, GroupPriorityMinimum: 2000, VersionPriority: 10, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "garden", Port: &port},
		},
	}
	if _, err := services(p.Config).Create(ctx, s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	says := func(reason, message string) {
		t.Helper()
		c := await(t, p.Config, s.Name, because(reason))
		if c.Status != apiregistrationv1.ConditionFalse || c.Message != message {
			t.Errorf("the condition is %+v", c)
		}
	}
	says("ServiceNotFound", `service/garden in "default" is not present`)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "garden"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 80}}},
	}
	service, err := kube.CoreV1().Services("default").Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	says("ServicePortError", `service/garden in "default" is not listening on port 443`)
	service.Spec.Ports = []corev1.ServicePort{{Name: "api", Port: 443}}
	if _, err := kube.CoreV1().Services("default").Update(ctx, service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	says("EndpointsNotFound", `cannot find endpointslices for service/garden in "default"`)
	name, ready, number := "api", false, int32(6443)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "garden-1", Labels: map[string]string{discoveryv1.LabelServiceName: "garden"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &number}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
	if _, err := kube.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	says("MissingEndpoints", `endpointslices for service/garden in "default" have no addresses with port name "api"`)
	if code, body, _ := get(t, p.Config, aggregatetest.Path); code != http.StatusServiceUnavailable || body != "service unavailable\n" {
		t.Errorf("%d: %q", code, body)
	}
}

func TestADeletedRegistrationIsGone(t *testing.T) {
	t.Parallel()
	p, _ := behind(t)
	if err := services(p.Config).Delete(t.Context(), aggregatetest.APIService, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the path is not found", func() bool {
		code, _, _ := get(t, p.Config, aggregatetest.Path)
		return code == http.StatusNotFound
	})
	if _, is := groups(t, p.Config)[aggregatetest.Group]; is {
		t.Error("discovery tells of the group")
	}
	if _, body, _ := get(t, p.Config, "/apis"); strings.Contains(body, aggregatetest.Group) {
		t.Error("the list of groups has the group")
	}
}

func TestDiscoveryIsInOrder(t *testing.T) {
	t.Parallel()
	p, s := behind(t)
	high := s.Registration()
	high.Name, high.Spec.Group, high.Spec.GroupPriorityMinimum = "v1.high.example.com", "high.example.com", 17900
	if _, err := services(p.Config).Create(t.Context(), high, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The server does not serve it, so it never becomes available.
	await(t, p.Config, high.Name, because("FailedDiscoveryCheck"))
	names := func(body string) []string {
		var list struct {
			Groups []struct{ Name string }
			Items  []struct{ Metadata struct{ Name string } }
		}
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, g := range list.Groups {
			all = append(all, g.Name)
		}
		for _, g := range list.Items {
			all = append(all, g.Metadata.Name)
		}
		return all
	}
	_, plain, _ := get(t, p.Config, "/apis")
	_, aggregated, _ := get(t, p.Config, "/apis", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	for form, body := range map[string]string{"list": plain, "aggregated": aggregated} {
		all := names(body)
		want := []string{"apiregistration.k8s.io", "high.example.com", "apps"}
		if len(all) < 5 || !slices.Equal(all[:3], want) || all[len(all)-1] != aggregatetest.Group {
			t.Errorf("%s: %q", form, all)
		}
	}
	code, body, _ := get(t, p.Config, "/apis/"+aggregatetest.Group)
	if code != http.StatusOK || !strings.Contains(body, `"preferredVersion":{"groupVersion":"garden.example.com/v1","version":"v1"}`) {
		t.Errorf("%d: %s", code, body)
	}
}

func TestOldServersAreTold(t *testing.T) {
	t.Parallel()
	p, s := apptest.Start(t), aggregatetest.Start(t)
	s.Old = true
	s.Register(t, p.Config)
	await(t, p.Config, aggregatetest.APIService, available)
	v := groups(t, p.Config)[aggregatetest.Group].Versions
	if len(v) != 1 || len(v[0].Resources) != 1 || len(v[0].Resources[0].Subresources) != 1 || v[0].Resources[0].Scope != apidiscovery.ScopeNamespace {
		t.Errorf("discovery tells %+v", v)
	}
	if _, index, _ := get(t, p.Config, "/openapi/v3"); !strings.Contains(index, `"apis/garden.example.com/v1"`) {
		t.Error("the index of OpenAPI lacks the group version")
	}
	if code, body, _ := get(t, p.Config, "/openapi/v3"+aggregatetest.Path); code != http.StatusOK || !strings.Contains(body, `"#/components/schemas/com.example.garden.v1.Plant"`) {
		t.Errorf("%d: %s", code, body)
	}
}

func TestOpenAPITellsOfTheOtherServer(t *testing.T) {
	t.Parallel()
	p, s := behind(t)
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	_, body, _ := get(t, p.Config, "/openapi/v3")
	if err := json.Unmarshal([]byte(body), &index); err != nil {
		t.Fatal(err)
	}
	if at := index.Paths[aggregatetest.Path[1:]].ServerRelativeURL; at != "/openapi/v3"+aggregatetest.Path+"?hash=G1" {
		t.Errorf("the document is at %q", at)
	}
	if at := index.Paths["apis"].ServerRelativeURL; strings.Contains(at, "G2") {
		t.Errorf("the other server's %q stands for this one's", at)
	}
	if code, body, _ := get(t, p.Config, "/openapi/v3"+aggregatetest.Path+"?hash=G1"); code != http.StatusOK || !strings.Contains(body, "Garden") {
		t.Errorf("%d: %s", code, body)
	}
	_, first, h := get(t, p.Config, "/openapi/v2")
	for _, want := range []string{"com.example.garden.v1.Plant", aggregatetest.Path + "/namespaces/{namespace}/plants", "io.k8s.api.core.v1.Pod"} {
		if !strings.Contains(first, want) {
			t.Errorf("no %s in version 2", want)
		}
	}
	if strings.Contains(first, "notShown") {
		t.Error("version 2 shows more of the other server than it serves here")
	}
	if code, _, _ := get(t, p.Config, "/openapi/v2", "If-None-Match", h.Get("Etag")); code != http.StatusNotModified {
		t.Errorf("the same document again is answered with %d", code)
	}
	s.Down()
	touch(t, p.Config)
	await(t, p.Config, aggregatetest.APIService, because("FailedDiscoveryCheck"))
	if _, again, _ := get(t, p.Config, "/openapi/v2"); again != first {
		t.Error("version 2 forgets a server that does not answer")
	}
}

// Compat: upstream lets a registration take over what it serves itself.
func TestARegistrationMayTakeOverAGroupVersion(t *testing.T) {
	t.Parallel()
	p, s := behind(t)
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"service": s.Registration().Spec.Service, "caBundle": s.CA}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := services(p.Config).Patch(t.Context(), "v1.batch", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, p.Config, "v1.batch", because("FailedDiscoveryCheck"))
	if code, _, _ := get(t, p.Config, "/apis/batch/v1/jobs"); code != http.StatusServiceUnavailable {
		t.Errorf("answered with %d", code)
	}
	if err := services(p.Config).Delete(t.Context(), "v1.batch", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "jobs are served here again", func() bool {
		code, _, _ := get(t, p.Config, "/apis/batch/v1/jobs")
		return code == http.StatusOK
	})
	if _, body, _ := get(t, p.Config, "/apis"); strings.Contains(body, `"batch"`) {
		t.Error("a group without registrations is listed")
	}
	if code, _, _ := get(t, p.Config, "/apis/batch"); code != http.StatusOK {
		t.Errorf("a group without registrations is answered with %d", code)
	}
}

func TestServersStandBehindOneAnother(t *testing.T) {
	t.Parallel()
	// Front proxies of a plane are believed by that plane.
	dir := t.TempDir()
	p := apptest.StartOn(t, app.Config{Data: dir})
	cert, err := tls.LoadX509KeyPair(dir+"/pki/front-proxy.pem", dir+"/pki/front-proxy.pem")
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}}}} //nolint:gosec // on loopback
	defer c.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+"/apis/authentication.k8s.io/v1/selfsubjectreviews", strings.NewReader(`{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Remote-User", "ann")
	r.Header.Set("X-Remote-Uid", "u-1")
	r.Header.Set("X-Remote-Group", "gardeners")
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() //nolint:errcheck // it has been read
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(body), `"username":"ann","uid":"u-1","groups":["gardeners","system:authenticated"]`) {
		t.Errorf("%d: %s", answer.StatusCode, body)
	}
}
