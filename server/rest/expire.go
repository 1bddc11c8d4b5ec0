package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/store"
)

// The pace of Expire.
const (
	// passes is how often objects are looked at within their time to live;
	// one lives longer than that by up to a pass.
	passes = 60
	// minPass bounds how often that is for short times.
	minPass = 50 * time.Millisecond
	// expireBatch is how many objects are deleted between looks at the store,
	// expireAtOnce how many of them at the same time: the store writes those
	// together.
	expireBatch  = 1000
	expireAtOnce = 64
)

// Expire deletes objects of a table that were last written longer than ttl
// ago, until ctx ends. It reads no clock from the objects but once, at the
// start: a mark says that at some time the store was at some revision, and
// what has not been written since a mark that is ttl old has expired.
//
//	marks   (rev 10, 9:00) (rev 25, 9:01) (rev 25, 9:02) ...
//	at 10:00 objects of revisions up to 10 go, at 10:01 those up to 25
//
// Each deletion is a revision of its own, by system:apiserver. What somebody
// writes meanwhile stays. A pass without a mark that has come of age, or after
// which nothing was written, costs nothing. One that fails is told of and made
// again.
func (h *Handler) Expire(ctx context.Context, table string, ttl time.Duration, failed func(error)) error {
	e := &expiry{h: h, table: table, ttl: ttl}
	if err := e.recall(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(max(ttl/passes, minPass))
	defer tick.Stop()
	for {
		if err := e.pass(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// mark says that all up to rev was written by the time at.
type mark struct {
	rev store.Revision
	at  time.Time
}

// expiry is what Expire knows of one table.
type expiry struct {
	h     *Handler
	table string
	ttl   time.Duration
	// marks are in order of both revision and time.
	marks []mark
	// due is the revision up to which objects have expired.
	due  store.Revision
	done store.Revision // due of the last pass that left nothing
}

// recall makes marks from the objects that are there: they say themselves when
// they were written.
func (e *expiry) recall(ctx context.Context) error {
	sn, err := e.h.Store.Snapshot(e.h.Plane)
	if err != nil {
		return err
	}
	for o, err := range sn.Scan(ctx, e.table, store.Range{}) {
		if err != nil {
			return err
		}
		if at, ok := written(o); ok {
			e.marks = append(e.marks, mark{o.Rev, at})
		}
	}
	slices.SortFunc(e.marks, func(a, b mark) int { return cmp.Compare(a.rev, b.rev) })
	// Clocks may have gone back; times are made to grow with revisions, and
	// marks that are close together become one.
	kept := e.marks[:0]
	var latest time.Time
	for _, m := range e.marks {
		if m.at.After(latest) {
			latest = m.at
		}
		m.at = latest
		if n := len(kept); n > 0 && m.at.Sub(kept[n-1].at) == 0 {
			kept[n-1] = m
		} else {
			kept = append(kept, m)
		}
	}
	e.marks = slices.Clone(kept)
	return nil
}

// written is when an object was last written, by what it says of its owners'
// writes and of its creation.
func written(o *store.Object) (time.Time, bool) {
	var have metav1.PartialObjectMetadata
	if json.Unmarshal(o.Value(), &have) != nil {
		return time.Time{}, false
	}
	at := have.CreationTimestamp.Time
	for _, f := range have.ManagedFields {
		if f.Time != nil && f.Time.After(at) {
			at = f.Time.Time
		}
	}
	return at.Add(time.Second), !at.IsZero() // the times have whole seconds
}

// pass sets a mark and deletes what has expired.
func (e *expiry) pass(ctx context.Context) error {
	now := time.Now()
	if rev := e.h.Store.Current(); len(e.marks) == 0 || e.marks[len(e.marks)-1].rev != rev {
		e.marks = append(e.marks, mark{rev, now})
	}
	for len(e.marks) > 0 && now.Sub(e.marks[0].at) >= e.ttl {
		e.due = max(e.due, e.marks[0].rev)
		e.marks = e.marks[1:]
	}
	for e.due > e.done {
		due := e.due
		more, err := e.sweep(ctx, due)
		if err != nil {
			return err
		}
		if !more {
			e.done = due
		}
	}
	return nil
}

// sweep deletes a batch of what was last written at due or before, and says
// whether there may be more.
func (e *expiry) sweep(ctx context.Context, due store.Revision) (more bool, err error) {
	sn, err := e.h.Store.Snapshot(e.h.Plane)
	if err != nil {
		return false, err
	}
	var g errgroup.Group
	g.SetLimit(expireAtOnce)
	n := 0
	for o, err := range sn.Scan(ctx, e.table, store.Range{}) {
		if err != nil {
			return false, errors.Join(err, g.Wait())
		}
		if o.Rev > due {
			continue
		}
		if n++; n > expireBatch {
			more = true
			break
		}
		g.Go(func() error {
			_, err := e.h.Store.Commit(ctx, store.Provenance{User: "system:apiserver", Verb: "expire"},
				store.Op{Plane: e.h.Plane, Resource: e.table, Key: o.Key(), If: store.At(o.Rev), Delete: true})
			if isConflict(err) {
				return nil // it was written or deleted meanwhile
			}
			return err
		})
	}
	return more, g.Wait()
}
