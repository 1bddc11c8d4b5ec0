// Package memory is the engine that keeps nothing after Close.
//
// It serves `--data memory` and the planes that live only as long as the
// process. In come transactions, out come copies of their bytes; a commit is
// as durable as it will ever be when Commit returns.
//
//	Engine
//	  Table{plane, resource} -> table
//	    floor    revision
//	    log      [key, version] ...              in the order of commits
//	    objects  key -> [version, version, ...]  B-tree; oldest version first
//
// What always holds:
//
//   - A version never changes once it is in a table, and neither does the part
//     of a slice that a reader may have seen: commits append behind it,
//     compaction puts a new slice in its place. So a reader takes a copy of the
//     tree (which costs one allocation) and lets go of the lock before it
//     yields anything.
//   - Every change above the floor is in the log, and so is every change that
//     Compact has yet to look at. Compaction follows the log and never searches
//     the tree.
//
// The engine keeps the slices it is given; callers do not change them after
// Commit. What readers get are copies, but for Load.
package memory

import (
	"context"
	"errors"
	"sync"

	"setpoint.dev/setpoint/store/engine"
)

var _ engine.Engine = (*Engine)(nil)

// Engine is an engine.Engine without a disk. New makes one.
type Engine struct {
	mu      sync.Mutex // guards the fields below
	tables  map[engine.Table]*table
	current engine.Revision
	closed  bool
}

// New returns an empty engine. It holds nothing but memory: an engine that is
// no longer referred to needs no Close.
func New() *Engine {
	return &Engine{tables: map[engine.Table]*table{}}
}

// enter takes the lock, unless ctx has ended or the engine is closed.
// On nil the caller unlocks.
func (e *Engine) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return engine.ErrClosed
	}
	return nil
}

// Current implements engine.Engine. It goes on answering after Close.
func (e *Engine) Current() engine.Revision {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current
}

// Commit implements engine.Engine. When ctx has ended nothing is written.
func (e *Engine) Commit(ctx context.Context, group []engine.Txn, reserve engine.Revision) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.mu.Unlock()
	for i := range group {
		e.applyLocked(&group[i])
	}
	e.current = max(e.current, reserve)
	return nil
}

func (e *Engine) applyLocked(txn *engine.Txn) {
	at := &moment{rev: txn.Rev, time: txn.Time, provenance: txn.Provenance}
	for i := range txn.Changes {
		c := &txn.Changes[i]
		name := engine.Table{Plane: c.Plane, Resource: c.Resource}
		t := e.tables[name]
		if t == nil {
			t = newTable()
			e.tables[name] = t
		}
		t.append(c.Key, &version{
			moment: at,
			prev:   c.Prev,
			create: c.Create,
			delete: c.Delete,
			value:  c.Value,
			revAt:  c.RevAt,
			index:  c.Index,
		})
	}
	e.current = max(e.current, txn.Rev)
}

// Recover implements engine.Engine. No outcome is ever unknown here, so there
// is nothing to settle.
func (e *Engine) Recover(ctx context.Context) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	e.mu.Unlock()
	return nil
}

// Backup returns errors.ErrUnsupported: there is no disk to copy.
func (e *Engine) Backup(ctx context.Context, _ string) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	e.mu.Unlock()
	return errors.ErrUnsupported
}

// Close forgets everything. Iterations under way finish on what they hold; a
// second Close does nothing.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.tables = nil
	return nil
}
