package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"setpoint.dev/setpoint/store/engine"
)

// Bounds of the committer.
const (
	queueLength  = 1024     // commits that may wait; more wait in their callers
	groupLength  = 1024     // commits in one group
	groupSize    = 16 << 20 // bytes after which a group takes no further commit
	reserveAhead = 1 << 14  // revisions reserved at once for forks
	recoverEvery = time.Second
)

// committer is the one goroutine that changes state. It takes what is waiting,
// checks conditions against memory, assigns revisions, has the engine write
// the group with one sync, publishes the new version and answers. The next
// group gathers meanwhile.
//
// A group is published only when it is durable, and nobody of the group is
// answered before that: a conflict may be with a commit of the same group.
type committer struct {
	store *Store
	queue chan *request
	// stopped is closed when nobody takes from the queue any more.
	stopped chan struct{}
	spare   sync.Pool // of requests: every commit needs one for a moment

	// The fields below belong to run.
	millis  int64    // of the last revision
	covered Revision // what the engine goes on from after a restart, at least
	down    error    // why the engine takes no commits; nil when it does
	retryAt time.Time
	forks   int // made so far, for their ids

	// Room that is used again for each group.
	olds         []*Object // of the request's assertions, then of its operations
	main, forked []engine.Txn
}

func newCommitter(s *Store) *committer {
	return &committer{
		store: s, queue: make(chan *request, queueLength), stopped: make(chan struct{}),
		covered: s.engine.Current(),
	}
}

// do hands r to the committer and waits for its outcome.
func (c *committer) do(ctx context.Context, r *request) error {
	select {
	case c.queue <- r:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.stopped:
		return ErrClosed
	}
	giveUp := func(why error) error {
		if r.taken.CompareAndSwap(false, true) {
			return why
		}
		<-r.done
		return nil
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return giveUp(ctx.Err())
	case <-c.stopped:
		return giveUp(ErrClosed)
	}
}

func (c *committer) run(ctx context.Context) {
	defer close(c.stopped)
	var group []*request
	for ctx.Err() == nil {
		select {
		case r := <-c.queue:
			group = c.gather(group[:0], r)
			c.commit(group)
			clear(group)
			// Let those who were answered go first, as long as that brings
			// commits: what they commit next joins those who wait, and shares
			// their sync.
			for waiting := -1; waiting < len(c.queue); {
				waiting = len(c.queue)
				runtime.Gosched()
			}
		case <-ctx.Done():
		}
	}
}

// gather takes what waits, up to the bounds of a group.
func (c *committer) gather(group []*request, r *request) []*request {
	size := 0
	for {
		if r.taken.CompareAndSwap(false, true) {
			group = append(group, r)
			size += r.size
		}
		if len(group) >= groupLength || size >= groupSize {
			return group
		}
		select {
		case r = <-c.queue:
		default:
			return group
		}
	}
}

func (c *committer) commit(group []*request) {
	err := c.ready()
	var d *draft
	var batch Batch
	if err == nil {
		d = newDraft(c.store.current.Load())
		for _, r := range group {
			r.rev, r.err = c.enter(d, r, &batch)
		}
		for _, r := range group {
			r.announce()
		}
		if err = c.write(group, d.rev); err == nil {
			c.publish(d, batch)
		}
	}
	for _, r := range group {
		if err != nil {
			r.rev, r.err = 0, err
		}
		r.settle(err)
		r.done <- struct{}{}
	}
}

// ready says why no commit can be taken, after trying to mend it.
func (c *committer) ready() error {
	if c.down == nil {
		return nil
	}
	if errors.Is(c.down, ErrFailed) || time.Now().Before(c.retryAt) {
		return c.down
	}
	c.retryAt = time.Now().Add(recoverEvery)
	ctx := context.Background()
	if err := c.store.engine.Recover(ctx); err != nil {
		c.down = fmt.Errorf("store takes no commits: %w", err)
		return c.down
	}
	if err := c.catchUp(ctx); err != nil {
		c.down = fmt.Errorf("store takes no commits: read what is on disk: %w", err)
		return c.down
	}
	c.down = nil
	return nil
}

// catchUp publishes what the engine holds of a group whose outcome was
// unknown, so that memory and disk agree again.
func (c *committer) catchUp(ctx context.Context) error {
	s := c.store
	v := s.current.Load()
	tables, err := s.engine.Tables(ctx)
	if err != nil {
		return err
	}
	var found []engine.Version
	for t, floor := range tables {
		for entry, err := range s.engine.Log(ctx, t, max(v.rev, floor)) {
			if err != nil {
				return err
			}
			stored, err := s.engine.Get(ctx, t, entry.Key, entry.Rev)
			if err != nil {
				return err
			}
			found = append(found, stored)
		}
	}
	slices.SortStableFunc(found, func(a, b engine.Version) int { return int(a.Rev - b.Rev) })
	d := newDraft(v)
	var batch Batch
	for _, stored := range found {
		change, err := storedChange(stored, d.get(engine.Table{Plane: stored.Plane, Resource: stored.Resource}, stored.Key))
		if err != nil {
			return err
		}
		d.apply(change)
		batch.Changes = append(batch.Changes, change)
		c.millis = max(c.millis, stored.Time)
	}
	d.rev = max(d.rev, s.engine.Current())
	c.publish(d, batch)
	return nil
}

