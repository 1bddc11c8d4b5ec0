package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"setpoint.dev/setpoint/crd"
	"setpoint.dev/setpoint/node/pretend"
	"setpoint.dev/setpoint/server"
	"setpoint.dev/setpoint/server/aggregate"
	served "setpoint.dev/setpoint/server/planes"
	"setpoint.dev/setpoint/server/rest"
	"setpoint.dev/setpoint/store"
)

// Bounds of what is kept for planes.
const (
	maxForks = 256
	maxPasts = 16 // of all planes together
)

// notInForks are controllers that act on more than the plane: a certificate that
// is signed in a fork would be good in main.
const notInForks = "-certificatesigningrequest-signing-controller"

// planes keeps the forks of main, each with rooms of its own, and handlers of the
// past.
//
// What a fork needs is made when it is first asked for something, and what runs
// beside its API starts with its first write: until then it costs next to
// nothing.
type planes struct {
	main *App

	mu     sync.Mutex // guards the fields below, not what forks do
	forks  map[string]*fork
	pasts  []past // the one that was asked last comes last
	closed bool
}

// fork is a plane other than main.
type fork struct {
	spec   served.Spec
	ctx    context.Context
	cancel context.CancelFunc
	rooms  func() (*App, error)

	mu      sync.Mutex // guards the fields below
	started bool
	group   errgroup.Group // what runs beside the API
}

// past is the handler of a plane at a revision.
type past struct {
	plane   *App
	at      uint64
	handler http.Handler
}

func newPlanes(main *App) *planes { return &planes{main: main, forks: map[string]*fork{}} }

// List implements served.Keeper.
func (p *planes) List() []served.Plane {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []served.Plane
	for _, info := range p.main.store.Planes() {
		if f := p.forks[info.Name]; f != nil {
			all = append(all, served.New(info.Name, f.spec))
		} else if info.Name == store.Main {
			all = append(all, served.New(info.Name, served.Spec{Controllers: p.main.control != nil}))
		}
	}
	return all
}

// Fork implements served.Keeper.
func (p *planes) Fork(ctx context.Context, name string, spec served.Spec) (served.Plane, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return served.Plane{}, apierrors.NewServiceUnavailable("the server is ending")
	case p.forks[name] != nil:
		return served.Plane{}, served.Exists(name)
	case len(p.forks) >= maxForks:
		return served.Plane{}, served.Forbidden(name, fmt.Errorf("there are %d planes already", maxForks))
	}
	rev, err := p.main.store.Fork(ctx, name, spec.From, store.Revision(spec.Revision))
	if err != nil {
		return served.Plane{}, refusal(err, name, spec.From)
	}
	spec.Revision = uint64(rev)
	f := p.newFork(name, spec)
	p.forks[name] = f
	if spec.Controllers {
		rooms, err := f.rooms()
		if err != nil {
			return served.Plane{}, apierrors.NewInternalError(errors.Join(err, p.drop(ctx, name, f)))
		}
		f.start(rooms)
	}
	return served.New(name, spec), nil
}

// refusal is why there is no fork, as an API error.
func refusal(err error, name, from string) error {
	switch {
	case errors.Is(err, store.ErrPlaneExists):
		return served.Exists(name)
	case errors.Is(err, store.ErrNoPlane):
		return served.NotFound(from)
	case errors.Is(err, store.ErrCompacted):
		return apierrors.NewResourceExpired(err.Error())
	case errors.Is(err, store.ErrFuture), errors.Is(err, store.ErrInvalid):
		return apierrors.NewBadRequest(err.Error())
	default:
		return apierrors.NewInternalError(err)
	}
}

// newFork is a fork of which nothing is made yet.
func (p *planes) newFork(name string, spec served.Spec) *fork {
	f := &fork{spec: spec}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.rooms = sync.OnceValues(func() (*App, error) { return p.main.forked(f.ctx, name, spec.Controllers) })
	return f
}

// start starts what runs beside the API of a fork whose rooms are made, once.
func (f *fork) start(a *App) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.started || f.ctx.Err() != nil {
		return
	}
	f.started = true
	a.tendPlane(f.ctx, &f.group)
	if a.control == nil {
		return
	}
	f.group.Go(func() error { return a.control.Run(f.ctx) })
	if a.scheduler != nil {
		f.group.Go(func() error { return a.scheduler.Run(f.ctx) })
	}
	if a.cfg.PretendNode {
		f.group.Go(func() error { return pretend.New(a.server, a.cfg.Logger).Run(f.ctx) })
	}
}

