// Package turns lets those who change the same thing do so one after the other,
// in the order in which they came, instead of working against each other.
//
// In comes a key; out comes a turn, which ends with Done, or with Pass: who has
// made his change, and only waits until it is written down, passes the turn on
// together with what he has made of the thing, and the next begins with that.
//
// A turn is a courtesy and no lock: nobody asks for one before somebody has been in
// the way, and who has waited for Patience, or finds MaxWaiting others before them,
// goes ahead without. So nothing hangs that waits for something of its own behind it.
package turns

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Bounds of waiting.
const (
	Patience   = time.Second
	MaxWaiting = 1024
)

// Turns are those of many keys, K. What is passed on is a B, whose zero value is
// nothing. The zero value of Turns is ready for use.
type Turns[K comparable, B any] struct {
	mu     sync.Mutex // guards queues and what is in them
	queues map[K]*queue[K, B]
}

// queue is of those who wait for one key while somebody has its turn.
type queue[K comparable, B any] struct {
	waiting []chan B // each told when its turn comes, the first first
	// left is a turn that was passed on when nobody waited: who comes next has it,
	// unless it is done before.
	left *Turn[K, B]
	with B
}

// Turn is somebody's; nil is that of nobody.
type Turn[K comparable, B any] struct {
	// Given is what the turn before was passed on with.
	Given B

	of     *Turns[K, B]
	key    K
	passed bool
}

// Join waits for a turn where others take turns, and returns at once where
// nobody does, without one.
func (t *Turns[K, B]) Join(ctx context.Context, key K) (*Turn[K, B], error) {
	t.mu.Lock()
	q := t.queues[key]
	if q == nil {
		t.mu.Unlock()
		return nil, nil //nolint:nilnil // a turn of nobody
	}
	return t.waitLocked(ctx, key, q)
}

// Take waits for a turn; the first one to take has it at once. Whoever joins
// from then on waits until it is done, or passed on.
func (t *Turns[K, B]) Take(ctx context.Context, key K) (*Turn[K, B], error) {
	t.mu.Lock()
	if q := t.queues[key]; q != nil {
		return t.waitLocked(ctx, key, q)
	}
	if t.queues == nil {
		t.queues = map[K]*queue[K, B]{}
	}
	t.queues[key] = &queue[K, B]{}
	t.mu.Unlock()
	return &Turn[K, B]{of: t, key: key}, nil
}

// waitLocked waits at the end of a queue. It gives the lock back.
func (t *Turns[K, B]) waitLocked(ctx context.Context, key K, q *queue[K, B]) (*Turn[K, B], error) {
	if q.left != nil {
		turn := &Turn[K, B]{of: t, key: key, Given: q.with}
		q.leave(nil)
		t.mu.Unlock()
		return turn, nil
	}
	if len(q.waiting) >= MaxWaiting {
		t.mu.Unlock()
		return nil, nil //nolint:nilnil // a turn of nobody
	}
	mine := make(chan B, 1)
	q.waiting = append(q.waiting, mine)
	t.mu.Unlock()
	patience := time.NewTimer(Patience)
	defer patience.Stop()
	select {
	case with := <-mine:
		return &Turn[K, B]{of: t, key: key, Given: with}, nil
	case <-patience.C:
	case <-ctx.Done():
	}
	if t.away(q, mine) {
		return nil, ctx.Err()
	}
	// It came at the last moment.
	turn := &Turn[K, B]{of: t, key: key, Given: <-mine}
	if err := ctx.Err(); err != nil {
		turn.Pass(turn.Given)
		turn.Done()
		return nil, err
	}
	return turn, nil
}

// away takes somebody out of a queue; false when their turn has come.
func (t *Turns[K, B]) away(q *queue[K, B], mine chan B) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(q.waiting, mine)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return true
}

// leave has a turn lie there for who comes next; nil takes it away.
func (q *queue[K, B]) leave(turn *Turn[K, B]) {
	var nothing B
	q.left, q.with = turn, nothing
}

// next gives the turn to who has waited longest, if somebody has.
func (q *queue[K, B]) next(with B) bool {
	if len(q.waiting) == 0 {
		return false
	}
	q.waiting[0] <- with
	q.waiting = slices.Delete(q.waiting, 0, 1)
	return true
}

// Pass gives the turn to who has waited longest, or comes next, before it is done.
// Of a turn that was passed on, and of nobody's, there is nothing to pass.
func (turn *Turn[K, B]) Pass(with B) {
	if turn == nil || turn.passed {
		return
	}
	turn.passed = true
	turn.of.mu.Lock()
	defer turn.of.mu.Unlock()
	q := turn.of.queues[turn.key]
	if !q.next(with) {
		q.leave(turn)
		q.with = with
	}
}

// Done ends the turn, and gives it to who has waited longest unless it was passed on.
func (turn *Turn[K, B]) Done() {
	if turn == nil {
		return
	}
	turn.of.mu.Lock()
	defer turn.of.mu.Unlock()
	q := turn.of.queues[turn.key]
	var nothing B
	switch {
	case turn.passed && (q == nil || q.left != turn): // somebody has it
	case turn.passed || !q.next(nothing):
		delete(turn.of.queues, turn.key)
	}
}
