package memory

import (
	"context"
	"slices"

	"setpoint.dev/setpoint/store/engine"
)

// compactBatch bounds how many changes Compact looks at before it lets others
// have the lock.
const compactBatch = 1024

// Compact implements engine.Engine. The floor stops at Current, so that
// changes to come are above it; a table that was never written to stays
// unknown.
//
// An object has more than one version at or below the floor, or a deletion
// there, only if it changed since the floor before. All such changes are at
// the head of the log, so that is where Compact looks; an entry leaves the log
// once its object is pruned, and those that an early stop left behind are the
// first that the next call meets.
func (e *Engine) Compact(ctx context.Context, t engine.Table, upTo engine.Revision) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	if found := e.tables[t]; found != nil {
		found.floor = max(found.floor, min(upTo, e.current))
	}
	e.mu.Unlock()

	for more := true; more; {
		if err := e.enter(ctx); err != nil {
			return err
		}
		// Looked up again each time: the plane may have been dropped.
		found := e.tables[t]
		more = found != nil && found.compact(compactBatch)
		e.mu.Unlock()
	}
	return nil
}

// compact prunes the objects of up to n entries at the head of the log and
// removes the entries. It says whether some at or below the floor remain.
func (t *table) compact(n int) bool {
	old := len(t.log) - len(t.after(t.floor))
	n = min(n, old)
	for _, l := range t.log[:n] {
		t.prune(l.key)
	}
	t.log = t.log[n:]
	if n < old {
		return true
	}
	if n > 0 {
		// Readers may hold the old slice, so its head cannot be cleared; a new
		// one lets go of the removed versions.
		t.log = slices.Clone(t.log)
	}
	return false
}

// Drop implements engine.Engine.
func (e *Engine) Drop(ctx context.Context, plane string) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.mu.Unlock()
	for name := range e.tables {
		if name.Plane == plane {
			delete(e.tables, name)
		}
	}
	return nil
}
