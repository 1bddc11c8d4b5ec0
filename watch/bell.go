package watch

import (
	"context"
	"runtime"
	"sync/atomic"
)

// bellSize is how many watchers share a bell.
const bellSize = 128

// bell wakes the watchers of a topic, or some of them where there are many.
type bell struct {
	// next is the stroke to come. The first to wait for it makes it; nil as
	// long as nobody has.
	next     atomic.Pointer[stroke]
	watchers int // guarded by Hub.mu
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

// ring lets everybody who waits look again. It returns the stroke, nil when
// nobody has waited for it.
func (b *bell) ring() *stroke {
	s := b.next.Swap(nil)
	if s != nil {
		close(s.rung)
	}
	return s
}

// ringer rings the bells of topics that have several of them, one after the
// other. Were ten thousand watchers woken at once, whoever writes next would
// have to wait for a processor until all of them have run.
type ringer struct {
	some  chan struct{} // has an element when there are topics to ring
	bells []*bell       // run's

	topics []*topic // guarded by Hub.mu
}

// addLocked has a topic rung soon.
func (r *ringer) addLocked(tp *topic) {
	if !tp.ringing {
		tp.ringing = true
		r.topics = append(r.topics, tp)
	}
	select {
	case r.some <- struct{}{}:
	default:
	}
}

// takeLocked returns the bells to ring.
func (r *ringer) takeLocked() []*bell {
	clear(r.bells)
	r.bells = r.bells[:0]
	for _, tp := range r.topics {
		tp.ringing = false
		r.bells = append(r.bells, tp.bells...)
	}
	clear(r.topics)
	r.topics = r.topics[:0]
	return r.bells
}

// ring rings until ctx ends.
func (h *Hub) ring(ctx context.Context) {
	for {
		select {
		case <-h.ringer.some:
		case <-ctx.Done():
			return
		}
		h.mu.Lock()
		bells := h.ringer.takeLocked()
		h.mu.Unlock()
		for _, b := range bells {
			s := b.ring()
			// The number of turns is bounded because one of those woken may be
			// long in coming.
			for turn := 0; s != nil && turn < 100 && s.waiting.Load() > bellSize/4; turn++ {
				runtime.Gosched()
			}
		}
	}
}
