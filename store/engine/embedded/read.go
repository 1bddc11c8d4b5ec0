package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"

	"setpoint.dev/setpoint/store/engine"
)

// versionsToStep is how many old versions a scan steps over before it seeks to
// the next object instead.
const versionsToStep = 4

// openCursor opens a cursor that a later call of Close ends.
func (e *Engine) openCursor(lower, upper []byte) (*cursor, error) {
	inst, err := e.use()
	if err != nil {
		return nil, err
	}
	defer e.life.RUnlock()
	return inst.newCursor(lower, upper)
}

// Tables implements engine.Engine.
func (e *Engine) Tables(ctx context.Context) (map[engine.Table]engine.Revision, error) {
	tables, err := e.tables(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	return tables, nil
}

func (e *Engine) tables(ctx context.Context) (map[engine.Table]engine.Revision, error) {
	tables := make(map[engine.Table]engine.Revision)
	for _, prefix := range [...]byte{prefixEntry, prefixVersion} {
		c, err := e.openCursor([]byte{prefix}, []byte{prefix + 1})
		if err != nil {
			return nil, err
		}
		var t engine.Table
		read := func(k, _ []byte) error {
			plane, resource, _, err := decodeTable(k, prefix)
			t = engine.Table{Plane: string(plane), Resource: string(resource)}
			return err
		}
		for ok := c.step(first, read); ok; ok = c.step(seek(successor(appendTable(nil, prefix, t))), read) {
			tables[t] = 0
			if err := ctx.Err(); err != nil {
				c.close()
				return nil, err
			}
		}
		err = c.failure()
		c.close()
		if err != nil {
			return nil, err
		}
	}
	// A table that holds nothing any more still has its floor.
	e.state.Lock()
	defer e.state.Unlock()
	maps.Copy(tables, e.floors)
	return tables, nil
}

// objects steps through versions and finds the ones that were current at a
// revision, in one table or several.
type objects struct {
	at   engine.Revision
	lend bool // versions alias the iterator's bytes, their keys included

	begun bool
	steps int    // since the last version taken or the last seek
	table []byte // what the key begins with up to the object's
	names engine.Table
	taken []byte // the object that was taken last, as its keys begin
	here  []byte // the object under the iterator, as its keys begin
	v     engine.Version
}

// move brings the iterator to a version worth looking at.
func (o *objects) move(it *pebble.Iterator) bool {
	switch {
	case !o.begun:
		o.begun = true
		return it.First()
	case o.steps <= versionsToStep:
		o.steps++
		return it.Next()
	case bytes.Equal(o.here, o.taken):
		o.steps = 0
		return it.SeekGE(successor(o.here))
	default:
		o.steps = 0
		return it.SeekGE(binary.BigEndian.AppendUint64(bytes.Clone(o.here), ^uint64(o.at)))
	}
}

// read looks at the version under the iterator. It reports whether v now holds
// an object as it was at the revision.
func (o *objects) read(k, v []byte) (bool, error) {
	if len(k) <= revLen {
		return false, fmt.Errorf("%w: key %q", errMalformed, k)
	}
	here := k[:len(k)-revLen]
	if bytes.Equal(here, o.taken) {
		return false, nil
	}
	o.here = append(o.here[:0], here...)
	if len(o.table) == 0 || !bytes.HasPrefix(k, o.table) {
		plane, resource, rest, err := decodeTable(k, prefixVersion)
		if err != nil {
			return false, err
		}
		o.table = append(o.table[:0], k[:len(k)-len(rest)]...)
		o.names = engine.Table{Plane: string(plane), Resource: string(resource)}
	}
	key, rev, err := decodeVersionKey(k[len(o.table):])
	if err != nil || rev > o.at {
		return false, err
	}
	o.taken, o.steps = append(o.taken[:0], here...), 0
	name := unsafe.String(unsafe.SliceData(key), len(key))
	if !o.lend {
		name, v = strings.Clone(name), bytes.Clone(v)
	}
	if err := fillVersion(&o.v, o.names, name, rev, v); err != nil {
		return false, err
	}
	return !o.v.Delete, nil
}

// fillVersion makes a version of its parts. Its byte slices alias value.
func fillVersion(v *engine.Version, t engine.Table, key string, rev engine.Revision, value []byte) error {
	if err := decodeVersion(value, v); err != nil {
		return fmt.Errorf("%s %q in %s at %d: %w", t.Resource, key, t.Plane, rev, err)
	}
	v.Plane, v.Resource, v.Key, v.Rev = t.Plane, t.Resource, key, rev
	return nil
}

// scanBound returns where the objects begin whose keys are not below s. A NUL
// byte in s is below all that can follow in a key.
func scanBound(table []byte, s string) []byte {
	b := append(bytes.Clone(table), s...)
	if i := strings.IndexByte(s, 0); i >= 0 {
		b = b[:len(table)+i+1]
		b[len(b)-1] = 1
	}
	return b
}

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, t engine.Table, from, to string, at engine.Revision) iter.Seq2[engine.Version, error] {
	return func(yield func(engine.Version, error) bool) {
		fail := func(err error) {
			yield(engine.Version{}, fmt.Errorf("scan %s in %s: %w", t.Resource, t.Plane, err))
		}
		table := appendTable(nil, prefixVersion, t)
		lower, upper := scanBound(table, from), successor(table)
		if to != "" {
			upper = scanBound(table, to)
		}
		upper = slices.MaxFunc([][]byte{lower, upper}, bytes.Compare)
		c, err := e.openCursor(lower, upper)
		if err != nil {
			fail(err)
			return
		}
		defer c.close()
		newest := e.acknowledged()
		// Compact raises the floor before it removes anything, so a floor that
		// is not above at now was not when the cursor was opened.
		if at != 0 && at < e.floor(t) {
			fail(engine.ErrCompacted)
			return
		}
		if at == 0 || at > newest {
			at = newest
		}
		o := &objects{at: at}
		var found bool
		read := func(k, v []byte) (err error) {
			found, err = o.read(k, v)
			return err
		}
		for c.step(o.move, read) {
			if !found {
				continue
			}
			if err := ctx.Err(); err != nil {
				fail(err)
				return
			}
			if !yield(o.v, nil) {
				return
			}
		}
		if err := c.failure(); err != nil {
			fail(err)
		}
	}
}

