// Package controller runs the controllers: each watches what is wanted and what
// is there, and makes the one like the other.
//
// In come a handler of the API and the names of those that should run; out come
// requests, and nothing else: a controller is a client of the API like any
// other, with a service account and a role of its own. controllers.go lists
// them all. What always holds:
//   - One that panics is started again, later each time.
//   - Where several servers share one store, only those of the server that holds
//     the lease run.
//   - Time is the package time's, so that in a bubble of testing/synctest a set
//     of controllers runs until nothing changes.
//
// # How to write a controller
//
// It is one folder, named for its kind, and one line in controllers.go:
//
//	package thing
//
//	func New(a *loop.Actor) loop.Runner {
//		c := &Controller{actor: a}
//		c.Loop = loop.New(a, "thing", workers, c.reconcile) // the queue's name is upstream's
//		loop.Watch(c.Loop, "things.apps", a.Informers.Apps().V1().Things().Informer(), loop.Self[*appsv1.Thing])
//		loop.Watch(c.Loop, "pods", a.Informers.Core().V1().Pods().Informer(), c.concerned) // pod -> keys of things
//		return c
//	}
//
//	func (c *Controller) reconcile(ctx context.Context, key loop.Key) (again time.Duration, err error) {
//		thing, pods := c.observe(key)         // from caches alone
//		p := plan(thing, pods, time.Now())    // pure: plan.go, tested as a table
//		return p.again, c.act(ctx, thing, p)  // requests, with this ctx
//	}
//
// Watch every informer that observe reads, with nil keys if its changes concern
// nobody: the loop waits for it to be filled, and before it looks at a key again,
// for what the last round of that key wrote to show in it. So there are no
// expectations to keep: a plan is made from caches that have its own acts.
// Requests made with the round's ctx are the actor's own, and carry the revision
// that caused them; a request from elsewhere takes actor.As(ctx).
//
// An error has the key tried again later; a conflict is such an error and needs
// no retry of its own. Return a time for what time alone changes. Objects from
// caches are shared: copy before you change one. What they do not have is who
// owns their fields.
//
// own finds and claims what an object controls, pods has what is known of pods:
// templates, readiness, creating and deleting with events. Events are worded as
// upstream words them, through actor.Events.
package controller
