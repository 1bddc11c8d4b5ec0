package embedded

import (
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"setpoint.dev/setpoint/store/engine"
)

// compactStep is how many log entries one batch of a compaction removes.
const compactStep = 1000

// Compact implements engine.Engine.
//
// The log says what to remove: an entry at or below the floor superseded the
// version it names as previous, and one that is a delete is itself a version
// nobody can see any more. What an entry leads to goes in the same batch as the
// entry, so that an interruption leaves the rest for the next call. The floor
// is written with the first batch. Nothing is synced: a crash undoes the end
// of a compaction, never the beginning.
func (e *Engine) Compact(ctx context.Context, t engine.Table, upTo engine.Revision) error {
	if err := e.compact(ctx, t, upTo); err != nil {
		return fmt.Errorf("compact %s in %s: %w", t.Resource, t.Plane, err)
	}
	return nil
}

func (e *Engine) compact(ctx context.Context, t engine.Table, upTo engine.Revision) error {
	inst, err := e.use()
	if err != nil {
		return err
	}
	defer e.life.RUnlock()
	if f := inst.guard.fault(); f != nil {
		return f
	}
	e.state.Lock()
	floor := e.floors[t]
	raised := upTo > floor
	if raised {
		floor = min(upTo, max(e.committed, e.reserve))
		e.floors[t] = floor
	}
	e.state.Unlock()

	start := appendEntryKey(nil, t, 0, 0)
	c, err := inst.newCursor(start, appendEntryKey(nil, t, floor+1, 0))
	if err != nil {
		return err
	}
	defer c.close()

	table := len(appendTable(nil, prefixEntry, t))
	b := inst.db.NewBatch()
	defer func() { _ = b.Close() }()
	if raised {
		if err := setFloor(b, t, floor); err != nil {
			return err
		}
	}
	var key []byte // scratch
	var past []byte
	read := func(k, v []byte) error {
		rev, _, err := decodeEntryKey(k[table:])
		if err != nil {
			return err
		}
		entry, err := decodeEntry(v)
		if err != nil {
			return err
		}
		past = append(append(past[:0], k...), 0)
		if entry.Prev > 0 {
			key = appendVersionKey(key[:0], t, entry.Key, entry.Prev)
			if err := b.Delete(key, nil); err != nil {
				return err
			}
		}
		if !entry.Delete {
			return nil
		}
		key = appendVersionKey(key[:0], t, entry.Key, rev)
		return b.Delete(key, nil)
	}
	flush := func() error {
		if past != nil {
			if err := b.DeleteRange(start, past, nil); err != nil {
				return err
			}
		}
		if b.Empty() {
			return nil
		}
		if err := inst.guard.call(func() error { return inst.db.Apply(b, pebble.NoSync) }); err != nil {
			return err
		}
		b.Reset()
		return nil
	}
	n := 0
	for ok := c.step(first, read); ok; ok = c.step(next, read) {
		if n++; n%compactStep != 0 {
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		select {
		case <-e.closing:
			return engine.ErrClosed
		default:
		}
	}
	if err := c.failure(); err != nil {
		return err
	}
	return flush()
}

// Drop implements engine.Engine. It is durable when it returns.
func (e *Engine) Drop(ctx context.Context, plane string) error {
	if err := e.drop(ctx, plane); err != nil {
		return fmt.Errorf("drop plane %s: %w", plane, err)
	}
	return nil
}

func (e *Engine) drop(ctx context.Context, plane string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	inst, err := e.use()
	if err != nil {
		return err
	}
	defer e.life.RUnlock()
	if f := inst.guard.fault(); f != nil {
		return f
	}
	b := inst.db.NewBatch()
	for _, prefix := range [...]string{string(prefixMeta) + string(prefixFloor), string(prefixEntry), string(prefixVersion)} {
		lower := append([]byte(prefix+plane), 0)
		if err := b.DeleteRange(lower, successor(lower), nil); err != nil {
			return err
		}
	}
	if err := inst.guard.call(func() error { return inst.db.Apply(b, inst.write) }); err != nil {
		return err
	}
	e.state.Lock()
	for t := range e.floors {
		if t.Plane == plane {
			delete(e.floors, t)
		}
	}
	e.state.Unlock()
	return b.Close()
}
