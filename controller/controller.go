package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/controller/certificate"
	"setpoint.dev/setpoint/controller/ipam"
	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/nodelife"
	"setpoint.dev/setpoint/controller/token"
	"setpoint.dev/setpoint/metrics"
)

// Config says which controllers run, and against what. Handler is needed; with
// the rest at zero all controllers run, and nobody else's do.
type Config struct {
	// Handler is the API.
	Handler http.Handler
	// Controllers are those that run: names, "*" for all that need not be named,
	// "-name" for all but that one. None means "*".
	Controllers []string
	// Shared says that other servers have the same store. Then the controllers
	// run while this server holds the lease kube-system/kube-controller-manager.
	Shared bool
	// RootCA is what clients know the API server by, as PEM.
	RootCA []byte
	// Signing is who signs certificates that are asked for.
	Signing certificate.Authority
	// Token makes service account tokens that live in secrets.
	Token token.Make
	// UnusedTokens is how long such a token may be unused before it is given up; 0
	// means a year.
	UnusedTokens time.Duration
	// Nodes says how long nodes may be silent, and how fast they are given up.
	Nodes nodelife.Settings
	// NodeRanges are what nodes' pods have their addresses from.
	NodeRanges ipam.Settings
	// Metrics count queues; nil counts nothing.
	Metrics *metrics.Metrics
	// Logger hears what happens; nil means slog.Default.
	Logger *slog.Logger
}

// identity is who reads for all controllers. Compat: it is upstream's, and so is
// the name under which fields are owned.
const (
	identity  = user.KubeControllerManager
	userAgent = "kube-controller-manager/setpoint"
)

// Set is the controllers of a control plane.
type Set struct {
	cfg      Config
	api      *client.Client
	entries  []entry
	starting sync.Mutex // held while a controller is made
}

// New returns the controllers that cfg names. It starts nothing.
func New(cfg Config) (*Set, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if err := cfg.NodeRanges.Check(); err != nil {
		return nil, err
	}
	entries, err := chosen(cfg.Controllers)
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e entry) bool { return e.needed != nil && !e.needed(cfg) })
	return &Set{cfg: cfg, entries: entries, api: client.New(client.Config{
		Handler: cfg.Handler, UserAgent: userAgent, Uninitialized: []string{"pods"},
		User: &user.DefaultInfo{Name: identity, Groups: []string{user.AllAuthenticated}},
	})}, nil
}

// Names are the names of all controllers, sorted.
func Names() []string { return namesOf(func(entry) bool { return true }) }

// Named are the names of those that run only where they are named, sorted.
func Named() []string { return namesOf(func(e entry) bool { return e.named }) }

func namesOf(which func(entry) bool) []string {
	var names []string
	for _, e := range all {
		if which(e) {
			names = append(names, e.name)
		}
	}
	slices.Sort(names)
	return names
}

// chosen are the controllers that names ask for.
func chosen(names []string) ([]entry, error) {
	if len(names) == 0 {
		names = []string{"*"}
	}
	for _, name := range names {
		bare := strings.TrimPrefix(name, "-")
		if bare != "*" && !slices.ContainsFunc(all, func(e entry) bool { return e.is(bare) }) {
			return nil, fmt.Errorf("%q is not in the list of known controllers", bare)
		}
	}
	var picked []entry
	for _, e := range all {
		if e.wanted(names) {
			picked = append(picked, e)
		}
	}
	return picked, nil
}

func (e entry) is(name string) bool { return name == e.name || name == e.alias }

// wanted says whether names ask for a controller: by its name first, then by
// the star.
func (e entry) wanted(names []string) bool {
	star := false
	for _, name := range names {
		switch {
		case e.is(name):
			return true
		case e.is(strings.TrimPrefix(name, "-")):
			return false
		case name == "*":
			star = !e.named
		}
	}
	return star
}

// API is the controllers' client.
func (s *Set) API() *client.Client { return s.api }

// Run runs the controllers until ctx ends, and returns after all have ended.
func (s *Set) Run(ctx context.Context) error {
	if len(s.entries) == 0 {
		return nil
	}
	k, err := s.api.Kubernetes()
	if err != nil {
		return err
	}
	if !s.cfg.Shared {
		return s.lead(ctx, k)
	}
	return s.elect(ctx, k)
}

// The terms of the lease. Compat: they are upstream's.
const (
	leaseFor   = 15 * time.Second
	renewIn    = 10 * time.Second
	retryEvery = 2 * time.Second
)

// elect leads whenever this server holds the lease.
func (s *Set) elect(ctx context.Context, k kubernetes.Interface) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	lock := &lease{Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-controller-manager"},
		Client:     k.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}}
	for ctx.Err() == nil {
		led := make(chan error, 1)
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: leaseFor, RenewDeadline: renewIn, RetryPeriod: retryEvery, ReleaseOnCancel: true, Name: "kube-controller-manager",
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(leading context.Context) { led <- s.lead(leading, k) },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return err
		}
		lock.won = false
		elector.Run(ctx) // until the lease is lost, or ctx ends
		if lock.won {
			if err := <-led; err != nil {
				return err
			}
		}
	}
	return nil
}

// lease takes note when it is won. The elector says it nowhere else before it
// has somebody lead.
type lease struct {
	resourcelock.Interface
	won bool
}

// RecordEvent implements resourcelock.Interface.
func (l *lease) RecordEvent(text string) {
	l.won = l.won || text == "became leader"
	l.Interface.RecordEvent(text)
}

// lead runs the controllers.
func (s *Set) lead(ctx context.Context, k kubernetes.Interface) error {
	factory, err := s.api.Informers()
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	shared := loop.Shared{
		API: s.api, Client: k, Informers: factory, Logger: s.cfg.Logger, Metrics: s.cfg.Metrics,
		Start: func() { factory.StartWithContext(ctx) },
	}
	var g errgroup.Group
	for _, e := range s.entries {
		component := e.component
		if component == "" {
			component = e.account
		}
		actor := loop.NewActor(ctx, shared, e.account, component)
		g.Go(func() error {
			s.keep(ctx, e, actor)
			return nil
		})
	}
	return g.Wait()
}

// How long a controller that has died stays so: longer each time, up to a bound.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// keep runs a controller, again and again, until ctx ends.
func (s *Set) keep(ctx context.Context, e entry, actor *loop.Actor) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		begun := time.Now()
		err := s.live(ctx, e, actor)
		if ctx.Err() != nil {
			return
		}
		s.cfg.Logger.Error("a controller died and is started again", "controller", e.name, "error", err, "in", pause)
		if time.Since(begun) > lastPause {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// start makes a controller anew, one at a time: controllers add indexes to
// informers that they share, and look first whether they are there.
func (s *Set) start(e entry, actor *loop.Actor) loop.Runner {
	s.starting.Lock()
	defer s.starting.Unlock()
	return e.start(actor, s.cfg)
}

// live is one life of a controller.
func (s *Set) live(ctx context.Context, e entry, actor *loop.Actor) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if err := s.start(e, actor).Run(ctx); err != nil {
		return err
	}
	return errors.New("it returned")
}
