// Package stream carries what only nodes can do: logs of containers, commands
// in them, their terminals and ports, and requests to pods, services and nodes.
//
// In comes a request that has passed authorization and admission, as the
// options that it gives; out goes what the node's HTTPS server, or the pod
// itself, has to say. Where a node is, is in its status; this server shows it a
// certificate of its own and asks for one that a known authority has signed.
//
//	log                        -> node: GET /containerLogs/...           -> the answer's body
//	exec, attach, port-forward -> node: upgrade of /exec/... and so on   -> both sides, as they are
//	  WebSockets                 translated to SPDY on the way, unless the node takes them
//	proxy                      -> pod, endpoint of a service, or node    -> with its links rewritten
//
// Nothing here has an end of its own: all of it ends with either side, and when
// this server begins to end. Errors are API errors in upstream's words, which
// its own functions say where a location is looked for.
package stream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubelet "k8s.io/kubernetes/pkg/kubelet/client"
	nodeutil "k8s.io/kubernetes/pkg/util/node"

	"setpoint.dev/setpoint/server/lasting"
)

// Config is what streams work with. Objects, Certificate, Roots and Drain are
// needed.
type Config struct {
	// Objects are those of the plane whose pods run.
	Objects Objects
	// Certificate is what this server shows to nodes, and Roots are who may vouch
	// for theirs.
	Certificate func() (*tls.Certificate, error)
	Roots       *x509.CertPool
	// Addresses are the types of nodes' addresses, those that are tried first
	// first; none means DefaultAddresses.
	Addresses []corev1.NodeAddressType
	// Timeout is how long it may take to connect; 0 means 30 seconds.
	Timeout time.Duration
	// Dial connects to nodes and pods; nil means by the network of this machine.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Drain is closed when streams should end, because the server does.
	Drain <-chan struct{}
}

// Objects finds objects in the version that is asked for. What is not there is a
// NotFound error. What is found is not changed.
type Objects interface {
	Get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (runtime.Object, error)
}

// DefaultAddresses is the order in which addresses of nodes are tried.
var DefaultAddresses = []corev1.NodeAddressType{
	corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS, corev1.NodeHostName,
}

// DefaultPort is where nodes listen that do not say where.
const DefaultPort = 10250

// dialTimeout and keepAlive are of connections to nodes and pods.
const (
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

// Streams reaches nodes and what runs on them.
type Streams struct {
	Config
	ending context.Context
	// nodes reaches nodes' servers, and careless also those whose certificates
	// nobody vouches for; pods reaches everything else.
	nodes, careless, pods http.RoundTripper
}

// New returns streams that have reached nothing yet.
func New(cfg Config) *Streams {
	if len(cfg.Addresses) == 0 {
		cfg.Addresses = DefaultAddresses
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = dialTimeout
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: cfg.Timeout, KeepAlive: keepAlive}).DialContext
	}
	s := &Streams{Config: cfg, ending: lasting.Until(cfg.Drain)}
	shown := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cfg.Certificate() }
	s.nodes = s.transport(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.Roots, GetClientCertificate: shown})
	s.careless = s.transport(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, GetClientCertificate: shown}) //nolint:gosec // who asks for logs has said so
	s.pods = s.transport(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true})                                  //nolint:gosec // Compat: pods' certificates are nobody's
	return s
}

func (s *Streams) transport(cfg *tls.Config) http.RoundTripper {
	return lasting.Transport(s.ending, utilnet.SetTransportDefaults(&http.Transport{DialContext: s.Dial, TLSClientConfig: cfg}))
}

// GetConnectionInfo says how a node is reached. It implements the interface that
// upstream's locations ask.
func (s *Streams) GetConnectionInfo(ctx context.Context, name types.NodeName) (*kubelet.ConnectionInfo, error) {
	node, err := get[*corev1.Node](ctx, s.Objects, "nodes", "", string(name))
	if err != nil {
		return nil, err
	}
	host, err := nodeutil.GetPreferredNodeAddress(node, s.Addresses)
	if err != nil {
		return nil, err
	}
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port <= 0 {
		port = DefaultPort
	}
	return &kubelet.ConnectionInfo{
		Scheme: "https", Hostname: host, Port: strconv.Itoa(port), NodeFeatures: node.Status.DeclaredFeatures,
		Transport: s.nodes, InsecureSkipTLSVerifyTransport: s.careless,
	}, nil
}

// Get asks the server of a node for a path, and returns what it answers.
func (s *Streams) Get(ctx context.Context, node, path string) (io.ReadCloser, error) {
	on, err := s.GetConnectionInfo(ctx, types.NodeName(node))
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, on.Scheme+"://"+net.JoinHostPort(on.Hostname, on.Port)+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := on.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("node %s answers %s with %s", node, path, answer.Status), answer.Body.Close())
	}
	return answer.Body, nil
}

// get finds an object of the core group in its only version. Compat: one that is
// not there is said to be of the kind that the request is for.
func get[T runtime.Object](ctx context.Context, from Objects, resource, namespace, name string) (T, error) {
	var none T
	obj, err := from.Get(ctx, corev1.SchemeGroupVersion.WithResource(resource), namespace, name)
	if apierrors.IsNotFound(err) {
		return none, apierrors.NewNotFound(asked(ctx), name)
	}
	if err != nil {
		return none, err
	}
	found, is := obj.(T)
	if !is {
		return none, apierrors.NewInternalError(fmt.Errorf("%s %q is a %T", resource, name, obj))
	}
	return found, nil
}

// asked is the kind that the request in a context is for.
func asked(ctx context.Context) schema.GroupResource {
	info, _ := request.RequestInfoFrom(ctx)
	if info == nil {
		return schema.GroupResource{}
	}
	return schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
}

// getter finds the internal form of the objects of a resource in the namespace of
// a context, for upstream's locations.
type getter struct {
	objects  Objects
	resource string
}

// Get implements pod.ResourceGetter and node.ResourceGetter.
func (g getter) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	obj, err := get[runtime.Object](ctx, g.objects, g.resource, request.NamespaceValue(ctx), name)
	if err != nil {
		return nil, err
	}
	return legacyscheme.Scheme.ConvertToVersion(obj, runtime.InternalGroupVersioner)
}
