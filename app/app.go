// Package app builds every room from one Config and runs them. It is the only
// room that knows the others.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/crd"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/metrics"
	"setpoint.dev/setpoint/pki"
	"setpoint.dev/setpoint/server"
	"setpoint.dev/setpoint/server/audit"
	"setpoint.dev/setpoint/server/authn"
	"setpoint.dev/setpoint/server/authz"
	"setpoint.dev/setpoint/server/bootstrap"
	"setpoint.dev/setpoint/server/discovery"
	"setpoint.dev/setpoint/server/openapi"
	"setpoint.dev/setpoint/server/rest"
	"setpoint.dev/setpoint/server/serviceip"
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
	// Listen is the address to serve on; port 0 picks one. "" means
	// 127.0.0.1:6443.
	Listen string
	// AuthorizationModes are asked in order; none means Node and RBAC.
	AuthorizationModes []string
	// TokenFile is a CSV file of static tokens; "" means none.
	TokenFile string
	// Audit says where the audit log goes; without a path there is none.
	Audit audit.Config
	// EventTTL is how long events are kept after their last write; 0 means an
	// hour.
	EventTTL time.Duration
	// WriteTimeout is how long a client may take nothing of its answer before
	// it is cut off; 0 means 30 seconds.
	WriteTimeout time.Duration
	// Logger hears what happens; nil means slog.Default.
	Logger *slog.Logger
}

// App is a control plane that is ready to run.
type App struct {
	cfg       Config
	authority *pki.Authority
	store     *store.Store
	hub       *watch.Hub
	kinds     *crd.Registry
	rest      *rest.Handler
	server    *server.Server
	listener  net.Listener
	audit     *audit.Log   // nil when there is none
	nodes     *authz.Nodes // nil when the Node mode is not asked
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
	if a.listener, err = net.Listen("tcp", a.cfg.Listen); err != nil { //nolint:noctx // it does not wait
		return fmt.Errorf("listen: %w", err)
	}
	host, _, err := net.SplitHostPort(a.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if a.authority, err = pki.Load(pkiFolder(a.cfg), []string{host, pki.ServiceAddress}); err != nil {
		return err
	}
	return a.build(ctx)
}

func pkiFolder(cfg Config) string {
	if cfg.Data == Memory {
		return ""
	}
	return filepath.Join(cfg.Data, "pki")
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
	return embedded.Open(ctx, embedded.Config{Dir: filepath.Join(cfg.Data, "store"), Logger: cfg.Logger})
}

// build makes the rooms above the store.
func (a *App) build(ctx context.Context) error {
	lookup := rest.Lookup{Store: a.store}
	builtin := kinds.Builtin(kinds.Deps{JoinServices: serviceip.New(serviceip.Config{}).Join, JoinDefinitions: crd.Join})
	a.kinds = crd.NewRegistry(builtin, lookup.Definitions(), &crd.Conversion{}, a.cfg.Logger)
	all := a.kinds.Kinds
	drained := make(chan struct{})
	who, err := authn.New(ctx, authn.Config{
		ClientCAs: a.authority.ClientPool(), ServiceAccountKeys: []any{a.authority.ServiceAccountKey}, Objects: lookup,
		BootstrapTokens: true, TokenFile: a.cfg.TokenFile, Anonymous: true,
	})
	if err != nil {
		return err
	}
	modes := a.cfg.AuthorizationModes
	if len(modes) == 0 {
		modes = []string{authz.Node, authz.RBAC}
	}
	if slices.Contains(modes, authz.Node) {
		a.nodes = authz.NewNodes()
	}
	roles := authz.NewRoles(lookup)
	may, rules, err := authz.New(authz.Config{Modes: modes, Roles: roles, Nodes: a.nodes})
	if err != nil {
		return err
	}
	counts := metrics.New()
	if a.cfg.Audit.Path != "" {
		cfg := a.cfg.Audit
		cfg.Logger, cfg.Dropped = a.cfg.Logger, counts.Dropped.Inc
		if a.audit, err = audit.Open(cfg); err != nil {
			return err
		}
	} else if a.cfg.Audit.PolicyFile != "" {
		return errors.New("audit: a policy, but no path to write to")
	}
	issuer, err := authn.NewIssuer(authn.IssuerConfig{Key: a.authority.ServiceAccountKey, Address: a.Address(), Objects: lookup})
	if err != nil {
		return err
	}
	a.rest = rest.New(rest.Config{Store: a.store, Hub: a.hub, Kinds: all, Authorizer: may, Rules: rules, Tokens: who, Issuer: issuer, Drain: drained, Guard: authz.NewGuard(roles, may), Watched: counts.Events})
	counts.CountObjects(a.rest.Counts)
	a.server = server.New(server.Config{
		REST: a.rest, Discovery: discovery.New(all, codec.New(legacyscheme.Scheme), a.Address()),
		OpenAPI: openapi.New(all, server.Version()), Authn: who, Authz: may, Issuer: issuer, Logger: a.cfg.Logger,
		Certificate: a.authority.GetCertificate, ClientCAs: a.authority.ClientPool(), Drained: drained,
		Audit: a.audit, Metrics: counts, WriteTimeout: a.cfg.WriteTimeout,
	})
	return a.bootstrap(ctx)
}

// bootstrap stores what an empty control plane starts with, and where this one
// is.
func (a *App) bootstrap(ctx context.Context) error {
	cfg := bootstrap.Config{AdvertisePort: a.port(), ClientCA: a.authority.CACert}
	if host, _, err := net.SplitHostPort(a.cfg.Listen); err == nil {
		cfg.AdvertiseAddress, _ = netip.ParseAddr(host) // a name is no address to advertise
	}
	var objects []runtime.Object
	var err error
	if a.store.Current() == 0 {
		if objects, err = bootstrap.Objects(cfg); err != nil {
			return err
		}
		return a.rest.Bootstrap(ctx, objects, false)
	}
	if objects, err = bootstrap.Current(cfg); err != nil {
		return err
	}
	return a.rest.Bootstrap(ctx, objects, true)
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
	a.startBackground(hubs, &g)
	err := g.Wait()
	a.listener = nil // the server has closed it
	return errors.Join(err, a.Close())
}

// Close gives back the data folder and the listener.
func (a *App) Close() error {
	var errs []error
	if a.listener != nil {
		errs = append(errs, a.listener.Close())
	}
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	return errors.Join(errs...)
}
