package memory

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/tidwall/btree"

	"setpoint.dev/setpoint/store/engine"
)

// Tables implements engine.Engine. A table whose objects are all gone is
// listed for its floor.
func (e *Engine) Tables(ctx context.Context) (map[engine.Table]engine.Revision, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.mu.Unlock()
	floors := make(map[engine.Table]engine.Revision, len(e.tables))
	for name, t := range e.tables {
		floors[name] = t.floor
	}
	return floors, nil
}

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, t engine.Table, from, to string, at engine.Revision) iter.Seq2[engine.Version, error] {
	return func(yield func(engine.Version, error) bool) {
		objects, err := e.snapshot(ctx, t, at)
		if err != nil {
			yield(engine.Version{}, err)
			return
		}
		if objects == nil {
			return
		}
		objects.Ascend(object{key: from}, func(o object) bool {
			if to != "" && o.key >= to {
				return false
			}
			if err := ctx.Err(); err != nil {
				yield(engine.Version{}, err)
				return false
			}
			v := o.at(at)
			return v == nil || yield(v.give(t, o.key), nil)
		})
	}
}

// snapshot returns the objects of a table, nil when there is no such table,
// and ErrCompacted when at lies below its floor.
func (e *Engine) snapshot(ctx context.Context, name engine.Table, at engine.Revision) (*btree.BTreeG[object], error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.mu.Unlock()
	t := e.tables[name]
	if t == nil {
		return nil, nil
	}
	if at != 0 && at < t.floor {
		return nil, engine.ErrCompacted
	}
	return t.objects.Copy(), nil
}

// Load implements engine.Engine. All tables are of the same moment, and all
// objects of part 0: nothing is read from a disk that others could read beside.
func (e *Engine) Load(ctx context.Context, fn func(part int, v engine.Version) error) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	tables := make(map[engine.Table]*btree.BTreeG[object], len(e.tables))
	for name, t := range e.tables {
		tables[name] = t.objects.Copy()
	}
	e.mu.Unlock()

	names := slices.SortedFunc(maps.Keys(tables), func(a, b engine.Table) int {
		return cmp.Or(cmp.Compare(a.Plane, b.Plane), cmp.Compare(a.Resource, b.Resource))
	})
	for _, name := range names {
		var err error
		tables[name].Scan(func(o object) bool {
			if err = ctx.Err(); err != nil {
				return false
			}
			if v := o.at(0); v != nil {
				err = fn(0, v.lend(name, o.key))
			}
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Versions implements engine.Engine.
func (e *Engine) Versions(ctx context.Context, t engine.Table, key string) iter.Seq2[engine.Version, error] {
	return func(yield func(engine.Version, error) bool) {
		versions, err := e.versions(ctx, t, key)
		if err != nil {
			yield(engine.Version{}, err)
			return
		}
		for _, v := range versions {
			if err := ctx.Err(); err != nil {
				yield(engine.Version{}, err)
				return
			}
			if !yield(v.give(t, key), nil) {
				return
			}
		}
	}
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, t engine.Table, key string, rev engine.Revision) (engine.Version, error) {
	versions, err := e.versions(ctx, t, key)
	if err != nil {
		return engine.Version{}, err
	}
	o := object{key: key, versions: versions}
	n := o.upTo(rev)
	if n == 0 || versions[n-1].rev != rev {
		return engine.Version{}, engine.ErrCompacted
	}
	return versions[n-1].give(t, key), nil
}

// versions returns the retained versions of an object, oldest first. The slice
// is shared: it is read, not changed.
func (e *Engine) versions(ctx context.Context, name engine.Table, key string) ([]*version, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.mu.Unlock()
	t := e.tables[name]
	if t == nil {
		return nil, nil
	}
	o, _ := t.objects.Get(object{key: key})
	return o.versions, nil
}

// Log implements engine.Engine. A reader that the floor overtakes still gets
// all that the log held when it began.
func (e *Engine) Log(ctx context.Context, t engine.Table, after engine.Revision) iter.Seq2[engine.Entry, error] {
	return func(yield func(engine.Entry, error) bool) {
		log, err := e.log(ctx, t, after)
		if err != nil {
			yield(engine.Entry{}, err)
			return
		}
		for _, l := range log {
			if err := ctx.Err(); err != nil {
				yield(engine.Entry{}, err)
				return
			}
			if !yield(engine.Entry{Rev: l.rev, Time: l.time, Key: l.key, Prev: l.prev, Delete: l.delete}, nil) {
				return
			}
		}
	}
}

// log returns the entries after a revision. The slice is shared: it is read,
// not changed.
func (e *Engine) log(ctx context.Context, name engine.Table, after engine.Revision) ([]entry, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.mu.Unlock()
	t := e.tables[name]
	if t == nil {
		return nil, nil
	}
	if after < t.floor {
		return nil, engine.ErrCompacted
	}
	return t.after(after), nil
}
