package extension_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/testapigroup"
	"k8s.io/apimachinery/pkg/apis/testapigroup/install"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	registry "k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"setpoint.dev/setpoint/app/apptest"
)

var carpsV1 = schema.GroupVersionResource{Group: testapigroup.GroupName, Version: "v1", Resource: "carps"}

// carps keeps carps in memory, by name, and tells watchers of new ones. Each
// carp's annotation "by" says who made it.
type carps struct {
	registry.TableConvertor
	mu       sync.Mutex // guards the fields below
	all      map[string]*testapigroup.Carp
	watchers []*watch.FakeWatcher
}

func (*carps) New() runtime.Object     { return &testapigroup.Carp{} }
func (*carps) NewList() runtime.Object { return &testapigroup.CarpList{} }
func (*carps) NamespaceScoped() bool   { return true }
func (*carps) GetSingularName() string { return "carp" }
func (*carps) Destroy()                {}
func (c *carps) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if carp := c.all[name]; carp != nil {
		return carp, nil
	}
	return nil, apierrors.NewNotFound(carpsV1.GroupResource(), name)
}

func (c *carps) List(context.Context, *metainternalversion.ListOptions) (runtime.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := &testapigroup.CarpList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(len(c.all))}}
	for _, carp := range c.all {
		list.Items = append(list.Items, *carp)
	}
	return list, nil
}

func (c *carps) Watch(context.Context, *metainternalversion.ListOptions) (watch.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 16})
	c.watchers = append(c.watchers, w)
	return w, nil
}

func (c *carps) Create(ctx context.Context, obj runtime.Object, validate registry.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	if err := validate(ctx, obj); err != nil {
		return nil, err
	}
	carp := obj.(*testapigroup.Carp)
	who, _ := request.UserFrom(ctx)
	carp.Namespace, carp.Annotations = request.NamespaceValue(ctx), map[string]string{"by": who.GetName()}
	c.mu.Lock()
	defer c.mu.Unlock()
	carp.ResourceVersion = fmt.Sprint(len(c.all) + 1)
	c.all[carp.Name] = carp
	for _, w := range c.watchers {
		w.Add(carp)
	}
	return carp, nil
}

// serve runs an extension server that asks the control plane who its clients
// are and what they may, and returns its port and what verifies it.
func serve(t *testing.T, p *apptest.Plane) (port int, ca []byte) {
	t.Helper()
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	codecs := serializer.NewCodecFactory(scheme)

	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey("pond.default.svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := certutil.WriteCert(dir+"/tls.crt", cert); err != nil {
		t.Fatal(err)
	}
	if err := certutil.WriteCert(dir+"/tls.key", key); err != nil {
		t.Fatal(err)
	}
	serving := options.NewSecureServingOptions().WithLoopback()
	serving.Listener = listener
	serving.ServerCert.CertKey = options.CertKey{CertFile: dir + "/tls.crt", KeyFile: dir + "/tls.key"}
	authn, authz := options.NewDelegatingAuthenticationOptions(), options.NewDelegatingAuthorizationOptions()
	authn.RemoteKubeConfigFile, authz.RemoteKubeConfigFile = p.Kubeconfig, p.Kubeconfig

	cfg := genericapiserver.NewRecommendedConfig(codecs)
	cfg.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	names := openapi.NewDefinitionNamer(scheme)
	cfg.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generated.GetOpenAPIDefinitions, names)
	cfg.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generated.GetOpenAPIDefinitions, names)
	cfg.ClientConfig = p.Config
	cfg.FlowControl = nil
	for _, err := range []error{
		serving.ApplyTo(&cfg.SecureServing, &cfg.LoopbackClientConfig),
		authn.ApplyTo(&cfg.Authentication, cfg.SecureServing, nil),
		authz.ApplyTo(&cfg.Authorization),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	server, err := cfg.Complete().New("pond", genericapiserver.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(testapigroup.GroupName, scheme, runtime.NewParameterCodec(scheme), codecs)
	group.VersionedResourcesStorageMap["v1"] = map[string]registry.Storage{
		"carps": &carps{TableConvertor: registry.NewDefaultTableConvertor(carpsV1.GroupResource()), all: map[string]*testapigroup.Carp{}},
	}
	if err := server.InstallAPIGroup(&group); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.PrepareRun().RunWithContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the extension server ended with %v", err)
		}
	})
	return listener.Addr().(*net.TCPAddr).Port, cert
}

