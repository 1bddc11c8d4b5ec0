// Package aggregatetest is an API server to put behind another one in tests.
//
// It serves plants in garden.example.com/v1 over TLS on loopback: get, list,
// watch, create, and an echo over an upgraded connection at
// plants/NAME/echo. It believes whoever its front proxy says a request is from,
// and keeps what it was told.
package aggregatetest

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

// What is served.
const (
	Group    = "garden.example.com"
	Version  = "v1"
	Resource = "plants"
	Kind     = "Plant"
	Path     = "/apis/" + Group + "/" + Version
	// Namespace and Name are the service's.
	Namespace = "default"
	Name      = "garden"
	// APIService is the name of the registration.
	APIService = Version + "." + Group
)

// Plant is the kind that is served.
type Plant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Height            int `json:"height,omitempty"`
}

// Server is a running server.
type Server struct {
	// CA verifies the server, as PEM.
	CA []byte
	// Old makes it a server from before aggregated discovery and OpenAPI v3.
	Old bool

	tls  *tls.Config
	port int

	mu       sync.Mutex // guards the fields below
	http     *http.Server
	plants   map[string]*Plant
	watchers map[chan *Plant]bool
	asked    []Asked
	ended    chan string
}

// Asked is a request that the server got.
type Asked struct {
	Path   string
	Header http.Header
	// Proxy is the common name of the client's certificate.
	Proxy string
}

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{plants: map[string]*Plant{}, watchers: map[chan *Plant]bool{}, ended: make(chan string, 16)}
	s.makeCertificate(t)
	s.Up(t)
	t.Cleanup(s.Down)
	return s
}

func (s *Server) makeCertificate(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "garden-ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{Name + "." + Namespace + ".svc"},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	s.tls = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"h2", "http/1.1"},
	}
}

// Up has the server listen, on the port that it had before if it had one.
func (s *Server) Up(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.port)) //nolint:noctx // it does not wait
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port = l.Addr().(*net.TCPAddr).Port
	s.http = &http.Server{Handler: s, TLSConfig: s.tls.Clone(), ReadHeaderTimeout: time.Minute}
	go func(h *http.Server) { _ = h.ServeTLS(l, "", "") }(s.http) // until it is closed
}

// Down ends the server and all its connections.
func (s *Server) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.http.Close() // nothing is kept
}

// Port is where the server listens, on loopback.
func (s *Server) Port() int32 { return int32(s.port) }

// Asked are the requests so far whose paths begin with a prefix.
func (s *Server) Asked(prefix string) []Asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.asked), func(a Asked) bool { return !strings.HasPrefix(a.Path, prefix) })
}

// Ended tells the paths of watches whose client has gone.
func (s *Server) Ended() <-chan string { return s.ended }

// Service is how the server is reached: a name for loopback.
func (s *Server) Service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
}

// Registration is the server's APIService.
func (s *Server) Registration() *apiregistrationv1.APIService {
	port := s.Port()
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: APIService},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: Group, Version: Version, GroupPriorityMinimum: 2000, VersionPriority: 10, CABundle: s.CA,
			Service: &apiregistrationv1.ServiceReference{Namespace: Namespace, Name: Name, Port: &port},
		},
	}
}

