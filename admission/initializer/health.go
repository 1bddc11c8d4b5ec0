package initializer

import (
	"sync"
	"time"
)

// Health is what has been seen of initializers since the server started: who
// acts, and who lets objects wait beyond their time.
//
// One is deadlocked when its pods wait for initializers whose pods wait for it. That
// ends as soon as the server lets one of these pods go, so it is remembered for
// a while, or until the initializer acts: somebody should see it.
//
// One is stalled when an object has waited for it beyond its time and it has
// not acted since that object's turn began. It is trusted again when it acts.
// Until then one object at a time is given to it, to find out.
type Health struct {
	mu    sync.Mutex // guards names
	names map[string]*seen
}

type seen struct {
	acted   time.Time // when it last did; zero when it has not
	stalled time.Time // since when it is; zero when it is not
	probed  time.Time // when an object was last given to it while stalled
	locked  time.Time // when it was last seen to be deadlocked
}

// lockedFor is how long a deadlock is told of after it was last seen.
const lockedFor = time.Minute

// probeGrace is how long an object that is given to a stalled initializer may
// take until it is stored and seen to wait.
const probeGrace = 2 * time.Second

func (h *Health) ofLocked(name string) *seen {
	s := h.names[name]
	if s == nil {
		s = &seen{}
		if h.names == nil {
			h.names = map[string]*seen{}
		}
		h.names[name] = s
	}
	return s
}

// Acted says that an initializer has taken itself off an object, or failed it.
func (h *Health) Acted(name string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.ofLocked(name)
	s.acted, s.stalled, s.locked = now, time.Time{}, time.Time{}
}

// Deadlocked says that an initializer is, now.
func (h *Health) Deadlocked(name string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ofLocked(name).locked = now
}

// LockedUntil is until when an initializer is told of as deadlocked; zero when it
// is not.
func (h *Health) LockedUntil(name string, now time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.names[name]
	if s == nil || s.locked.IsZero() || now.Sub(s.locked) >= lockedFor {
		return time.Time{}
	}
	return s.locked.Add(lockedFor)
}

// Overdue says that an object has waited for an initializer from since on, and
// beyond its time.
func (h *Health) Overdue(name string, since, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.ofLocked(name); s.acted.Before(since) && s.stalled.IsZero() {
		s.stalled = now
	}
}

// LastActed is when an initializer last acted; zero when it has not.
func (h *Health) LastActed(name string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.names[name]; s != nil {
		return s.acted
	}
	return time.Time{}
}

// Stalled is since when an initializer is; zero when it is not.
func (h *Health) Stalled(name string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.names[name]; s != nil {
		return s.stalled
	}
	return time.Time{}
}

// Probe says whether the next object may be given to a stalled initializer:
// it may when none waits for it already.
func (h *Health) Probe(name string, waits bool, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.ofLocked(name)
	if waits || now.Sub(s.probed) < probeGrace {
		return false
	}
	s.probed = now
	return true
}

// Keep forgets all but some names.
func (h *Health) Keep(is func(name string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.names {
		if !is(name) {
			delete(h.names, name)
		}
	}
}