// enter carries out a request in the draft, wholly or not at all, and adds
// what it did to the batch.
func (c *committer) enter(d *draft, r *request, batch *Batch) (Revision, error) {
	if r.edit != nil {
		return r.rev, r.edit(d, batch)
	}
	if err := d.follows(r); err != nil {
		return 0, err
	}
	c.olds = c.olds[:0]
	for _, ops := range [][]preparedOp{r.asserts, r.ops} {
		for i := range ops {
			old, err := d.check(&ops[i])
			if err != nil {
				return 0, err
			}
			c.olds = append(c.olds, old)
		}
	}
	r.hold(c.olds)
	olds := c.olds[len(r.asserts):]
	c.millis = max(c.millis, time.Now().UnixMilli())
	rev := d.rev + 1
	if r.changes = r.oneChange[:]; len(r.ops) > 1 {
		r.changes = make([]*Change, len(r.ops))
	}
	for i := range r.ops {
		change := r.ops[i].change(olds[i], rev, c.millis, r.provenance)
		change.planeID = d.plane(change.Plane).id
		d.apply(change)
		r.changes[i] = change
	}
	batch.Changes = append(batch.Changes, r.changes...)
	return rev, nil
}

// check returns what is stored of an operation's object, or says why the
// operation cannot happen to it.
func (d *draft) check(op *preparedOp) (*Object, error) {
	if d.plane(op.Plane) == nil {
		return nil, fmt.Errorf("%w: %q", ErrNoPlane, op.Plane)
	}
	have := d.get(op.table, op.Key)
	return have, op.conflict(have)
}

// hold notes what the request's assertions have found in plane main. Of other
// planes nobody else knows.
func (r *request) hold(found []*Object) {
	r.held = r.oneHeld[:0]
	for i := range r.asserts {
		op := &r.asserts[i]
		if op.Plane != Main {
			continue
		}
		a := engine.Assert{Plane: Main, Resource: op.Resource, Key: op.Key}
		if found[i] != nil {
			a.Rev = found[i].Rev
		}
		r.held = append(r.held, a)
	}
}

// write makes the accepted requests of a group durable: main in the engine,
// forks in memory.
func (c *committer) write(group []*request, last Revision) error {
	main, forks := c.main[:0], c.forked[:0]
	defer func() {
		clear(main)
		clear(forks)
		c.main, c.forked = main, forks
	}()
	for _, r := range group {
		if len(r.changes) > 0 {
			m, f := r.durable()
			if len(m.Changes) > 0 {
				main = append(main, m)
			}
			if len(f.Changes) > 0 {
				forks = append(forks, f)
			}
		}
	}
	ctx := context.Background()
	covered := c.covered
	if len(main) > 0 {
		covered = max(covered, main[len(main)-1].Rev)
	}
	var reserve Revision
	if last > covered {
		reserve = last + reserveAhead
		covered = reserve
	}
	if len(main) > 0 || reserve > 0 {
		if err := c.store.engine.Commit(ctx, main, reserve); err != nil {
			if errors.Is(err, ErrUnknown) || errors.Is(err, ErrFailed) {
				c.down = fmt.Errorf("store takes no commits: %w", err)
				c.retryAt = time.Time{}
			}
			return err
		}
	}
	c.covered = covered
	if len(forks) > 0 {
		return c.store.forks.Commit(ctx, forks, 0)
	}
	return nil
}

// durable is what an accepted request asks the engine, and the keeper of
// forks, to write.
func (r *request) durable() (main, forks engine.Txn) {
	main = engine.Txn{Rev: r.rev, Time: r.changes[0].millis, Provenance: r.provenance}
	forks = main
	main.Changes, main.Asserts = r.oneDurable[:0], r.held
	for i, change := range r.changes {
		e := change.durable(r.ops[i].derived())
		if change.Plane == Main {
			main.Changes = append(main.Changes, e)
		} else {
			forks.Changes = append(forks.Changes, e)
		}
	}
	return main, forks
}

func (c *committer) publish(d *draft, batch Batch) {
	if len(batch.Changes) == 0 && !d.edited {
		return // nothing but conflicts
	}
	was := c.store.current.Load()
	batch.Rev = d.rev
	v := &version{rev: d.rev, planes: d.planes, feed: newFeedNode(batch)}
	c.store.current.Store(v)
	was.feed.link(v.feed)
	c.store.compactor.note(batch.Changes)
}
