package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"

	"setpoint.dev/setpoint/store/engine"
)

const (
	// loadChunk is how many objects Load reads before it looks whether it
	// should go on.
	loadChunk = 256
	// loadParts is how many parts each reading goroutine gets, so that none
	// idles for long while another finishes a large one.
	loadParts = 4
)

// Load implements engine.Engine. Parts are cut at the bounds of Pebble's files
// and read from one state of the database. Close waits for the function.
func (e *Engine) Load(ctx context.Context, fn func(part int, v engine.Version) error) error {
	if err := e.load(ctx, fn); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	return nil
}

func (e *Engine) load(ctx context.Context, fn func(part int, v engine.Version) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	workers := runtime.GOMAXPROCS(0)
	parts, err := e.loadCursors(workers * loadParts)
	if err != nil {
		return err
	}
	defer func() {
		for _, c := range parts {
			c.close()
		}
		e.serve()
	}()
	at := e.acknowledged()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for part, c := range parts {
		group.Go(func() error {
			defer c.close()
			return c.load(ctx, at, func(v engine.Version) error { return fn(part, v) })
		})
	}
	return group.Wait()
}

// serve lets Pebble go on with its background work.
func (e *Engine) serve() {
	if inst, err := e.use(); err == nil {
		defer e.life.RUnlock()
		inst.guard.serving.Store(true)
	}
}

// loadCursors cuts the objects into at most n parts and opens a cursor on each.
// All see the same state.
func (e *Engine) loadCursors(n int) (parts []*cursor, err error) {
	inst, err := e.use()
	if err != nil {
		return nil, err
	}
	defer e.life.RUnlock()
	lower, end := []byte{prefixVersion}, []byte{prefixVersion + 1}
	whole, err := inst.newCursor(lower, end)
	if err != nil {
		return nil, err
	}
	defer whole.close()
	bounds, err := inst.bounds(n)
	if err != nil {
		return nil, err
	}
	for _, upper := range append(bounds, end) {
		c, err := whole.clone(lower, upper)
		if err != nil {
			for _, c := range parts {
				c.close()
			}
			return nil, err
		}
		parts = append(parts, c)
		lower = upper
	}
	return parts, nil
}

// bounds returns keys that cut the objects into at most n parts of about the
// same size, none through an object's versions.
func (i *instance) bounds(n int) ([][]byte, error) {
	var all [][]byte
	err := i.guard.shield(func() error {
		levels, err := i.db.SSTables()
		for _, level := range levels {
			for t := range level {
				if bound, ok := objectBound(level[t].Smallest.UserKey); ok {
					all = append(all, bound)
				}
			}
		}
		return err
	})
	if err != nil {
		return nil, i.guard.explain(err)
	}
	slices.SortFunc(all, bytes.Compare)
	all = slices.CompactFunc(all, bytes.Equal)
	if len(all) < n {
		return all, nil
	}
	bounds := make([][]byte, 0, n)
	for part := 1; part < n; part++ {
		bounds = append(bounds, all[part*len(all)/n])
	}
	return bounds, nil
}

// objectBound cuts the revision off a version's key: no object's versions lie
// on both sides of what is left.
func objectBound(k []byte) ([]byte, bool) {
	_, _, rest, err := decodeTable(k, prefixVersion)
	if err != nil {
		return nil, false
	}
	if _, _, err := decodeVersionKey(rest); err != nil {
		return nil, false
	}
	return bytes.Clone(k[:len(k)-revLen]), true
}

// load calls fn with every object under the cursor as it was at a revision.
func (c *cursor) load(ctx context.Context, at engine.Revision, fn func(engine.Version) error) error {
	o := &objects{at: at, lend: true}
	for more := true; more; {
		err := c.run(func(it *pebble.Iterator) error {
			for range loadChunk {
				if more = o.move(it); !more {
					return it.Error()
				}
				v, err := it.ValueAndErr()
				if err != nil {
					return err
				}
				found, err := o.read(it.Key(), v)
				if err == nil && found {
					err = fn(o.v)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}
