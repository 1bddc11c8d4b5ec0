package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"setpoint.dev/setpoint/store/engine"
)

// Retention says how much of the past of a resource is kept. Whatever is older
// than Age, or further back than Changes, is dropped; 0 means no such limit.
// Live objects are kept whatever their age.
type Retention struct {
	Age     time.Duration
	Changes int
}

// DefaultRetention is a week, and at most a million changes of a resource.
var DefaultRetention = Retention{Age: 7 * 24 * time.Hour, Changes: 1_000_000}

// compactor drops what retention no longer asks for. It counts what is
// committed and raises a table's floor when the log has grown a fifth beyond
// what it may keep, or its oldest change is a twentieth older than it may be;
// so disk use follows what is retained, each change is looked at once, and
// commits do not wait for it.
type compactor struct {
	store *Store

	mu     sync.Mutex // guards the fields below
	tables map[engine.Table]*logged
}

// logged is what the compactor knows of a table's log.
type logged struct {
	changes int   // in the log
	oldest  int64 // time of the first, in milliseconds
}

func newCompactor(s *Store) *compactor {
	return &compactor{store: s, tables: map[engine.Table]*logged{}}
}

// note counts committed changes.
func (c *compactor) note(changes []*Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range changes {
		c.addLocked(engine.Table{Plane: change.planeID, Resource: change.Resource}, 1, change.millis)
	}
}

func (c *compactor) addLocked(t engine.Table, changes int, oldest int64) {
	l := c.tables[t]
	if l == nil {
		l = &logged{oldest: oldest}
		c.tables[t] = l
	}
	l.changes += changes
	l.oldest = min(l.oldest, oldest)
}

// forget stops counting for a plane that is gone.
func (c *compactor) forget(planeID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.tables {
		if t.Plane == planeID {
			delete(c.tables, t)
		}
	}
}

func (c *compactor) run(ctx context.Context, opened Revision) {
	ticker := time.NewTicker(c.store.cfg.CompactEvery)
	defer ticker.Stop()
	surveyed := false
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		var err error
		if !surveyed {
			err = c.survey(ctx, opened)
			surveyed = err == nil
		}
		if err == nil {
			err = c.pass(ctx)
		}
		if err != nil && ctx.Err() == nil {
			c.store.cfg.Logger.WarnContext(ctx, "the past is not dropped as retention asks", "error", err)
		}
	}
}

// survey counts what was logged before the store was opened.
func (c *compactor) survey(ctx context.Context, opened Revision) error {
	floors, err := c.store.engine.Tables(ctx)
	if err != nil {
		return err
	}
	found := map[engine.Table]logged{}
	for t, floor := range floors {
		var l logged
		for entry, err := range c.store.engine.Log(ctx, t, floor) {
			if err != nil {
				return err
			}
			if entry.Rev > opened {
				break
			}
			if l.changes++; l.changes == 1 {
				l.oldest = entry.Time
			}
		}
		if l.changes > 0 {
			found[t] = l
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, l := range found {
		c.addLocked(t, l.changes, l.oldest)
	}
	return nil
}

// pass compacts the tables that are over their limits.
func (c *compactor) pass(ctx context.Context) error {
	type overdue struct {
		table  engine.Table
		excess int
		cutoff int64
	}
	now := time.Now()
	var due []overdue
	c.mu.Lock()
	for t, l := range c.tables {
		r := c.store.cfg.Retention(t.Resource)
		o := overdue{table: t}
		if r.Changes > 0 && l.changes > r.Changes+r.Changes/5 {
			o.excess = l.changes - r.Changes
		}
		if r.Age > 0 && l.oldest < now.Add(-r.Age-r.Age/20).UnixMilli() {
			o.cutoff = now.Add(-r.Age).UnixMilli()
		}
		if l.changes > 0 && (o.excess > 0 || o.cutoff > 0) {
			due = append(due, o)
		}
	}
	c.mu.Unlock()
	var errs []error
	for _, o := range due {
		errs = append(errs, c.compact(ctx, o.table, o.excess, o.cutoff))
	}
	return errors.Join(errs...)
}

// compact drops the first changes of a table's log: as many as excess, and all
// from before cutoff.
func (c *compactor) compact(ctx context.Context, t engine.Table, excess int, cutoff int64) error {
	e := engine.Engine(c.store.forks)
	if t.Plane == Main {
		e = c.store.engine
	}
	floors, err := e.Tables(ctx)
	if err != nil {
		return err
	}
	var upTo Revision
	dropped, oldest := 0, time.Now().UnixMilli()
	for entry, err := range e.Log(ctx, t, floors[t]) {
		if err != nil {
			return err
		}
		if dropped >= excess && entry.Time >= cutoff && entry.Rev != upTo {
			oldest = entry.Time
			break
		}
		upTo = entry.Rev
		dropped++
	}
	if upTo > 0 {
		if err := e.Compact(ctx, t, upTo); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.tables[t]; l != nil {
		l.changes -= dropped
		l.oldest = oldest
	}
	return nil
}
