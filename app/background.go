package app

import (
	"context"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"setpoint.dev/setpoint/admission/policy"
	"setpoint.dev/setpoint/controller"
	"setpoint.dev/setpoint/server/aggregate"
	"setpoint.dev/setpoint/server/authz"
	"setpoint.dev/setpoint/server/serviceip"
	"setpoint.dev/setpoint/store"
)

// repairEvery is how often the addresses of services are looked at. Compat: it
// is upstream's pace.
const repairEvery = 3 * time.Minute

// trimAfter is when the start is over, and what only it has needed can go.
const trimAfter = 2 * time.Second

// startBackground starts what runs beside the server until ctx ends.
func (a *App) startBackground(ctx context.Context, g *errgroup.Group) {
	if a.audit != nil {
		g.Go(func() error { return a.audit.Run(ctx) })
	}
	g.Go(func() error { return a.rest.Observe(ctx, aggregate.Tables, a.concernsServers, a.aggregate.Observe) })
	g.Go(func() error { return a.aggregate.Run(ctx) })
	g.Go(func() error {
		select {
		case <-time.After(trimAfter):
			a.giveBack()
			paceHeap(ctx, a.giveBack)
		case <-ctx.Done():
		}
		return nil
	})
	a.tendPlane(ctx, g)
}

// giveBack gives back what the start, or a time of much work, has needed and a
// quiet server does not.
func (a *App) giveBack() {
	a.rest.GiveBack()
	debug.FreeOSMemory()
	if err := trim(); err != nil {
		a.cfg.Logger.Debug("pages of the program are not given back", "error", err)
	}
}

// tendPlane starts what looks after the plane until ctx ends.
func (a *App) tendPlane(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return a.who.Run(ctx) })
	g.Go(func() error { return a.may.Run(ctx) })
	if a.nodes != nil {
		g.Go(func() error { return a.rest.Observe(ctx, authz.Observed(), concernsNode, a.nodes.Observe) })
	}
	g.Go(func() error {
		return a.rest.Repair(ctx, repairEvery, serviceip.Watched(), serviceip.Repair, func(err error) {
			a.cfg.Logger.Error("addresses of services are not repaired yet", "error", err)
		})
	})
	g.Go(func() error { return a.kinds.Run(ctx, a.rest) })
	g.Go(func() error {
		return a.rest.Sweep(ctx, func(err error) {
			a.cfg.Logger.Error("objects that wait for initializers are not looked after yet", "error", err)
		})
	})
	g.Go(func() error { return a.stalls.Run(ctx) })
	g.Go(func() error { return a.checker.Run(ctx) })
	g.Go(func() error {
		every := func(string, *store.Object) bool { return true }
		return a.rest.Observe(ctx, []string{policy.Checked}, every, func(_, obj runtime.Object) {
			if obj != nil {
				a.checker.Changed()
			}
		})
	})
	started := map[string]bool{}
	for _, r := range a.rest.Kinds().All() {
		if r.TTL == 0 || started[r.Table] {
			continue
		}
		started[r.Table] = true
		ttl := r.TTL
		if a.cfg.EventTTL > 0 {
			ttl = a.cfg.EventTTL
		}
		g.Go(func() error {
			return a.rest.Expire(ctx, r.Table, ttl, func(err error) {
				a.cfg.Logger.Error("expired objects are not deleted yet", "table", r.Table, "error", err)
			})
		})
	}
}

// concernsNode leaves out pods that are on no node.
func concernsNode(table string, o *store.Object) bool {
	if table != "pods" {
		return true
	}
	node, _ := o.Field("spec.nodeName")
	return node != ""
}

// concernsServers leaves out services that no other API server is reached
// through.
func (a *App) concernsServers(table string, o *store.Object) bool {
	namespace, name, namespaced := strings.Cut(o.Key(), "/")
	if !namespaced {
		name = namespace
	}
	if service, of := o.Label(discoveryv1.LabelServiceName); of {
		name = service
	}
	return a.aggregate.Wants(table, namespace, name)
}

// ControllerNames are the names of all controllers.
func ControllerNames() []string { return controller.Names() }

// NamedControllers are the names of those that run only where they are named.
func NamedControllers() []string { return controller.Named() }