// end ends what runs beside the API of a fork, and waits until it has.
func (f *fork) end() error {
	f.mu.Lock()
	f.cancel()
	f.mu.Unlock()
	if err := f.group.Wait(); !errors.Is(err, store.ErrNoPlane) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// forked makes the rooms of a fork.
//
// Its tokens are signed by a key of its own: main's are good in the fork, where
// they are about the same accounts, and the fork's are good nowhere else.
func (a *App) forked(ctx context.Context, name string, controllers bool) (*App, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	b := &App{
		cfg: a.cfg, plane: name, main: a, authority: a.authority, store: a.store, hub: a.hub, listener: a.listener, audit: a.audit,
		builtin: a.builtin, counts: a.counts, drained: a.drained, certificate: a.certificate,
		tokens: tokenKeys{signing: key, public: append([]any{key}, a.tokens.public...)},
	}
	if err := b.buildPlane(ctx); err != nil || !controllers {
		return b, err
	}
	names := slices.Clone(a.cfg.Controllers)
	if len(names) == 0 {
		names = []string{"*"}
	}
	if err := b.buildControllers(append(names, notInForks), nil); err != nil {
		return b, err
	}
	return b, b.buildScheduler()
}

// Drop implements served.Keeper.
func (p *planes) Drop(ctx context.Context, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if name == store.Main {
		return served.Forbidden(name, errors.New("it is the plane that all others come from"))
	}
	f := p.forks[name]
	if f == nil {
		return served.NotFound(name)
	}
	return p.drop(ctx, name, f)
}

// drop ends a fork; mu is held.
func (p *planes) drop(ctx context.Context, name string, f *fork) error {
	if err := p.main.store.Drop(ctx, name); err != nil {
		return refusal(err, name, name)
	}
	delete(p.forks, name)
	p.pasts = slices.DeleteFunc(p.pasts, func(h past) bool { return h.plane.plane == name })
	if err := f.end(); err != nil {
		p.main.cfg.Logger.Warn("a plane that was dropped had failed", "plane", name, "error", err)
	}
	return nil
}

// Serve implements served.Keeper.
func (p *planes) Serve(name, at string) (http.Handler, error) {
	rooms, now := p.main, http.Handler(p.main.server)
	if name != store.Main {
		p.mu.Lock()
		f := p.forks[name]
		p.mu.Unlock()
		if f == nil {
			return nil, served.NotFound(name)
		}
		var err error
		if rooms, err = f.rooms(); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		now = f.handler(rooms)
	}
	if at == "" {
		return now, nil
	}
	rev, err := served.Revision(at)
	if newest := p.main.store.Current(); err == nil && store.Revision(rev) > newest {
		err = apierrors.NewBadRequest(fmt.Sprintf("revision %d lies in the future: %d is the newest", rev, newest))
	}
	if err != nil {
		return rooms.server.Refusing(err), nil
	}
	return p.past(rooms, rev), nil
}

// find returns the rooms of a fork, nil when there is none of that name.
func (p *planes) find(name string) *App {
	p.mu.Lock()
	f := p.forks[name]
	p.mu.Unlock()
	if f == nil {
		return nil
	}
	rooms, err := f.rooms()
	if err != nil {
		return nil
	}
	return rooms
}

// handler serves a fork, and has what runs beside it start with the first request
// that may write.
func (f *fork) handler(rooms *App) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			f.start(rooms)
		}
		rooms.server.ServeHTTP(w, r)
	})
}

// past is the handler of a plane at a revision. Who asks and what they may is
// known from the present.
func (p *planes) past(of *App, at uint64) http.Handler {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.pasts, func(h past) bool { return h.plane == of && h.at == at })
	if i < 0 {
		lookup := rest.Lookup{Store: of.store, Plane: of.plane}
		rev := store.Revision(at)
		registry := crd.NewRegistry(of.builtin, lookup.Definitions(rev), &crd.Conversion{Services: aggregate.Resolver{Objects: lookup}}, of.cfg.Logger)
		objects := rest.New(rest.Config{
			Store: of.store, Plane: of.plane, At: rev, Hub: of.hub, Kinds: registry.Kinds, Authorizer: of.may, Rules: of.may, Tokens: of.who, Issuer: of.issuer,
			Drain: of.drained, Like: of.rest,
		})
		p.pasts = append(p.pasts, past{of, at, server.New(of.door(objects, registry.Kinds))})
		i = len(p.pasts) - 1
	}
	h := p.pasts[i]
	p.pasts = append(slices.Delete(p.pasts, i, i+1), h)
	if len(p.pasts) > maxPasts {
		p.pasts = slices.Delete(p.pasts, 0, 1)
	}
	return h.handler
}

// close ends all forks and waits for what runs in them.
func (p *planes) close() error {
	p.mu.Lock()
	p.closed = true
	forks := p.forks
	p.forks = map[string]*fork{}
	p.mu.Unlock()
	var errs []error
	for _, f := range forks {
		errs = append(errs, f.end())
	}
	return errors.Join(errs...)
}
