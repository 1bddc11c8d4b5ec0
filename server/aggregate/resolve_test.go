package aggregate_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/pki"
	"setpoint.dev/setpoint/server/aggregate"
	"setpoint.dev/setpoint/server/aggregate/aggregatetest"
)

// running is a service and where it runs. The API takes no endpoints on
// loopback, which is where test servers are.
type running struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

func (r running) GetService(_ context.Context, _, name string) (*corev1.Service, error) {
	if r.service == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, name)
	}
	return r.service, nil
}

func (r running) GetEndpointSlices(context.Context, string, string) ([]*discoveryv1.EndpointSlice, error) {
	return r.slices, nil
}

// asked is the answer to a request, which may be one that this server has
// sent itself, that is passed on to s.
func asked(t *testing.T, objects running, s *aggregatetest.Server, own bool) int {
	t.Helper()
	authority, err := pki.Load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	checked := make(chan struct{}, 16)
	a := aggregate.New(aggregate.Config{
		Objects: objects, Kinds: func() *kinds.List { return kinds.NewList(nil) }, Certificate: authority.FrontProxy,
		Drain: make(chan struct{}), Logger: slog.New(slog.DiscardHandler),
		API: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			checked <- struct{}{} // the condition is written
		}),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	a.Observe(nil, s.Registration())
	<-checked
	r := httptest.NewRequestWithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: "ann"}), http.MethodGet, aggregatetest.Path, http.NoBody)
	r.TLS = &tls.ConnectionState{}
	if cert, err := authority.FrontProxy(); err == nil && own {
		r.TLS.PeerCertificates = []*x509.Certificate{cert.Leaf}
	}
	w := httptest.NewRecorder()
	a.Find(aggregatetest.Path).ServeHTTP(w, r)
	return w.Code
}

func TestAServerIsReachedAtAReadyEndpoint(t *testing.T) {
	t.Parallel()
	s := aggregatetest.Start(t)
	name, yes, no := "api", true, false
	number, wrong := s.Port(), int32(1)
	service := func(kind corev1.ServiceType) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{
			Type: kind, ClusterIP: "127.0.0.1", ExternalName: "localhost", Ports: []corev1.ServicePort{{Name: name, Port: number}},
		}}
	}
	slice := func(port *int32, ready *bool) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}},
		}
	}
	for what, c := range map[string]struct {
		objects running
		want    int
	}{
		"ready endpoint":                    {running{service(corev1.ServiceTypeClusterIP), []*discoveryv1.EndpointSlice{slice(&number, &yes)}}, http.StatusOK},
		"endpoint that says nothing":        {running{service(corev1.ServiceTypeClusterIP), []*discoveryv1.EndpointSlice{slice(&number, nil)}}, http.StatusOK},
		"one ready, one not":                {running{service(corev1.ServiceTypeClusterIP), []*discoveryv1.EndpointSlice{slice(&wrong, &no), slice(&number, &yes)}}, http.StatusOK},
		"endpoint that is not ready":        {running{service(corev1.ServiceTypeClusterIP), []*discoveryv1.EndpointSlice{slice(&number, &no)}}, http.StatusServiceUnavailable},
		"endpoint that does not answer":     {running{service(corev1.ServiceTypeClusterIP), []*discoveryv1.EndpointSlice{slice(&wrong, &yes)}}, http.StatusServiceUnavailable},
		"node port that runs nowhere known": {running{service(corev1.ServiceTypeNodePort), nil}, http.StatusOK},
		"another host":                      {running{service(corev1.ServiceTypeExternalName), nil}, http.StatusOK},
		"no service":                        {running{}, http.StatusServiceUnavailable},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if got := asked(t, c.objects, s, false); got != c.want {
				t.Errorf("answered with %d, want %d", got, c.want)
			}
		})
	}
	t.Run("this server itself", func(t *testing.T) {
		t.Parallel()
		objects := running{service(corev1.ServiceTypeExternalName), nil}
		if got := asked(t, objects, s, true); got != http.StatusLoopDetected {
			t.Errorf("answered with %d", got)
		}
	})
}
