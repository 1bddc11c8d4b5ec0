package aggregate

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"net/url"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	proxyutil "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/streaming/pkg/httpstream"

	"setpoint.dev/setpoint/server/lasting"
	"setpoint.dev/setpoint/server/route"
)

// backend passes requests for one group version on to the server of its
// APIService. It does not change.
type backend struct {
	of        *Aggregator
	service   *apiregistrationv1.APIService
	available bool
	// transport reaches the server; err says why there is none.
	transport *http.Transport
	err       error
}

// backendOf is how an APIService is reached, nil when it is served here.
// Connections of the earlier one are kept when they may still be used.
//
// Compat: APIServices themselves are always served here.
func (a *Aggregator) backendOf(s *apiregistrationv1.APIService, available bool, earlier *backend) *backend {
	if s.Spec.Service == nil || s.Spec.Group == apiregistrationv1.GroupName {
		earlier.close()
		return nil
	}
	b := &backend{of: a, service: s, available: available}
	if earlier != nil && equalSpecs(earlier.service, s) {
		if earlier.available == b.available {
			return earlier
		}
		b.transport, b.err = earlier.transport, earlier.err
		return b
	}
	earlier.close()
	b.transport, b.err = a.dial(s)
	return b
}

// dial makes the connections to a server: as its APIService says how to verify
// it, with this server's certificate as a front proxy.
func (a *Aggregator) dial(s *apiregistrationv1.APIService) (*http.Transport, error) {
	cfg, err := transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{
		Insecure:   s.Spec.InsecureSkipTLSVerify,
		ServerName: s.Spec.Service.Name + "." + s.Spec.Service.Namespace + ".svc",
		CAData:     s.Spec.CABundle,
	}})
	if err != nil {
		return nil, err
	}
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.Certificate() }
	return utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: cfg, MaxIdleConnsPerHost: maxIdle}), nil
}

// maxIdle is how many unused connections to a server are kept.
const maxIdle = 25

func (b *backend) close() {
	if b != nil && b.transport != nil {
		b.transport.CloseIdleConnections()
	}
}

// unavailable is what clients of a server that cannot be reached read.
const unavailable = "service unavailable"

// ServeHTTP passes a request on as the user in its context.
//
// Compat: errors are told as text, as upstream does.
func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, known := request.UserFrom(r.Context())
	switch {
	case !b.available:
		http.Error(w, unavailable, http.StatusServiceUnavailable)
		return
	case b.err != nil:
		http.Error(w, b.err.Error(), http.StatusInternalServerError)
		return
	case !known:
		http.Error(w, "missing user", http.StatusInternalServerError)
		return
	case b.of.sent(r):
		http.Error(w, "the service is this server", http.StatusLoopDetected)
		return
	}
	at, err := b.of.resolve(r.Context(), b.service.Spec.Service)
	if err != nil {
		b.of.Logger.Debug("no address of an API server", "apiservice", b.service.Name, "error", err)
		http.Error(w, unavailable, http.StatusServiceUnavailable)
		return
	}
	at.Path, at.RawQuery = r.URL.Path, r.URL.Query().Encode()
	b.pass(w, r, who, at)
}

// sent says that a request comes from this server itself: it was passed on and
// would be again, without end.
func (a *Aggregator) sent(r *http.Request) bool {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	own, err := a.Certificate()
	return err == nil && bytes.Equal(own.Leaf.Raw, r.TLS.PeerCertificates[0].Raw)
}

func (b *backend) pass(w http.ResponseWriter, r *http.Request, who user.Info, to *url.URL) {
	passed, cancel := proxyutil.NewRequestForProxy(to, r)
	defer cancel()
	for name := range passed.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			passed.Header.Del(name) // who is who is settled
		}
	}
	var through http.RoundTripper = b.transport
	upgrade := httpstream.IsUpgradeRequest(r)
	if what := route.From(r.Context()); upgrade || what != nil && what.Long() {
		var done func()
		passed, done = lasting.Request(b.of.ending, passed)
		defer done()
		through = lasting.Transport(b.of.ending, through)
		w = lasting.Writer(b.of.ending, w)
	}
	through = transport.NewAuthProxyRoundTripper(who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra(), through)
	if upgrade {
		// An upgrade goes around the round tripper.
		transport.SetAuthProxyHeaders(passed, who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra())
	}
	proxy.NewUpgradeAwareHandler(to, through, true, upgrade, responder{}).ServeHTTP(w, passed)
}

// responder tells clients why nothing could be had from a server.
type responder struct{}

// Error implements proxy.ErrorResponder.
func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}
