package watch

import (
	"context"
	"sync/atomic"
	"time"

	"setpoint.dev/setpoint/store"
)

// initial is the initial state of a watcher. It is read in pieces, each from
// where the last one ended, and never gathered whole.
type initial struct {
	rev   store.Revision
	after string // the last key taken
	taken bool   // all of it

	// held is the snapshot itself. A snapshot keeps every version in memory
	// that it shows, so it is let go when the watcher takes too long; the rest
	// is then read from the past.
	held   atomic.Pointer[store.Snapshot]
	expiry *time.Timer
}

func newInitial(s *store.Snapshot, hold time.Duration) *initial {
	in := &initial{rev: s.Rev()}
	in.held.Store(s)
	in.expiry = time.AfterFunc(hold, func() { in.held.Store(nil) })
	return in
}

// release lets the snapshot go; any goroutine may call it.
func (in *initial) release() {
	in.expiry.Stop()
	in.held.Store(nil)
}

// gatherInitial reads the next piece of the initial state into the batch.
func (w *Watcher) gatherInitial(ctx context.Context) error {
	in, b := w.initial, &w.batch
	snapshot := in.held.Load()
	if snapshot == nil {
		var err error
		if snapshot, err = w.hub.store.SnapshotAt(w.table.name.plane, in.rev); err != nil {
			return err
		}
	}
	if w.filter.Key != "" {
		o, err := snapshot.Get(ctx, w.table.name.resource, w.filter.Key)
		if err != nil {
			return err
		}
		if o != nil {
			w.object(o)
		}
	} else {
		r := store.Range{Prefix: w.filter.Prefix, After: in.after, Field: w.filter.Field, Value: w.filter.Value}
		for o, err := range snapshot.Scan(ctx, w.table.name.resource, r) {
			if err != nil {
				return err
			}
			if b.enough() {
				b.full = true
				break
			}
			in.after = o.Key()
			w.object(o)
		}
	}
	if !b.full {
		in.taken, b.initialEnd = true, true
		in.release()
	}
	return nil
}

// object adds an object of the initial state if the watcher wants it.
func (w *Watcher) object(o *store.Object) {
	w.batch.looked++
	if w.filter.wants(o) {
		w.batch.add(Event{Type: Added, Object: o})
	}
}
