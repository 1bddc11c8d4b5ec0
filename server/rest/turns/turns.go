// Package turns lets those who change the same thing do so one after the other,
// in the order in which they came, instead of working against each other.
//
// In comes a key; out comes a turn, which ends with Done. A turn is a courtesy
// and no lock: nobody asks for one before somebody has been in the way, and who
// has waited for Patience, or finds MaxWaiting others before them, goes ahead
// without. So nothing hangs that waits for something of its own behind it.
package turns

import (
	"context"
	"sync"
	"time"
)

// Bounds of waiting.
const (
	Patience   = time.Second
	MaxWaiting = 1024
)

// Turns are those of many keys. Its zero value is ready for use.
type Turns[K comparable] struct {
	mu     sync.Mutex // guards queues and what is in them
	queues map[K]*queue
}

// queue is of those who wait for one key while somebody has its turn.
type queue struct {
	waiting []chan struct{} // each closed when its turn comes, the first first
}

// Turn is somebody's. The zero Turn is that of nobody.
type Turn[K comparable] struct {
	of  *Turns[K]
	key K
}

// Join waits for a turn where others take turns, and returns at once where
// nobody does, without one.
func (t *Turns[K]) Join(ctx context.Context, key K) (Turn[K], error) {
	t.mu.Lock()
	q := t.queues[key]
	if q == nil {
		t.mu.Unlock()
		return Turn[K]{}, nil
	}
	return t.waitLocked(ctx, key, q)
}

// Take waits for a turn; the first one to take has it at once. Whoever joins
// from then on waits until it is done.
func (t *Turns[K]) Take(ctx context.Context, key K) (Turn[K], error) {
	t.mu.Lock()
	if q := t.queues[key]; q != nil {
		return t.waitLocked(ctx, key, q)
	}
	if t.queues == nil {
		t.queues = map[K]*queue{}
	}
	t.queues[key] = &queue{}
	t.mu.Unlock()
	return Turn[K]{t, key}, nil
}

// waitLocked waits at the end of a queue. It gives the lock back.
func (t *Turns[K]) waitLocked(ctx context.Context, key K, q *queue) (Turn[K], error) {
	if len(q.waiting) >= MaxWaiting {
		t.mu.Unlock()
		return Turn[K]{}, nil
	}
	mine := make(chan struct{})
	q.waiting = append(q.waiting, mine)
	t.mu.Unlock()
	patience := time.NewTimer(Patience)
	defer patience.Stop()
	select {
	case <-mine:
		return Turn[K]{t, key}, nil
	case <-patience.C:
	case <-ctx.Done():
	}
	if !t.leave(q, mine) {
		// It came at the last moment.
		turn := Turn[K]{t, key}
		if err := ctx.Err(); err != nil {
			turn.Done()
			return Turn[K]{}, err
		}
		return turn, nil
	}
	return Turn[K]{}, ctx.Err()
}

// leave takes somebody out of a queue; false when their turn has come.
func (t *Turns[K]) leave(q *queue, mine chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, c := range q.waiting {
		if c == mine {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// Has says that this is a turn.
func (t Turn[K]) Has() bool { return t.of != nil }

// Done gives the turn to who has waited longest.
func (t Turn[K]) Done() {
	if t.of == nil {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	q := t.of.queues[t.key]
	if len(q.waiting) == 0 {
		delete(t.of.queues, t.key)
		return
	}
	next := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	close(next)
}
