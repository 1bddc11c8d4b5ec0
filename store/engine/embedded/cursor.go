package embedded

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"setpoint.dev/setpoint/store/engine"
)

// cursor is an iterator over a consistent state of the database. The engine
// may end it between any two steps, so that closing does not wait for whoever
// holds it.
type cursor struct {
	inst *instance

	mu  sync.Mutex // guards the fields below
	it  *pebble.Iterator
	err error
}

// newCursor opens a cursor on [lower, upper).
func (i *instance) newCursor(lower, upper []byte) (*cursor, error) {
	if f := i.guard.fault(); f != nil {
		return nil, f
	}
	c := &cursor{inst: i}
	err := i.guard.shield(func() (err error) {
		c.it, err = i.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		return err
	})
	if err != nil {
		return nil, i.guard.explain(err)
	}
	i.register(c)
	return c, nil
}

func (i *instance) register(c *cursor) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cursors[c] = struct{}{}
}

// clone opens a cursor on [lower, upper) that sees the same state.
func (c *cursor) clone(lower, upper []byte) (*cursor, error) {
	twin := &cursor{inst: c.inst}
	err := c.run(func(it *pebble.Iterator) (err error) {
		twin.it, err = it.Clone(pebble.CloneOptions{
			IterOptions: &pebble.IterOptions{LowerBound: lower, UpperBound: upper},
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	c.inst.register(twin)
	return twin, nil
}

// run works with the iterator, unless the cursor has ended.
func (c *cursor) run(fn func(*pebble.Iterator) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		if f := c.inst.guard.fault(); f != nil {
			c.err = f
		} else {
			c.err = c.inst.guard.explain(c.inst.guard.shield(func() error { return fn(c.it) }))
		}
	}
	return c.err
}

// step moves the cursor with move, and if it then stands on something, shows
// it to read, which must not keep the slices. It reports whether there was
// anything; if not, failure says why.
func (c *cursor) step(move func(*pebble.Iterator) bool, read func(k, v []byte) error) bool {
	var found bool
	err := c.run(func(it *pebble.Iterator) error {
		if found = move(it); !found {
			return it.Error()
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		return read(it.Key(), v)
	})
	return found && err == nil
}

// failure returns what ended the cursor early.
func (c *cursor) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// stop ends the cursor; later steps fail with reason.
func (c *cursor) stop(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = reason
	}
	if c.it == nil {
		return
	}
	it := c.it
	c.it = nil
	// An iterator of a fenced instance is left alone: closing it may wait for
	// a lock that nobody will return.
	if c.inst.guard.fault() == nil {
		_ = c.inst.guard.shield(it.Close)
	}
	c.inst.mu.Lock()
	defer c.inst.mu.Unlock()
	delete(c.inst.cursors, c)
}

func (c *cursor) close() { c.stop(engine.ErrClosed) }

func first(it *pebble.Iterator) bool { return it.First() }
func next(it *pebble.Iterator) bool  { return it.Next() }
func prev(it *pebble.Iterator) bool  { return it.Prev() }
func last(it *pebble.Iterator) bool  { return it.Last() }

func seek(key []byte) func(*pebble.Iterator) bool {
	return func(it *pebble.Iterator) bool { return it.SeekGE(key) }
}
