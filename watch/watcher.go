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

	// How it is told in passing while Next waits. Whoever takes it from its seat
	// alone may touch it, until he seats it again or wakes it.
	take   func(Batch) bool // nil: it is not
	wake   chan struct{}    // has an element when Next is to go on
	seat   int              // among its bell's guests, or standing; guarded by bell.mu
	leaves bool             // Next does not wait any more; guarded by bell.mu until it is woken
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
		// Begun before reading, so that what comes after the reading wakes us.
		wait := w.beginWait()
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
		wait.end(ctx, w)
	}
}

// waiting is a wait for a watcher's bell: for a stroke, or as its guest.
type waiting struct {
	stroke *stroke // nil for a guest
	rings  int
}

// beginWait notes how often the bell has rung.
func (w *Watcher) beginWait() waiting {
	if w.take == nil {
		return waiting{stroke: w.bell.stroke()}
	}
	return waiting{rings: w.bell.rung()}
}

// end waits until the bell has rung since, or there is another reason to look.
func (a waiting) end(ctx context.Context, w *Watcher) {
	if a.stroke == nil {
		w.waitAsGuest(ctx, a.rings)
		return
	}
	a.stroke.waiting.Add(1)
	select {
	case <-a.stroke.rung:
	case <-w.bookmarks.timer():
	case <-w.done:
	case <-ctx.Done():
	}
	a.stroke.waiting.Add(-1)
}

// waitAsGuest waits among the bell's guests.
func (w *Watcher) waitAsGuest(ctx context.Context, rings int) {
	due := w.bookmarks.timer()
	if !w.bell.wait(w, rings) {
		return
	}
	select {
	case <-w.wake:
		w.leaves = false
		return
	case <-due:
	case <-w.done:
	case <-ctx.Done():
	}
	if !w.bell.leave(w) {
		<-w.wake // whoever tells it something does not wait for anything
		w.leaves = false
	}
}

// toldInPassing tells a guest what is new, if there is anything. It returns false
// when the watcher has to see for itself. The caller has taken it from its seat.
func (w *Watcher) toldInPassing() bool {
	if w.ended(context.Background()) != nil {
		return false
	}
	from, upTo := w.cursor, store.Revision(w.hub.rev.Load())
	w.batch.reset(from)
	if !w.gatherRings(upTo) {
		return false
	}
	w.reach(upTo)
	told := !w.batch.full
	if told && len(w.batch.events()) > 0 {
		if told = w.take(w.gathered()); told {
			w.bookmarks.restart()
		}
	}
	if !told {
		w.cursor = from
	}
	w.batch.reset(w.cursor)
	return told
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
	if !w.gatherRings(upTo) {
		var err error
		if upTo, err = w.gatherPast(ctx); err != nil {
			return err
		}
	}
	w.reach(upTo)
	return nil
}

// reach moves the cursor to the end of the batch, which has all up to a revision
// unless it is full.
func (w *Watcher) reach(upTo store.Revision) {
	if !w.batch.full {
		w.batch.reached = max(w.batch.reached, upTo)
	}
	w.cursor = w.batch.reached
}

// gatherRings reads from the topic's ring, or else from the table's. It returns
// false when neither reaches back to the cursor.
func (w *Watcher) gatherRings(upTo store.Revision) bool {
	return w.gatherRing(w.topic.ring, upTo) || w.gatherRing(w.table.ring, upTo)
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
	rings time.Time // when clock does
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

// timer fires when a bookmark is due, or before: it is not set anew for each event,
// of which there may be many before one is due.
func (b *bookmarks) timer() <-chan time.Time {
	if b.every == 0 {
		return nil
	}
	now := time.Now()
	switch {
	case b.clock == nil:
		b.clock = time.NewTimer(b.at.Sub(now))
	case b.rings.After(now) && !b.rings.After(b.at):
		return b.clock.C
	default:
		b.clock.Reset(b.at.Sub(now))
	}
	b.rings = b.at
	return b.clock.C
}
