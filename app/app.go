// Package app builds every room from one Config and runs them. It is the only
// room that knows the others.
package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"setpoint.dev/setpoint/admission"
	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/admission/policy"
	"setpoint.dev/setpoint/admission/webhook"
	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/controller"
	"setpoint.dev/setpoint/controller/certificate"
	"setpoint.dev/setpoint/controller/ipam"
	"setpoint.dev/setpoint/controller/nodelife"
	"setpoint.dev/setpoint/crd"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/metrics"
	"setpoint.dev/setpoint/node/pretend"
	"setpoint.dev/setpoint/pki"
	"setpoint.dev/setpoint/scheduler"
	"setpoint.dev/setpoint/server"
	"setpoint.dev/setpoint/server/aggregate"
	"setpoint.dev/setpoint/server/audit"
	"setpoint.dev/setpoint/server/authn"
	"setpoint.dev/setpoint/server/authz"
	"setpoint.dev/setpoint/server/bootstrap"
	"setpoint.dev/setpoint/server/discovery"
	"setpoint.dev/setpoint/server/fair"
	"setpoint.dev/setpoint/server/openapi"
	served "setpoint.dev/setpoint/server/planes"
	"setpoint.dev/setpoint/server/rest"
	"setpoint.dev/setpoint/server/route"
	"setpoint.dev/setpoint/server/serviceip"
	"setpoint.dev/setpoint/server/usage"
	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/embedded"
	"setpoint.dev/setpoint/store/engine/memory"
	"setpoint.dev/setpoint/watch"
)

// Memory is the data folder that keeps nothing.
const Memory = "memory"

// Config says what to run. Data is needed; the rest has defaults.
type Config struct {
	// Data is the folder that everything is kept in, or Memory.
	Data string
	// NoSync acknowledges writes that a power cut may take back, and has new keys
	// with every start. It is for control planes that end with a test.
	NoSync bool
	// EndAtOnce gives clients no time to see that the server ends, once their
	// requests have been answered.
	EndAtOnce bool
	// Listen is the address to serve on; port 0 picks one. "" means
	// 127.0.0.1:6443.
	Listen string
	// Advertise is the address that the kubernetes service leads to; the zero one
	// means the host of Listen. Without one that others can reach it leads nowhere.
	Advertise netip.Addr
	// CertFile and KeyFile are the server's certificate and key; "" means ones of
	// its own authority, which clients then know it by.
	CertFile, KeyFile string
	// ServiceRanges are one or two ranges of service addresses; none means
	// 10.0.0.0/24. A store that is in use keeps those that it has.
	ServiceRanges []netip.Prefix
	// NodePorts are the ports that services may have on every node; the zero
	// value means 30000-32767.
	NodePorts utilnet.PortRange
	// Listener is what is served on in place of Listen, if it is not nil.
	Listener net.Listener
	// Access says who vouches for users and who decides what they may do.
	Access Access
	// Admission says what objects pass before they are stored.
	Admission admission.Options
	// Audit says where the audit log goes; without a path there is none.
	Audit audit.Config
	// Initializers says how objects wait for initializers.
	Initializers initializer.Settings
	// EventTTL is how long events are kept after their last write; 0 means an
	// hour.
	EventTTL time.Duration
	// RequestTimeout is how long a request may take that is not meant to last; 0
	// means a minute.
	RequestTimeout time.Duration
	// WriteTimeout is how long a client may take nothing of its answer before
	// it is cut off; 0 means 30 seconds.
	WriteTimeout time.Duration
	// PingAfter is how long nothing may come in on a connection of several
	// streams before it is asked whether it is still there, and PingWithin how
	// long it has to answer; 0 means 30 and 15 seconds.
	PingAfter, PingWithin time.Duration
	// Fairness says how many requests may be under way, and who waits.
	Fairness Fairness
	// Controllers are those that run: names, "*" for all, "-name" for all but that
	// one. None means that none run.
	Controllers []string
	// SigningDuration is how long certificates live that controllers sign; 0 means a
	// year.
	SigningDuration time.Duration
	// UnusedTokens is how long a service account token in a secret may be unused
	// before it is given up; 0 means a year.
	UnusedTokens time.Duration
	// Scheduler says whether pods are given nodes, and how.
	Scheduler Scheduler
	// PretendNode adds a node on which pods become ready without being run. They
	// get there by the scheduler.
	PretendNode bool
	// MetricsAPI serves metrics.k8s.io, as metrics-server does elsewhere: what nodes and
	// pods use.
	MetricsAPI bool
	// Node says whether pods are run here, and how. They get there by the
	// scheduler.
	Node Node
	// NodeAccess says how the servers of nodes are reached.
	NodeAccess NodeAccess
	// Nodes says how long nodes may be silent, and how fast they are given up.
	Nodes nodelife.Settings
	// NodeRanges are what nodes' pods have their addresses from. Ranges of services
	// need not be said.
	NodeRanges ipam.Settings
	// Logger hears what happens; nil means slog.Default.
	Logger *slog.Logger
}

