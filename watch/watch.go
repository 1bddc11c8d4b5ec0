// Package watch turns the store's changes into streams.
//
// In comes the store's feed, read once, by the hub. Out go batches of events
// to watchers. A watcher is a cursor with a filter: it names a revision, takes
// everything that matches after it in one go, and waits for more.
//
// What always holds, for each watcher:
//
//   - Events come in revision order, none missing, none twice, also when a
//     watcher resumes after a restart. A revision is never split between two
//     batches.
//   - A batch's revision is a place to resume from, and rises also when nothing
//     matches.
//   - The initial state and what follows it have no gap between them.
//   - A watcher that is too far behind is told store.ErrCompacted. It is never
//     told less than everything.
//
// For each plane and resource that is watched the hub keeps a table with a ring
// of recent changes. Within it, watchers gather in topics: the whole table, a
// namespace, a key, a field's value. A topic has a small ring of the changes
// that touch it, and these alone wake its watchers. A watcher reads where it
// can:
//
//	topic's ring -> table's ring -> log on disk -> store.ErrCompacted
//
// Nothing is queued per watcher, so one that is stuck costs its cursor and what
// it has taken. Those who read from disk share what they read. Writers never
// wait: the committer appends to the feed, whoever watches; the hub's goroutine
// files each change under the topics it touches and wakes them, a crowd in
// parts, or tells a crowd in passing. Readers of a ring take no lock.
//
// Locks: Hub.mu guards which tables, topics and bells there are; past.mu guards
// the pages of a table and bell.mu who waits for a bell, and either may be taken
// while Hub.mu is held. Nothing is waited for while one is held, and no filter is
// called.
package watch

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"setpoint.dev/setpoint/store"
)

// ErrStopped says that the hub has ended. The watcher can resume at its last
// revision on another one.
var ErrStopped = errors.New("watch hub has stopped")

// ErrClosed says that the watcher was closed.
var ErrClosed = errors.New("watcher is closed")

// Config says how much a hub keeps. The zero value works.
type Config struct {
	// RingLength is how many changes of a watched resource are kept in memory,
	// rounded up to a power of two; 0 means 4096.
	RingLength int
	// RingSize is how many bytes of objects these may keep in memory; 0 means
	// 16 MiB. The newest change is kept whatever its size.
	RingSize int
	// TopicLength is how many changes of a namespace, key or field value that
	// is watched by itself are kept, rounded up likewise; 0 means 64.
	TopicLength int
	// Linger is how long a resource that nobody watches any more is kept, for
	// those who come back, and how long a snapshot is held for a watcher that
	// does not take its initial state, before it has to read it from disk; 0
	// means a minute.
	Linger time.Duration
	// Crowd is how many watchers of the same thing are told of it in passing,
	// if they can be: see Options.Take; 0 means 16. Fewer are woken, each by
	// itself.
	Crowd int
}

// Hub serves watchers from a store.
type Hub struct {
	store *store.Store
	cfg   Config

	begun   atomic.Bool
	started chan struct{} // closed when rev is known
	// rev is the revision up to which all changes are in the rings.
	rev atomic.Int64

	mu     sync.Mutex // guards the fields below
	tables map[tableName]*table
	end    error // why there are no more watchers; nil while there may be
	ringer ringer

	// The fields below are follow's, for the batch in hand.
	dirty []*topic // those it touches
	bells []*bell  // those to ring at once
}

// New returns a hub for a store. Watchers wait until it runs.
func New(s *store.Store, cfg Config) *Hub {
	if cfg.RingLength <= 0 {
		cfg.RingLength = 4096
	}
	if cfg.RingSize <= 0 {
		cfg.RingSize = 16 << 20
	}
	if cfg.TopicLength <= 0 {
		cfg.TopicLength = 64
	}
	if cfg.Linger <= 0 {
		cfg.Linger = time.Minute
	}
	if cfg.Crowd <= 0 {
		cfg.Crowd = 16
	}
	cfg.RingLength, cfg.TopicLength = powerOfTwo(cfg.RingLength), powerOfTwo(cfg.TopicLength)
	return &Hub{
		store: s, cfg: cfg, started: make(chan struct{}), tables: map[tableName]*table{},
		ringer: ringer{some: make(chan struct{}, 1)},
	}
}

func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }

// Run distributes what the store publishes until ctx ends, and then returns
// nil, or until the store is closed, and then returns store.ErrClosed. All
// watchers end with it. A hub runs once.
func (h *Hub) Run(ctx context.Context) error {
	if !h.begun.CompareAndSwap(false, true) {
		return errors.New("watch hub runs once")
	}
	feed, rev := h.store.Feed()
	h.rev.Store(int64(rev))
	close(h.started)

	ctx, cancel := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	for range ringers() {
		helpers.Go(func() { h.ring(ctx) })
	}
	helpers.Go(func() { h.sweep(ctx) })
	err := h.follow(ctx, feed)
	cancel()
	helpers.Wait()
	h.stop(err)
	return err
}

// follow distributes batches until ctx or the feed ends.
func (h *Hub) follow(ctx context.Context, feed *store.Feed) error {
	for ctx.Err() == nil {
		batch, err := feed.Next(ctx)
		switch {
		case err == nil:
			h.distribute(batch)
		case ctx.Err() == nil:
			return fmt.Errorf("read the store's feed: %w", err)
		}
	}
	return nil
}

