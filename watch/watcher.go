package watch

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"setpoint.dev/setpoint/store"
)

// Bounds of one batch. A revision is not split, so a batch may go beyond them
// by what is left of its last revision.
const (
	maxEvents = 1000
	maxSize   = 256 << 10 // bytes of values
	// maxLooked is how many changes or objects are filtered before Next looks
	// around whether it should end.
	maxLooked = 10_000
)

// Watcher is a cursor into the changes of one resource. One goroutine at a
// time may call Next; Close may be called by any.
type Watcher struct {
	hub    *Hub
	table  *table
	topic  *topic
	bell   *bell
	filter Filter

	// cursor is the revision up to which everything has been delivered.
	cursor    store.Revision
	initial   *initial // nil when not asked for
	bookmarks bookmarks
	batch     gathering

	closing sync.Once
	done    chan struct{}
}

// Next waits until there is something to tell and returns all of it, up to a
// bound; the rest comes with the next call.
//
// It returns ctx's error when ctx ends, and the watcher can go on after that.
// All else is for good: store.ErrCompacted when the watcher is too far behind,
// store.ErrNoPlane when the plane was dropped, ErrStopped when the hub ended,
// ErrClosed after Close, or trouble with the disk.
func (w *Watcher) Next(ctx context.Context) (Batch, error) {
	for {
		// Taken before reading, so that what comes after the reading wakes us.
		stroke := w.bell.stroke()
		w.batch.reset(w.cursor)
		if err := w.ended(ctx); err != nil {
			return Batch{}, err
		}
		if err := w.gather(ctx); err != nil {
			w.batch.reset(w.cursor)
			return Batch{}, err
		}
		switch {
		case len(w.batch.events()) > 0 || w.batch.initialEnd || w.following() && w.bookmarks.due():
			w.bookmarks.restart()
			return w.gathered(), nil
		case w.batch.full || w.batch.more:
			continue
		}
		stroke.waiting.Add(1)
		select {
		case <-stroke.rung:
		case <-w.bookmarks.timer():
		case <-w.done:
		case <-ctx.Done():
		}
		stroke.waiting.Add(-1)
	}
}

// Close ends the watcher and a call of Next that waits. It may be called more
// than once.
func (w *Watcher) Close() {
	w.closing.Do(func() {
		close(w.done)
		w.hub.leave(w)
		if w.initial != nil {
			w.initial.release()
		}
	})
}

// ended says why Next must return without looking further.
func (w *Watcher) ended(ctx context.Context) error {
	select {
	case <-w.done:
		return ErrClosed
	default:
	}
	if err := w.table.end.Load(); err != nil {
		return *err
	}
	return ctx.Err()
}

// following says whether the initial state, if any, has been taken.
func (w *Watcher) following() bool { return w.initial == nil || w.initial.taken }

// gather reads what comes next into the batch, without waiting for it, and
// moves the cursor.
func (w *Watcher) gather(ctx context.Context) error {
	if !w.following() {
		return w.gatherInitial(ctx)
	}
	upTo := store.Revision(w.hub.rev.Load())
	if !w.gatherRing(w.topic.ring, upTo) && !w.gatherRing(w.table.ring, upTo) {
		var err error
		if upTo, err = w.gatherPast(ctx); err != nil {
			return err
		}
	}
	if !w.batch.full {
		w.batch.reached = max(w.batch.reached, upTo)
	}
	w.cursor = w.batch.reached
	return nil
}

// gatherRing reads from a ring. It returns false, with nothing gathered, when
// the ring does not reach back to the cursor.
func (w *Watcher) gatherRing(r *ring, upTo store.Revision) bool {
	if r.read(w.cursor, upTo, w.change) {
		return true
	}
	w.batch.reset(w.cursor)
	return false
}

// gatherPast reads what was on disk, a page at most, and returns the revision
// up to which it knows.
func (w *Watcher) gatherPast(ctx context.Context) (store.Revision, error) {
	pg, err := w.table.past.page(ctx, w.hub.store, w.table.name, w.cursor)
	if err != nil {
		return 0, err
	}
	from, _ := slices.BinarySearchFunc(pg.changes, w.cursor+1, func(c *store.Change, rev store.Revision) int {
		return cmp.Compare(c.Rev, rev)
	})
	for _, c := range pg.changes[from:] {
		if !w.change(c) {
			return pg.upTo, nil
		}
	}
	w.batch.more = pg.upTo < store.Revision(w.hub.rev.Load())
	return pg.upTo, nil
}

// change adds what a change means to the watcher. It returns false when the
// batch takes no more, and has then not looked at the change.
func (w *Watcher) change(c *store.Change) bool {
	b := &w.batch
	if c.Rev != b.reached && b.enough() {
		b.full = true
		return false
	}
	b.reached = c.Rev
	b.looked++
	if e, ok := w.filter.event(c); ok {
		b.add(e)
	}
	return true
}

// gathered is the batch as it is given out.
func (w *Watcher) gathered() Batch {
	b := Batch{Events: w.batch.events(), InitialEnd: w.batch.initialEnd}
	if w.following() {
		b.Rev = w.cursor
	}
	return b
}

// gathering is a batch in the making, and what Next gave out until it is called
// again.
type gathering struct {
	slice      *[]Event       // from the pool; nil for no events
	reached    store.Revision // up to where it is complete
	looked     int            // changes and objects that were filtered
	size       int            // bytes of values
	full       bool           // there was more than it takes
	more       bool           // there may be more after it
	initialEnd bool
}

// eventPool holds slices that no watcher has given out at the moment, so that
// ten thousand idle watchers hold none.
var eventPool = sync.Pool{New: func() any { return new([]Event) }}

func (g *gathering) add(e Event) {
	if g.slice == nil {
		g.slice = eventPool.Get().(*[]Event)
	}
	*g.slice = append(*g.slice, e)
	g.size += len(e.Object.Value())
}

func (g *gathering) events() []Event {
	if g.slice == nil {
		return nil
	}
	return *g.slice
}

// enough says whether a bound is reached.
func (g *gathering) enough() bool {
	return g.looked >= maxLooked || g.size >= maxSize || len(g.events()) >= maxEvents
}

// reset begins a new batch after a revision. The events of the last one are no
// longer the caller's.
func (g *gathering) reset(after store.Revision) {
	if g.slice != nil && cap(*g.slice) <= 4*maxEvents {
		clear(*g.slice)
		*g.slice = (*g.slice)[:0]
		eventPool.Put(g.slice)
	}
	*g = gathering{reached: after}
}

// bookmarks says when a watcher has been quiet for too long.
type bookmarks struct {
	every time.Duration // 0: never too long
	last  time.Time     // when one is due whatever was told before; zero: never
	at    time.Time
	clock *time.Timer
}

func (b *bookmarks) start(every time.Duration, last time.Time) {
	if every > 0 {
		b.every, b.last = every, last
		b.restart()
	}
}

// restart begins to count anew.
func (b *bookmarks) restart() {
	if b.every == 0 {
		return
	}
	now := time.Now()
	b.at = now.Add(b.every)
	if b.last.After(now) && b.last.Before(b.at) {
		b.at = b.last
	}
}

func (b *bookmarks) due() bool { return b.every > 0 && !time.Now().Before(b.at) }

// timer fires when a bookmark is due.
func (b *bookmarks) timer() <-chan time.Time {
	switch {
	case b.every == 0:
		return nil
	case b.clock == nil:
		b.clock = time.NewTimer(time.Until(b.at))
	default:
		b.clock.Reset(time.Until(b.at))
	}
	return b.clock.C
}