func register(t *testing.T, p *apptest.Plane, number int, ca []byte) {
	t.Helper()
	port := int32(number)
	if _, err := kubernetes.NewForConfigOrDie(p.Config).CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "pond"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	services := aggregator.NewForConfigOrDie(p.Config).ApiregistrationV1().APIServices()
	s, err := services.Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1." + testapigroup.GroupName},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: testapigroup.GroupName, Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, CABundle: ca,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "pond", Port: &port},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); !helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available); time.Sleep(10 * time.Millisecond) {
		if s, err = services.Get(t.Context(), s.Name, metav1.GetOptions{}); err != nil || time.Now().After(deadline) {
			t.Fatalf("not available: %+v, %v", s.Status, err)
		}
	}
}

func carp(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": testapigroup.GroupName + "/v1", "kind": "Carp", "metadata": map[string]any{"name": name},
	}}
}

func TestAnExtensionServerWorksBehindTheControlPlane(t *testing.T) {
	p := apptest.Start(t)
	port, ca := serve(t, p)
	register(t, p, port, ca)
	ctx := t.Context()
	pond := func(cfg *rest.Config) dynamic.ResourceInterface {
		return dynamic.NewForConfigOrDie(cfg).Resource(carpsV1).Namespace("default")
	}
	admin := pond(p.Config)
	w, err := admin.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	made, err := admin.Create(ctx, carp("koi"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if by := made.GetAnnotations()["by"]; by != "setpoint-admin" {
		t.Errorf("the carp was made by %q", by)
	}
	if e := <-w.ResultChan(); e.Type != watch.Added {
		t.Errorf("the watch told %v", e)
	}
	list, err := admin.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("listed %v, %v", list, err)
	}
	if _, err := admin.Get(ctx, "dace", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an absent carp: %v", err)
	}

	// A user with rights here has them there: the extension server asks this one.
	ann := rest.CopyConfig(p.Config)
	ann.Impersonate = rest.ImpersonationConfig{UserName: "ann"}
	if _, err := pond(ann).Get(ctx, "koi", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without rights: %v", err)
	}
	kube := kubernetes.NewForConfigOrDie(p.Config).RbacV1()
	if _, err := kube.Roles("default").Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "anglers"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get", "create"}, APIGroups: []string{testapigroup.GroupName}, Resources: []string{"carps"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "anglers"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "anglers"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "ann"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if made, err = pond(ann).Create(ctx, carp("ide"), metav1.CreateOptions{}); err != nil || made.GetAnnotations()["by"] != "ann" {
		t.Errorf("a user with rights: %v, %v", made, err)
	}
	resources, err := kubernetes.NewForConfigOrDie(p.Config).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, l := range resources {
		found = found || strings.HasPrefix(l.GroupVersion, testapigroup.GroupName) && len(l.APIResources) == 1 && l.APIResources[0].Name == "carps"
	}
	if !found {
		t.Error("discovery does not tell of carps")
	}
	for path, want := range map[string]string{
		"/openapi/v2": `"/apis/` + testapigroup.GroupName + `/v1/namespaces/{namespace}/carps/{name}"`,
		"/openapi/v3": `"apis/` + testapigroup.GroupName + `/v1"`,
		"/openapi/v3/apis/" + testapigroup.GroupName + "/v1": `"io.k8s.apimachinery.pkg.apis.testapigroup.v1.CarpSpec"`,
	} {
		body, err := kubernetes.NewForConfigOrDie(p.Config).RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: no %s in it: %v", path, want, err)
		}
	}
}

func TestNobodySpeaksForOthersToAnExtensionServer(t *testing.T) {
	p := apptest.Start(t)
	port, _ := serve(t, p)
	// A client of the control plane, who is no front proxy, forges headers.
	client := rest.CopyConfig(p.Config)
	client.Host, client.CAData, client.Insecure = fmt.Sprintf("https://127.0.0.1:%d", port), nil, true
	c, err := rest.HTTPClientFor(client)
	if err != nil {
		t.Fatal(err)
	}
	// The extension server comes to know by and by whom to believe; till then
	// this is nobody's request.
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		code, body := forge(t, c, client.Host)
		if code == http.StatusForbidden && strings.Contains(body, "system:anonymous") && time.Now().Before(deadline) {
			c.CloseIdleConnections()
			continue
		}
		if code != http.StatusCreated || !strings.Contains(body, `"by":"setpoint-admin"`) {
			t.Errorf("%d: %s", code, body)
		}
		return
	}
}

// forge creates a carp and says that it is for somebody else.
func forge(t *testing.T, c *http.Client, host string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, host+"/apis/"+testapigroup.GroupName+"/v1/namespaces/default/carps",
		strings.NewReader(`{"apiVersion": "`+testapigroup.GroupName+`/v1", "kind": "Carp", "metadata": {"name": "koi"}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Remote-User", "mallory")
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() //nolint:errcheck // it has been read
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}