// distribute files a batch's changes under the topics they touch and wakes
// these when all of the batch can be read.
func (h *Hub) distribute(batch store.Batch) {
	h.mu.Lock()
	// A plane that is dropped and forked again in one batch has changes of two
	// lives in it. None of them is for watchers of the first.
	for _, plane := range batch.Dropped {
		h.dropLocked(plane)
	}
	var t *table
	var last tableName
	for i, c := range batch.Changes {
		if name := (tableName{c.Plane, c.Resource}); i == 0 || name != last {
			t, last = h.tables[name], name
		}
		if t != nil {
			h.dirty = t.putLocked(c, h.cfg.RingSize, h.dirty)
		}
	}
	h.rev.Store(int64(batch.Rev))
	for _, tp := range h.dirty {
		tp.dirty = false
		if len(tp.bells) == 1 && tp.watchers < h.cfg.Crowd {
			h.bells = append(h.bells, tp.bells[0])
		} else {
			h.ringer.addLocked(tp)
		}
	}
	h.mu.Unlock()

	for _, b := range h.bells {
		b.ring()
	}
	clear(h.dirty)
	clear(h.bells)
	h.dirty, h.bells = h.dirty[:0], h.bells[:0]
}

// dropLocked ends the watchers of a plane that is gone.
func (h *Hub) dropLocked(plane string) {
	for name, t := range h.tables {
		if name.plane == plane {
			delete(h.tables, name)
			t.failLocked(fmt.Errorf("%w: %q", store.ErrNoPlane, plane))
		}
	}
}

// sweep drops tables that had no watcher for a while.
func (h *Hub) sweep(ctx context.Context) {
	ticker := time.NewTicker(max(h.cfg.Linger/2, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		h.mu.Lock()
		for name, t := range h.tables {
			t.past.forget()
			if len(t.topics) > 0 {
				continue
			}
			if t.idle++; t.idle > 2 {
				delete(h.tables, name)
			}
		}
		h.mu.Unlock()
	}
}

// stop ends every watcher.
func (h *Hub) stop(cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end = ErrStopped
	if cause != nil {
		h.end = fmt.Errorf("%w: %w", ErrStopped, cause)
	}
	for _, t := range h.tables {
		t.failLocked(h.end)
	}
	clear(h.tables)
}

// Options say what to watch and from where.
type Options struct {
	// Plane is where; "" means store.Main.
	Plane    string
	Resource string
	Filter   Filter
	// After is the revision to go on from: the first event is later. With
	// Initial it is the least revision that the initial state must have.
	After store.Revision
	// Initial asks for the objects there are, as Added, before what follows.
	Initial bool
	// Bookmark is how long Next waits for events before it returns a batch
	// without any, for the sake of its revision; 0 means for ever.
	Bookmark time.Duration
	// LastBookmark is a time at which Next returns such a batch even if there
	// were events a moment ago: the end of the watch may be near. The zero time
	// is never, and so is any without Bookmark.
	LastBookmark time.Time
	// Take may take a batch while Next waits, which then goes on waiting: where
	// many wait for the same, telling all of them in passing costs less than
	// waking each. It returns false when it does not take the batch, which Next
	// then returns. It must not block. It is called by any goroutine, but by
	// one at a time, and not while nobody calls Next. A nil Take takes nothing.
	Take func(Batch) bool
}

// Watch starts a watcher. It must be closed.
//
// It returns store.ErrFuture when After does not exist yet, store.ErrNoPlane
// when the plane does not exist, ErrStopped when the hub has ended. Whether
// the log reaches back to After is for Next to find out. While the hub does
// not run yet, Watch waits for it or for the end of ctx, which matters for
// nothing else.
func (h *Hub) Watch(ctx context.Context, o Options) (*Watcher, error) {
	if o.Plane == "" {
		o.Plane = store.Main
	}
	if o.Resource == "" || o.After < 0 {
		return nil, fmt.Errorf("%w: watch resource %q after revision %d", store.ErrInvalid, o.Resource, o.After)
	}
	select {
	case <-h.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end != nil {
		return nil, h.end
	}
	// The plane is looked at with the lock held: when it is dropped after that,
	// the hub hears of it after that, and finds the watcher.
	now, err := h.store.Snapshot(o.Plane)
	if err != nil {
		return nil, err
	}
	if o.After > now.Rev() {
		return nil, fmt.Errorf("%w: watch after %d, %d is the newest", store.ErrFuture, o.After, now.Rev())
	}
	return h.joinLocked(o, now), nil
}

// joinLocked makes a watcher part of its topic, which is made when it is the
// first.
func (h *Hub) joinLocked(o Options, now *store.Snapshot) *Watcher {
	// What is published but not yet distributed may be partly missing in a new
	// ring: a fork's past up to where it left its parent is in no batch of its
	// own. So the ring knows nothing up to the store's own revision.
	floor := now.Rev()
	name := tableName{o.Plane, o.Resource}
	t := h.tables[name]
	if t == nil {
		t = newTable(name, floor, h.cfg)
		h.tables[name] = t
	}
	w := &Watcher{hub: h, table: t, filter: o.Filter, cursor: o.After, done: make(chan struct{}), take: o.Take, seat: standing}
	if w.take != nil {
		w.wake = make(chan struct{}, 1)
	}
	w.topic, w.bell = t.joinLocked(o.Filter.scope(), floor, h.cfg.TopicLength)
	w.bookmarks.start(o.Bookmark, o.LastBookmark)
	if o.Initial {
		w.initial = newInitial(now, h.cfg.Linger)
		w.cursor = now.Rev()
	}
	return w
}

// leave takes a watcher out of its topic.
func (h *Hub) leave(w *Watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.table.leaveLocked(w.topic, w.bell)
}
