package app

import (
	"context"

	"golang.org/x/sync/errgroup"

	"setpoint.dev/setpoint/server/authz"
	"setpoint.dev/setpoint/store"
)

// startBackground starts what runs beside the server until ctx ends.
func (a *App) startBackground(ctx context.Context, g *errgroup.Group) {
	if a.audit != nil {
		g.Go(func() error { return a.audit.Run(ctx) })
	}
	if a.nodes != nil {
		g.Go(func() error { return a.rest.Observe(ctx, authz.Observed(), concernsNode, a.nodes.Observe) })
	}
	g.Go(func() error { return a.kinds.Run(ctx, a.rest) })
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
