package watch

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// bellSize is how many watchers share a bell.
const bellSize = 128

// bell wakes the watchers of a topic, or some of them where there are many.
// Those that can be told in passing wait as its guests, the others for its next
// stroke.
type bell struct {
	// next is the stroke to come. The first to wait for it makes it; nil as
	// long as nobody has.
	next     atomic.Pointer[stroke]
	watchers int  // guarded by Hub.mu
	queued   bool // the ringer has it; guarded by Hub.mu

	mu     sync.Mutex // guards the fields below; the last lock to be taken
	rings  int        // how often it was rung
	guests []*Watcher
}

// rung is how often the bell was rung. Who takes it first and reads then misses
// nothing: see wait.
func (b *bell) rung() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rings
}

// wait makes a watcher a guest, unless the bell has rung since.
func (b *bell) wait(w *Watcher, rings int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rings != rings {
		return false
	}
	b.seatLocked(w)
	return true
}

func (b *bell) seatLocked(w *Watcher) {
	w.seat = len(b.guests)
	b.guests = append(b.guests, w)
}

// standing is the seat of a watcher that is no guest.
const standing = -1

// leave takes a guest away. When somebody tells it something at the moment it
// returns false, and the watcher is woken once that is over.
func (b *bell) leave(w *Watcher) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.seat == standing {
		w.leaves = true
		return false
	}
	last := len(b.guests) - 1
	b.guests[w.seat] = b.guests[last]
	b.guests[w.seat].seat = w.seat
	b.guests[last] = nil
	b.guests = b.guests[:last]
	w.seat = standing
	return true
}

// takeGuests returns those who wait, who are the caller's now, and how often
// the bell was rung, this time included.
func (b *bell) takeGuests() ([]*Watcher, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rings++
	guests := b.guests
	b.guests = nil
	for _, w := range guests {
		w.seat = standing
	}
	return guests, b.rings
}

// seatAgain lets those wait on who have been told everything. When the bell has
// rung since, it returns false, and how often.
func (b *bell) seatAgain(guests []*Watcher, rings int) (int, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rings != rings {
		return b.rings, false
	}
	others := b.guests
	b.guests = guests[:0]
	for _, w := range guests {
		if w.leaves {
			w.wake <- struct{}{}
		} else {
			b.seatLocked(w)
		}
	}
	clear(guests[len(b.guests):])
	for _, w := range others {
		b.seatLocked(w)
	}
	return rings, true
}

// passings is how often guests are told something before those who ring the
// bell meanwhile have their way, and the guests are woken.
const passings = 3

// tell rings the bell and tells its guests what is new in passing. Those who do
// not take it are woken.
func (b *bell) tell() *stroke {
	s := b.strike()
	guests, rings := b.takeGuests()
	for done, i := false, 0; len(guests) > 0 && !done; i++ {
		told := guests[:0]
		for _, w := range guests {
			if i < passings && w.toldInPassing() {
				told = append(told, w)
			} else {
				w.wake <- struct{}{}
			}
		}
		clear(guests[len(told):])
		guests = told
		rings, done = b.seatAgain(guests, rings)
	}
	return s
}

// stroke is one ringing of a bell.
type stroke struct {
	rung    chan struct{} // closed when there is something new to read
	waiting atomic.Int32  // how many wait for it, or have not run again yet
}

// stroke returns the bell's next stroke. Who takes it first and reads then
// misses nothing.
func (b *bell) stroke() *stroke {
	for {
		if s := b.next.Load(); s != nil {
			return s
		}
		s := &stroke{rung: make(chan struct{})}
		if b.next.CompareAndSwap(nil, s) {
			return s
		}
	}
}

// ring wakes everybody who waits.
func (b *bell) ring() {
	b.strike()
	guests, _ := b.takeGuests()
	for _, w := range guests {
		w.wake <- struct{}{}
	}
}

// strike wakes everybody who waits for the stroke, and returns it, nil when
// nobody has.
func (b *bell) strike() *stroke {
	s := b.next.Swap(nil)
	if s != nil {
		close(s.rung)
	}
	return s
}

// ringer rings the bells of topics that have many watchers, one after the
// other. Were ten thousand watchers woken at once, whoever writes next would
// have to wait for a processor until all of them have run.
type ringer struct {
	some  chan struct{} // has an element when there are bells to ring
	bells []*bell       // to be rung, in this order; guarded by Hub.mu
}

// ringers is how many goroutines ring them: they leave processors to those who
// write.
func ringers() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// addLocked has the bells of a topic rung soon.
func (r *ringer) addLocked(tp *topic) {
	for _, b := range tp.bells {
		if !b.queued {
			b.queued = true
			r.bells = append(r.bells, b)
		}
	}
	r.call()
}

// call has one more goroutine look for bells to ring.
func (r *ringer) call() {
	select {
	case r.some <- struct{}{}:
	default:
	}
}

// nextLocked returns a bell to ring, nil when there is none.
func (r *ringer) nextLocked() *bell {
	if len(r.bells) == 0 {
		r.bells = nil // it may have been many
		return nil
	}
	b := r.bells[0]
	r.bells[0] = nil
	r.bells = r.bells[1:]
	b.queued = false
	if len(r.bells) > 0 {
		r.call()
	}
	return b
}

// ring rings until ctx ends.
func (h *Hub) ring(ctx context.Context) {
	for {
		h.mu.Lock()
		b := h.ringer.nextLocked()
		h.mu.Unlock()
		if b != nil {
			b.ringSlowly()
			continue
		}
		select {
		case <-h.ringer.some:
		case <-ctx.Done():
			return
		}
	}
}

// ringSlowly rings a bell that has many watchers, and returns when most of them
// have run. The number of turns is bounded because one of those woken may be
// long in coming.
func (b *bell) ringSlowly() {
	s := b.tell()
	runtime.Gosched()
	for turn := 0; s != nil && turn < 100 && s.waiting.Load() > bellSize/4; turn++ {
		runtime.Gosched()
	}
}