// Versions implements engine.Engine.
func (e *Engine) Versions(ctx context.Context, t engine.Table, key string) iter.Seq2[engine.Version, error] {
	return func(yield func(engine.Version, error) bool) {
		fail := func(err error) {
			yield(engine.Version{}, fmt.Errorf("versions of %s %q in %s: %w", t.Resource, key, t.Plane, err))
		}
		lower := appendObject(nil, t, key)
		c, err := e.openCursor(lower, successor(lower))
		if err != nil {
			fail(err)
			return
		}
		defer c.close()
		newest := e.acknowledged()
		floor := e.floor(t)
		var v, base engine.Version
		read := func(k, value []byte) error {
			_, rev, err := decodeVersionKey(k[len(lower)-len(key)-1:])
			if err != nil {
				return err
			}
			return fillVersion(&v, t, key, rev, bytes.Clone(value))
		}
		// Of the versions at or below the floor only the newest counts; others
		// may be there because Compact has not come to them yet.
		giveBase := func() bool {
			give := base.Rev != 0 && !base.Delete
			ok := !give || yield(base, nil)
			base.Rev = 0
			return ok
		}
		for ok := c.step(last, read); ok && v.Rev <= newest; ok = c.step(prev, read) {
			if err := ctx.Err(); err != nil {
				fail(err)
				return
			}
			if v.Rev <= floor {
				base = v
				continue
			}
			if !giveBase() || !yield(v, nil) {
				return
			}
		}
		if err := c.failure(); err != nil {
			fail(err)
			return
		}
		giveBase()
	}
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, t engine.Table, key string, rev engine.Revision) (engine.Version, error) {
	v, err := e.get(ctx, t, key, rev)
	if err != nil {
		return engine.Version{}, fmt.Errorf("get %s %q in %s at %d: %w", t.Resource, key, t.Plane, rev, err)
	}
	return v, nil
}

func (e *Engine) get(ctx context.Context, t engine.Table, key string, rev engine.Revision) (v engine.Version, err error) {
	if err := ctx.Err(); err != nil {
		return v, err
	}
	if rev > e.acknowledged() {
		return v, engine.ErrCompacted
	}
	inst, err := e.use()
	if err != nil {
		return v, err
	}
	defer e.life.RUnlock()
	if f := inst.guard.fault(); f != nil {
		return v, f
	}
	err = inst.guard.shield(func() error {
		value, closer, err := inst.db.Get(appendVersionKey(nil, t, key, rev))
		if errors.Is(err, pebble.ErrNotFound) {
			return engine.ErrCompacted
		}
		if err != nil {
			return err
		}
		return errors.Join(fillVersion(&v, t, key, rev, bytes.Clone(value)), closer.Close())
	})
	return v, inst.guard.explain(err)
}

// Log implements engine.Engine.
func (e *Engine) Log(ctx context.Context, t engine.Table, after engine.Revision) iter.Seq2[engine.Entry, error] {
	return func(yield func(engine.Entry, error) bool) {
		fail := func(err error) {
			yield(engine.Entry{}, fmt.Errorf("log of %s in %s: %w", t.Resource, t.Plane, err))
		}
		table := appendTable(nil, prefixEntry, t)
		c, err := e.openCursor(appendEntryKey(nil, t, max(after, 0)+1, 0), successor(table))
		if err != nil {
			fail(err)
			return
		}
		defer c.close()
		newest := e.acknowledged()
		// As in Scan: the cursor sees what there was before the floor rose.
		if after < e.floor(t) {
			fail(engine.ErrCompacted)
			return
		}
		var entry engine.Entry
		read := func(k, v []byte) error {
			rev, _, err := decodeEntryKey(k[len(table):])
			if err != nil {
				return err
			}
			if entry, err = decodeEntry(v); err != nil {
				return fmt.Errorf("entry at %d: %w", rev, err)
			}
			entry.Rev = rev
			return nil
		}
		for ok := c.step(first, read); ok && entry.Rev <= newest; ok = c.step(next, read) {
			if err := ctx.Err(); err != nil {
				fail(err)
				return
			}
			if !yield(entry, nil) {
				return
			}
		}
		if err := c.failure(); err != nil {
			fail(err)
		}
	}
}