// Register puts the server behind a control plane.
func (s *Server) Register(t testing.TB, cfg *rest.Config) {
	t.Helper()
	if _, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Services(Namespace).Create(t.Context(), s.Service(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := aggregator.NewForConfigOrDie(cfg).ApiregistrationV1().APIServices().Create(t.Context(), s.Registration(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked := Asked{Path: r.URL.Path, Header: r.Header.Clone()}
	if len(r.TLS.PeerCertificates) > 0 {
		asked.Proxy = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	s.mu.Lock()
	s.asked = append(s.asked, asked)
	s.mu.Unlock()
	rest, inside := strings.CutPrefix(r.URL.Path, Path+"/namespaces/default/"+Resource)
	switch {
	case inside && rest == "" && r.Method == http.MethodPost:
		s.create(w, r)
	case inside && rest == "" && r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	case inside && rest == "":
		s.list(w)
	case inside && strings.HasSuffix(rest, "/echo"):
		echo(w, r)
	case inside:
		s.get(w, strings.TrimPrefix(rest, "/"))
	default:
		s.document(w, r)
	}
}

func answer(w http.ResponseWriter, code int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}

const plainJSON = "application/json"

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	p := &Plant{}
	if err := json.NewDecoder(r.Body).Decode(p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.TypeMeta = metav1.TypeMeta{Kind: Kind, APIVersion: Group + "/" + Version}
	p.Namespace, p.CreationTimestamp = "default", metav1.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	p.ResourceVersion = fmt.Sprint(len(s.plants) + 1)
	s.plants[p.Name] = p
	for watcher := range s.watchers {
		watcher <- p
	}
	answer(w, http.StatusCreated, plainJSON, p)
}

func (s *Server) get(w http.ResponseWriter, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.plants[name]; p != nil {
		answer(w, http.StatusOK, plainJSON, p)
		return
	}
	answer(w, http.StatusNotFound, plainJSON, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound,
		Message: fmt.Sprintf("%s.%s %q not found", Resource, Group, name), Code: http.StatusNotFound,
	})
}

func (s *Server) list(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []*Plant{}
	for _, name := range slices.Sorted(maps.Keys(s.plants)) {
		items = append(items, s.plants[name])
	}
	answer(w, http.StatusOK, plainJSON, map[string]any{
		"kind": Kind + "List", "apiVersion": Group + "/" + Version,
		"metadata": map[string]string{"resourceVersion": fmt.Sprint(len(items))}, "items": items,
	})
}

// watch streams plants that are created from now on; the answer begins at once.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	plants := make(chan *Plant, 16)
	s.mu.Lock()
	s.watchers[plants] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, plants)
		s.ended <- r.URL.Path
	}()
	w.Header().Set("Content-Type", plainJSON)
	flush := http.NewResponseController(w).Flush
	_ = flush() // the client has gone
	for {
		select {
		case p := <-plants:
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": p}) // the client has gone
			_ = flush()
		case <-r.Context().Done():
			return
		}
	}
}

// echo upgrades the connection and sends back what comes.
func echo(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "echo" {
		http.Error(w, "no upgrade is asked for", http.StatusBadRequest)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close() //nolint:errcheck // the client has gone
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_, _ = io.Copy(conn, bufio.NewReader(buffered)) // until the client goes
}

// document serves what says what is served.
func (s *Server) document(w http.ResponseWriter, r *http.Request) {
	version := metav1.GroupVersionForDiscovery{GroupVersion: Group + "/" + Version, Version: Version}
	verbs := []string{"create", "get", "list", "watch"}
	switch {
	case r.URL.Path == "/apis" && !s.Old && strings.Contains(r.Header.Get("Accept"), "as=APIGroupDiscoveryList"):
		answer(w, http.StatusOK, plainJSON+";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", apidiscovery.APIGroupDiscoveryList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
			Items: []apidiscovery.APIGroupDiscovery{{ObjectMeta: metav1.ObjectMeta{Name: Group}, Versions: []apidiscovery.APIVersionDiscovery{{
				Version: Version, Freshness: apidiscovery.DiscoveryFreshnessCurrent,
				Resources: []apidiscovery.APIResourceDiscovery{{
					Resource: Resource, SingularResource: "plant", ResponseKind: &metav1.GroupVersionKind{Kind: Kind},
					Scope: apidiscovery.ScopeNamespace, Verbs: verbs,
				}},
			}}}},
		})
	case r.URL.Path == "/apis":
		answer(w, http.StatusOK, plainJSON, metav1.APIGroupList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
			Groups:   []metav1.APIGroup{{Name: Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}},
		})
	case r.URL.Path == Path:
		answer(w, http.StatusOK, plainJSON, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.GroupVersion,
			APIResources: []metav1.APIResource{
				{Name: Resource, SingularName: "plant", Namespaced: true, Kind: Kind, Verbs: verbs},
				{Name: Resource + "/echo", Namespaced: true, Kind: Kind, Verbs: []string{"get"}},
			},
		})
	case r.URL.Path == "/openapi/v3" && !s.Old:
		answer(w, http.StatusOK, plainJSON, map[string]any{"paths": map[string]any{
			Path[1:]: map[string]string{"serverRelativeURL": "/openapi/v3" + Path + "?hash=G1"},
			"apis":   map[string]string{"serverRelativeURL": "/openapi/v3/apis?hash=G2"},
		}})
	case r.URL.Path == "/openapi/v3"+Path && !s.Old:
		answer(w, http.StatusOK, plainJSON, map[string]any{"openapi": "3.0.0", "info": map[string]string{"title": "Garden", "version": "1"}, "paths": map[string]any{}})
	case r.URL.Path == "/openapi/v2":
		_, _ = io.WriteString(w, swagger) // the client has gone
	default:
		http.NotFound(w, r)
	}
}

const swagger = `{
  "swagger": "2.0", "info": {"title": "Garden", "version": "1"},
  "paths": {
    "` + Path + `/namespaces/{namespace}/plants": {"get": {
      "operationId": "listPlants", "produces": ["application/json"],
      "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/com.example.garden.v1.Plant"}}},
      "x-kubernetes-group-version-kind": {"group": "` + Group + `", "version": "v1", "kind": "Plant"}}},
    "/version/": {"get": {"operationId": "notShown", "responses": {"200": {"description": "OK"}}}}
  },
  "definitions": {"com.example.garden.v1.Plant": {
    "type": "object", "description": "A plant.", "properties": {"height": {"type": "integer"}},
    "x-kubernetes-group-version-kind": [{"group": "` + Group + `", "version": "v1", "kind": "Plant"}]}}
}`
