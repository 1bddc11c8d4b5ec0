package watch

import (
	"sync/atomic"

	"setpoint.dev/setpoint/store"
)

// ring holds recent changes in revision order. The hub alone writes; readers
// take no lock, so neither side ever waits for the other.
//
//	     floor
//	       |
//	... [evicted] [tail] [ ] [ ] [ ] (head)
//
// The ring holds every change of its topic after floor. A slot is evicted, and
// perhaps filled again, only after the floor was raised to the revision of the
// change in it. So a reader first reads and then looks at the floor: when it is
// not above the reader's revision, no slot it needed had gone.
type ring struct {
	slots atomic.Pointer[[]slot] // a power of two of them, or none
	head  atomic.Uint64          // number of the next change
	tail  atomic.Uint64          // number of the oldest change held
	floor atomic.Int64

	// The fields below are the hub's.
	size  int // bytes that the changes held keep in memory, at most
	limit int // slots, a power of two
}

type slot = atomic.Pointer[store.Change]

func newRing(floor store.Revision, limit int) *ring {
	r := &ring{limit: limit}
	r.slots.Store(&[]slot{})
	r.floor.Store(int64(floor))
	return r
}

// read calls add with the changes after a revision and up to another, oldest
// first, until add returns false. It returns false when the ring cannot tell
// or can no longer; what add has got is then void.
func (r *ring) read(after, upTo store.Revision, add func(*store.Change) bool) bool {
	if !r.reaches(after) {
		return false
	}
	// The head comes before the slots: these may be newer than it, not older.
	head := r.head.Load()
	slots := *r.slots.Load()
	if len(slots) == 0 {
		return r.reaches(after)
	}
	mask := uint64(len(slots) - 1)
	// Backwards to the first change wanted. A slot that was filled again while
	// we look holds a change newer than its successor's.
	start, newer := head, (*store.Change)(nil)
	for ; start > 0 && head-start < uint64(len(slots)); start-- {
		c := slots[(start-1)&mask].Load()
		if c == nil || c.Rev <= after || newer != nil && c.Rev > newer.Rev {
			break
		}
		newer = c
	}
	for i := start; i != head; i++ {
		c := slots[i&mask].Load()
		if c == nil || c.Rev > upTo || !add(c) {
			break
		}
	}
	return r.reaches(after)
}

// reaches says whether every change after a revision is in the ring.
func (r *ring) reaches(after store.Revision) bool { return r.floor.Load() <= int64(after) }

// The methods below are for the hub alone.

func (r *ring) len() int { return int(r.head.Load() - r.tail.Load()) }

// full says whether a change must be evicted before another is put.
func (r *ring) full() bool { return r.len() == r.limit }

func (r *ring) put(c *store.Change) {
	slots := *r.slots.Load()
	head := r.head.Load()
	if r.len() == len(slots) {
		slots = r.grow(slots)
	}
	slots[head&uint64(len(slots)-1)].Store(c)
	r.size += cost(c)
	r.head.Store(head + 1)
}

// grow moves to twice the slots. Readers may go on with the old ones, which
// nobody writes to any more.
func (r *ring) grow(slots []slot) []slot {
	more := make([]slot, min(max(4, 2*len(slots)), r.limit))
	for i := r.tail.Load(); i != r.head.Load(); i++ {
		more[i&uint64(len(more)-1)].Store(slots[i&uint64(len(slots)-1)].Load())
	}
	r.slots.Store(&more)
	return more
}

// oldest returns the oldest change held, nil when there is none.
func (r *ring) oldest() *store.Change {
	slots := *r.slots.Load()
	if len(slots) == 0 {
		return nil
	}
	return slots[r.tail.Load()&uint64(len(slots)-1)].Load()
}

// evict drops the oldest change, which there must be, and returns it.
func (r *ring) evict() *store.Change {
	c := r.oldest()
	r.floor.Store(max(r.floor.Load(), int64(c.Rev)))
	slots, tail := *r.slots.Load(), r.tail.Load()
	slots[tail&uint64(len(slots)-1)].Store(nil)
	r.tail.Store(tail + 1)
	r.size -= cost(c)
	return c
}

// cost is what a change keeps in memory, at most: it shares versions with its
// neighbours and with the store.
func cost(c *store.Change) int {
	n := len(c.New.Value())
	if c.Old != nil {
		n += len(c.Old.Value())
	}
	return n
}
