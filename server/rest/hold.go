package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/server/seat"
	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/watch"
)

// holdFor is how long a create waits for initializers when its client does not
// say. Compat: it is the time of Kubernetes 1.7 to 1.13.
const holdFor = 30 * time.Second

// holdMargin is how long before the end of its time a request that waits is
// answered.
const holdMargin = 50 * time.Millisecond

// goneWithin is how long the creator of an object that has failed waits for it
// to be gone, so that its name is free when they learn of it.
const goneWithin = time.Second

// patience is how a create waits for initializers.
type patience int

const (
	noWait patience = iota // its object waits for nobody
	shows                  // the client wants to see it wait
	holds                  // the client wants to see it done
)

// queue finds out whether a create is to wait for initializers, and takes a
// place among those that do.
func (c *call) queue(obj runtime.Object, dryRun bool) error {
	waits, err := initializers.Of(obj)
	if err != nil || waits == nil || dryRun || c.waits != noWait {
		return err
	}
	if c.includesUninitialized() {
		c.waits = shows
		return nil
	}
	if c.waiting.Add(1) > int64(c.Initializers.MaxWaiting) {
		c.waiting.Add(-1)
		return apierrors.NewTooManyRequests(fmt.Sprintf("%d creates wait for initializers already, please try again later", c.Initializers.MaxWaiting), 1)
	}
	c.waits = holds
	return nil
}

// includeUninitialized is the parameter of clients that want to see objects
// that wait.
const includeUninitialized = "includeUninitialized"

// dequeue gives the place back.
func (c *call) dequeue() {
	if c.waits == holds {
		c.waiting.Add(-1)
	}
	c.waits = noWait
}

// created is the answer to a create: the object as it was stored, or as it is
// when initializers are done with it.
func (c *call) created(stored *store.Object) (int, *store.Object, error) {
	switch c.waits {
	case shows:
		return http.StatusAccepted, stored, nil
	case holds:
		done, err := c.hold(stored)
		return http.StatusCreated, done, err
	default:
		return http.StatusCreated, stored, nil
	}
}

// hold waits until initializers are done with an object.
func (c *call) hold(stored *store.Object) (*store.Object, error) {
	h := &held{call: c, limit: c.holdTime()}
	if err := h.see(stored); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, h.limit)
	defer cancel()
	h.hurry = func() { time.AfterFunc(goneWithin, cancel) }
	w, err := c.Hub.Watch(ctx, watch.Options{
		Plane: c.info.Plane, Resource: c.resource.Table, Filter: watch.Filter{Key: stored.Key()}, After: stored.Rev,
	})
	if err != nil {
		return nil, h.ended(err)
	}
	defer w.Close()
	go func() {
		select {
		case <-c.Drain:
			cancel()
		case <-ctx.Done():
		}
	}()
	seat.GiveBack(c.ctx)
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return nil, h.ended(err)
		}
		for _, e := range batch.Events {
			if done, err := h.event(e); done != nil || err != nil {
				return done, err
			}
		}
	}
}

// asked is how long the client wants to wait.
func (c *call) asked() time.Duration {
	if asked, err := time.ParseDuration(c.r.URL.Query().Get("timeout")); err == nil && asked > 0 {
		return asked
	}
	return holdFor
}

// holdTime is how long a create waits: as its client asks, within the time of
// the request.
func (c *call) holdTime() time.Duration {
	limit := c.asked()
	if end, bounded := c.ctx.Deadline(); bounded {
		limit = min(limit, time.Until(end)-holdMargin)
	}
	return limit
}

// held is a create that waits.
type held struct {
	*call
	limit  time.Duration
	object metav1.Object // as it was last seen
	waits  *initializers.Initializers
	turn   time.Time // when the next initializer became that
	// result is that of an object that has failed, which is about to go; hurry
	// bounds how long that is waited for.
	result *metav1.Status
	hurry  func()
}

// see takes note of the object as it is now.
func (h *held) see(o *store.Object) error {
	obj, err := h.stored(o)
	if err != nil {
		return err
	}
	if h.object, err = meta.Accessor(obj); err != nil {
		return err
	}
	before := h.next()
	h.waits, err = initializers.Of(obj)
	if h.next() != before {
		h.turn = time.Now()
	}
	return err
}

// next is whom the object waits for; empty when it is nobody.
func (h *held) next() string {
	if names := initializer.Names(h.waits); len(names) > 0 {
		return names[0]
	}
	return ""
}

// event is what a change of the object means to its creator: the object, when
// it is done, or why there is none.
func (h *held) event(e watch.Event) (*store.Object, error) {
	if err := h.see(e.Object); err != nil {
		return nil, err
	}
	if h.waits != nil && h.waits.Result != nil && h.result == nil {
		h.result = h.waits.Result
		h.hurry()
	}
	switch {
	case e.Type == watch.Deleted && h.result != nil:
		return nil, failure(h.result)
	case e.Type == watch.Deleted:
		return nil, apierrors.NewInternalError(errors.New("object deleted while waiting for creation"))
	case h.waits == nil:
		return e.Object, nil
	}
	return nil, nil
}

// failure is a result as an error.
func failure(result *metav1.Status) error {
	status := *result
	if status.Code < http.StatusBadRequest || status.Code > 599 {
		status.Code = http.StatusInternalServerError // of no error
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// ended is why the wait is over before the object is done. The object stays;
// the client learns which, and what it waits for.
func (h *held) ended(err error) error {
	if h.result != nil {
		return failure(h.result)
	}
	if errors.Is(h.ctx.Err(), context.Canceled) {
		return err // the client has gone
	}
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	late := apierrors.NewTimeoutError(fmt.Sprintf("request did not complete within requested timeout %s", h.asked()), 0)
	late.ErrStatus.Details = &metav1.StatusDetails{
		Name: h.object.GetName(), Group: h.resource.Group, Kind: h.resource.Name, UID: h.object.GetUID(),
		Causes: []metav1.StatusCause{pendingCause(h.next(), time.Since(h.turn))},
	}
	return late
}

// pendingCause says whom an object has waited for.
func pendingCause(name string, since time.Duration) metav1.StatusCause {
	return metav1.StatusCause{
		Type: "InitializerPending", Field: "metadata.initializers.pending[0]", Message: fmt.Sprintf("%s for %s", name, since.Round(time.Second)),
	}
}

// taken is why a name cannot be used, before what is always said; empty when
// there is nothing to add.
func (c *call) taken(name string) string {
	sn, err := c.snapshot()
	if err != nil {
		return ""
	}
	o, err := sn.Get(c.ctx, c.resource.Table, c.resource.Key(c.info.Namespace, name))
	if err != nil || o == nil {
		return ""
	}
	obj, err := c.stored(o)
	if err != nil {
		return ""
	}
	if m, err := meta.Accessor(obj); err == nil && m.GetDeletionTimestamp() != nil {
		return "object is being deleted: "
	}
	if waits, err := initializers.Of(obj); err == nil && waits != nil && len(waits.Pending) > 0 {
		return fmt.Sprintf("object is being initialized (waiting for %s): ", waits.Pending[0].Name)
	}
	return ""
}