// App is a control plane that is ready to run. That of a fork has rooms of its
// own for everything that reads a plane, and shares the rest with main's.
type App struct {
	cfg         Config
	plane       string
	main        *App // nil for main itself
	builtin     *kinds.List
	counts      *metrics.Metrics
	drained     chan struct{} // closed when the server begins to end
	issuer      *authn.Issuer
	planes      *planes // nil for a fork
	authority   *pki.Authority
	store       *store.Store
	hub         *watch.Hub
	kinds       *crd.Registry
	fair        *fair.Gate
	rest        *rest.Handler
	server      *server.Server
	listener    net.Listener
	audit       *audit.Log   // nil when there is none
	nodes       *authz.Nodes // nil when the Node mode is not asked
	who         *authn.Authenticator
	may         *authz.Chain
	tokens      tokenKeys
	clientCA    []byte // who may sign for clients, as PEM
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	stop        context.CancelFunc // ends what runs by itself
	aggregate   *aggregate.Aggregator
	control     *controller.Set      // nil when none run
	scheduler   *scheduler.Scheduler // nil when pods are given no nodes
	checker     *policy.Checker
	stalls      *webhook.Stalls
}

// Open opens the data folder and the listener. Run serves on it; Close gives
// both back when Run is not called.
func Open(ctx context.Context, cfg Config) (_ *App, err error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:6443"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	a := &App{cfg: cfg}
	ctx, a.stop = context.WithCancel(ctx)
	if err := a.open(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *App) open(ctx context.Context) error {
	e, err := openEngine(ctx, a.cfg)
	if err != nil {
		return err
	}
	if a.store, err = store.Open(ctx, store.Config{Engine: e, Retention: retention, Logger: a.cfg.Logger}); err != nil {
		return err
	}
	a.hub = watch.New(a.store, watch.Config{})
	if a.listener = a.cfg.Listener; a.listener == nil {
		if a.listener, err = net.Listen("tcp", a.cfg.Listen); err != nil { //nolint:noctx // it does not wait
			return fmt.Errorf("listen: %w", err)
		}
	}
	host, _, err := net.SplitHostPort(a.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if a.authority, err = pki.Load(pkiFolder(a.cfg), []string{host, serviceAddress(a.cfg)}); err != nil {
		return err
	}
	if a.certificate, err = a.serving(); err != nil {
		return err
	}
	return a.build(ctx)
}

func pkiFolder(cfg Config) string {
	if cfg.Data == Memory || cfg.NoSync {
		return ""
	}
	return filepath.Join(cfg.Data, "pki")
}

// serviceAddress is what the server is reached under from inside pods.
func serviceAddress(cfg Config) string {
	if len(cfg.ServiceRanges) > 0 {
		return cfg.ServiceRanges[0].Masked().Addr().Next().String()
	}
	return pki.ServiceAddress
}

// serving is the certificate that clients are shown.
func (a *App) serving() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if a.cfg.CertFile == "" && a.cfg.KeyFile == "" {
		return a.authority.GetCertificate, nil
	}
	given, err := tls.LoadX509KeyPair(a.cfg.CertFile, a.cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file, --tls-private-key-file: %w", err)
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &given, nil }, nil
}

func openEngine(ctx context.Context, cfg Config) (engine.Engine, error) {
	if cfg.Data == Memory {
		return memory.New(), nil
	}
	if cfg.Data == "" {
		return nil, errors.New("no data folder is given")
	}
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	return embedded.Open(ctx, embedded.Config{Dir: filepath.Join(cfg.Data, "store"), NoSync: cfg.NoSync, Logger: cfg.Logger})
}

// build makes the rooms above the store.
func (a *App) build(ctx context.Context) error {
	a.plane, a.counts, a.drained = store.Main, metrics.New(), make(chan struct{})
	a.builtin = kinds.Builtin(kinds.Deps{
		Authorizer: authorizer.AuthorizerFunc(a.allows), JoinServices: serviceip.New(serviceip.Config{NodePorts: a.cfg.NodePorts}).Join, JoinDefinitions: crd.Join,
		Metrics: a.cfg.MetricsAPI,
	})
	if err := a.openAudit(); err != nil {
		return err
	}
	if err := a.loadTokenKeys(); err != nil {
		return err
	}
	a.planes = newPlanes(a)
	if err := a.buildPlane(ctx); err != nil {
		return err
	}
	a.counts.CountWaiting(a.rest.CountWaiting)
	a.counts.CountObjects(a.rest.Counts)
	if err := a.buildControllers(a.cfg.Controllers, a.counts); err != nil {
		return err
	}
	if err := a.buildScheduler(); err != nil {
		return err
	}
	if err := a.bootstrap(ctx); err != nil {
		return err
	}
	return a.register(ctx, rest.Lookup{Store: a.store})
}

// openAudit opens the audit log, if there is to be one.
func (a *App) openAudit() (err error) {
	cfg := a.cfg.Audit
	switch {
	case cfg.Path != "":
		cfg.Logger, cfg.Dropped = a.cfg.Logger, a.counts.Dropped.Inc
		a.audit, err = audit.Open(cfg)
		return err
	case cfg.PolicyFile != "":
		return errors.New("audit: a policy, but no path to write to")
	default:
		return nil
	}
}

// buildPlane makes the rooms that read the plane.
func (a *App) buildPlane(ctx context.Context) error {
	lookup := rest.Lookup{Store: a.store, Plane: a.plane}
	services := aggregate.Resolver{Objects: lookup}
	a.kinds = crd.NewRegistry(a.builtin, lookup.Definitions(0), &crd.Conversion{Services: services}, a.cfg.Logger)
	all := a.kinds.Kinds
	roles := authz.NewRoles(lookup)
	clients, err := a.decide(ctx, lookup, roles)
	if err != nil {
		return err
	}
	if a.issuer, err = authn.NewIssuer(a.cfg.Access.issuer(a.tokens, a.Address(), lookup)); err != nil {
		return err
	}
	objects, health := &rest.Objects{Store: a.store, On: a.plane, Kinds: all}, &initializer.Health{}
	a.checker = policy.NewChecker(policy.Checker{Objects: objects, Kinds: all, Send: a.send, Logger: a.cfg.Logger})
	a.stalls = webhook.NewStalls(webhook.Stalls{Objects: objects, Reachable: reachable(services), Send: a.send, Logger: a.cfg.Logger})
	chain, err := a.admits(admission.Config{
		Options: a.cfg.Admission, Objects: objects, Services: services, Failed: a.stalls.Failed, Authorizer: a.may, Kinds: all, Namespaces: provisioner{a},
		Initializers: a.cfg.Initializers, Waiting: rest.Waiting{Objects: objects}, Health: health,
	})
	if err != nil {
		return err
	}
	streams, err := a.openStreams(objects)
	if err != nil {
		return err
	}
	cfg := rest.Config{
		Store: a.store, Plane: a.plane, Hub: a.hub, Kinds: all, Admission: chain, Authorizer: a.may, Rules: a.may, Tokens: a.who, Issuer: a.issuer,
		Drain: a.drained, Guard: authz.NewGuard(roles, a.may), Watched: a.counts.Events, Initializers: a.cfg.Initializers, Health: health, Initialized: a.counts.Initialized,
		Streams: streams,
	}
	if streams != nil {
		cfg.Usage = usage.New(objects, streams, a.cfg.Logger)
	}
	if a.main != nil {
		cfg.Like = a.main.rest
	}
	a.rest = rest.New(cfg)
	if a.fair, err = a.newGate(); err != nil {
		return err
	}
	door := a.door(a.rest, all)
	if a.main == nil {
		a.aggregate = aggregate.New(aggregate.Config{
			Objects: lookup, API: a.rest, Kinds: all, Certificate: a.authority.FrontProxy, Drain: a.drained, Logger: a.cfg.Logger,
		})
		door.Discovery.Join(a.aggregate.Joined)
		door.OpenAPI.Join(a.aggregate)
		door.Elsewhere, door.ClientCAs, door.Planes = a.aggregate.Find, a.authority.AskedPool(clients), &served.Server{Keeper: a.planes}
	}
	a.server = server.New(door)
	return nil
}

// admits is what objects pass before they are stored. That of a fork is made with
// its first write, since many are only read; main's has shown that it can be.
func (a *App) admits(cfg admission.Config) (upstream.Interface, error) {
	if a.main != nil {
		return upstream.WithAudit(admission.NewLazy(cfg)), nil
	}
	chain, err := admission.New(cfg)
	if err != nil {
		return nil, err
	}
	return upstream.WithAudit(chain), nil
}

// door is what a server of the plane is made of, with kinds that may be those of
// its past.
func (a *App) door(objects *rest.Handler, all func() *kinds.List) server.Config {
	return server.Config{
		REST: objects, Discovery: discovery.New(all, codec.New(legacyscheme.Scheme), a.Address()), OpenAPI: openapi.New(all, server.Version()),
		Elsewhere: func(string) http.Handler { return nil }, Placements: http.HandlerFunc(a.servePlacements), Authn: a.who, Authz: a.may, Issuer: a.issuer, Logger: a.cfg.Logger,
		Fair: a.fair, Certificate: a.certificate, Self: pki.IsNodeClient, Drained: a.drained, EndAtOnce: a.cfg.EndAtOnce,
		Audit: a.audit, Metrics: a.counts, RequestTimeout: a.cfg.RequestTimeout, WriteTimeout: a.cfg.WriteTimeout, PingAfter: a.cfg.PingAfter, PingWithin: a.cfg.PingWithin,
	}
}

// buildControllers makes the controllers that names ask for, if there are any.
func (a *App) buildControllers(names []string, counts *metrics.Metrics) (err error) {
	if len(names) == 0 {
		return nil
	}
	a.control, err = controller.New(controller.Config{
		Handler: a.server, Controllers: names, RootCA: a.authority.CACert, Metrics: counts, Logger: a.cfg.Logger,
		Signing:      certificate.Authority{Certificate: a.authority.CA, Key: a.authority.CAKey, Life: a.cfg.SigningDuration},
		UnusedTokens: a.cfg.UnusedTokens, Nodes: a.cfg.Nodes, NodeRanges: a.nodeRanges(),
		Token: func(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
			return authn.SecretToken(ctx, a.tokens.signing, account, secret)
		},
	})
	return err
}

// allows answers what kinds ask about users. Who decides is not known yet when
// kinds are made, and is another in each plane.
func (a *App) allows(ctx context.Context, about authorizer.Attributes) (authorizer.Decision, string, error) {
	if what := route.From(ctx); what != nil {
		if fork := a.planes.find(what.Plane); fork != nil {
			return fork.may.Authorize(ctx, about)
		}
	}
	return a.may.Authorize(ctx, about)
}

// nodeRanges are what nodes are given, but for the addresses of services.
func (a *App) nodeRanges() ipam.Settings {
	s := a.cfg.NodeRanges
	s.Services = a.cfg.ServiceRanges
	if len(s.Services) == 0 {
		s.Services = []netip.Prefix{netip.MustParsePrefix(bootstrap.DefaultServiceRange)}
	}
	return s
}

// provisioner makes namespaces as the server itself does.
type provisioner struct{ app *App }

// Provision implements lent.Provisioner.
func (p provisioner) Provision(ctx context.Context, name string) error {
	return p.app.rest.Provision(ctx, name)
}

// send sends a request of the control plane itself to its own API.
func (a *App) send(ctx context.Context, method, path, media string, body any) error {
	self := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	return route.Send(ctx, a.rest, route.Sent{As: self, Agent: "setpoint", Method: method, Path: path, Media: media, Body: body})
}

// reachable says whether something accepts connections for a service.
func reachable(services aggregate.Resolver) func(namespace, name string, port int32) bool {
	return func(namespace, name string, port int32) bool {
		address, err := services.ResolveEndpoint(namespace, name, port)
		if err != nil {
			return false
		}
		c, err := net.DialTimeout("tcp", address.Host, time.Second) //nolint:noctx // it is bounded
		if err != nil {
			return false
		}
		return c.Close() == nil
	}
}

// register makes known which other servers there are before the first request:
// one that is not known yet would be taken for one that is gone.
func (a *App) register(ctx context.Context, objects rest.Lookup) error {
	services, err := objects.ListAPIServices(ctx)
	for _, s := range services {
		a.aggregate.Observe(nil, s)
	}
	return err
}

// frontProxyHeaders are those in which a front proxy, which may be this server,
// says for whom it speaks.
var frontProxyHeaders = struct{ user, uid, groups, extra []string }{
	user: []string{"X-Remote-User"}, uid: []string{"X-Remote-Uid"}, groups: []string{"X-Remote-Group"}, extra: []string{"X-Remote-Extra-"},
}

// bootstrap stores what an empty control plane starts with, or mends what one
// that has been used has of it, and says where this one is.
func (a *App) bootstrap(ctx context.Context) error {
	cfg := bootstrap.Config{
		AdvertisePort: a.port(), ServiceRanges: a.cfg.ServiceRanges, ClientCA: a.clientCA,
		RequestHeaderCA: a.authority.FrontProxyCACert, RequestHeaderAllowedNames: []string{pki.FrontProxyUser},
		RequestHeaderUsernameHeaders: frontProxyHeaders.user, RequestHeaderUIDHeaders: frontProxyHeaders.uid,
		RequestHeaderGroupHeaders: frontProxyHeaders.groups, RequestHeaderExtraHeadersStart: frontProxyHeaders.extra,
	}
	cfg.AdvertiseAddress = a.cfg.Advertise
	if host, _, err := net.SplitHostPort(a.cfg.Listen); err == nil && !cfg.AdvertiseAddress.IsValid() {
		cfg.AdvertiseAddress, _ = netip.ParseAddr(host) // a name is no address to advertise
	}
	local := aggregate.Local(a.rest.Kinds())
	stored := func(obj runtime.Object) (runtime.Object, error) { return a.rest.Stored(ctx, obj) }
	var more []runtime.Object
	if a.cfg.MetricsAPI {
		var err error
		if more, err = bootstrap.MetricsReader(stored); err != nil {
			return err
		}
	}
	if a.store.Current() == 0 {
		objects, err := bootstrap.Objects(cfg)
		if err != nil {
			return err
		}
		return a.rest.Bootstrap(ctx, withServices(append(objects, more...), local), bootstrap.Edition)
	}
	objects, err := bootstrap.Refresh(cfg, stored)
	if err != nil {
		return err
	}
	done, err := a.rest.Reconciled(ctx, bootstrap.Edition)
	if err != nil {
		return err
	}
	if !done {
		roles, err := bootstrap.Reconcile(stored)
		if err != nil {
			return err
		}
		objects = append(objects, roles...)
	}
	have, err := rest.Lookup{Store: a.store}.ListAPIServices(ctx)
	if err != nil {
		return err
	}
	if err := a.rest.Bootstrap(ctx, withServices(append(objects, more...), aggregate.Missing(local, have)), bootstrap.Edition); err != nil {
		return err
	}
	return a.aggregate.Restore(ctx, local, have)
}

func withServices(objects []runtime.Object, services []*apiregistrationv1.APIService) []runtime.Object {
	for _, s := range services {
		objects = append(objects, s)
	}
	return objects
}

// Address is the host and port that the server listens on.
func (a *App) Address() string { return a.listener.Addr().String() }

func (a *App) port() int {
	_, port, _ := net.SplitHostPort(a.Address()) // a listener's address has a port
	n, _ := strconv.Atoi(port)
	return n
}

// URL is where clients reach the server.
func (a *App) URL() string { return "https://" + a.Address() }

// Handler answers requests that come from inside the process.
func (a *App) Handler() http.Handler { return a.server }

// Controllers are those that run beside the server; nil when none do.
func (a *App) Controllers() *controller.Set { return a.control }

// Authority is the control plane's certificate authority.
func (a *App) Authority() *pki.Authority { return a.authority }

// Run serves until ctx ends, and returns after all that it started has ended.
// It closes the app.
func (a *App) Run(ctx context.Context) error {
	hubs, stopHub := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHub()
	var g errgroup.Group
	g.Go(func() error {
		defer stopHub() // after the last watch
		return a.server.Run(ctx, a.listener)
	})
	g.Go(func() error { return a.hub.Run(hubs) })
	g.Go(func() error {
		<-hubs.Done()
		return a.planes.close()
	})
	if a.fair != nil {
		g.Go(func() error { return a.fair.Run(ctx) })
	}
	a.startBackground(hubs, &g)
	if a.control != nil {
		g.Go(func() error { return a.control.Run(ctx) })
	}
	if a.scheduler != nil {
		g.Go(func() error { return a.scheduler.Run(ctx) })
	}
	if a.cfg.Node.On {
		g.Go(func() error { return a.runNode(ctx) })
	}
	if a.cfg.PretendNode {
		g.Go(func() error { return pretend.New(a.server, a.cfg.Logger).Run(ctx) })
	}
	err := g.Wait()
	a.listener = nil // the server has closed it
	return errors.Join(err, a.Close())
}

// Close gives back the data folder and the listener.
func (a *App) Close() error {
	defer a.stop()
	var errs []error
	if a.listener != nil {
		errs = append(errs, a.listener.Close())
	}
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	return errors.Join(errs...)
}
