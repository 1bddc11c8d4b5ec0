package store

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"setpoint.dev/setpoint/store/engine"
)

// Changes yields what happened to a resource of a plane after a revision and
// up to what is current at the call, in revision order, none missing. Its last
// element may be an error: ErrCompacted when the log does not reach back to
// the revision (any more), ErrFuture when there is no such revision yet.
//
// It reads from disk; the watch hub answers for the recent past from memory.
func (s *Store) Changes(ctx context.Context, plane, resource string, after Revision) iter.Seq2[*Change, error] {
	return func(yield func(*Change, error) bool) {
		v := s.current.Load()
		p := v.plane(plane)
		switch {
		case p == nil:
			yield(nil, fmt.Errorf("%w: %q", ErrNoPlane, plane))
			return
		case after > v.rev:
			yield(nil, fmt.Errorf("%w: %d is asked for, %d is the newest", ErrFuture, after, v.rev))
			return
		}
		s.changes(ctx, p, resource, after, v.rev)(yield)
	}
}

// changes reads the log of a plane between two revisions, beginning with its
// parent's where it was forked in between.
func (s *Store) changes(ctx context.Context, p *plane, resource string, after, upTo Revision) iter.Seq2[*Change, error] {
	return func(yield func(*Change, error) bool) {
		if p.origin != nil && after < p.origin.rev {
			for c, err := range s.changes(ctx, p.origin.parent, resource, after, min(upTo, p.origin.rev)) {
				if err == nil {
					c.Plane = p.name
				}
				if !yield(c, err) || err != nil {
					return
				}
			}
			after = p.origin.rev
		}
		if after < upTo {
			s.ownChanges(ctx, p, resource, after, upTo)(yield)
		}
	}
}

// ownChanges reads what the plane itself has logged.
func (s *Store) ownChanges(ctx context.Context, p *plane, resource string, after, upTo Revision) iter.Seq2[*Change, error] {
	return func(yield func(*Change, error) bool) {
		t := engine.Table{Plane: p.id, Resource: resource}
		for entry, err := range s.keeper(p).Log(ctx, t, after) {
			if err == nil && entry.Rev > upTo {
				return
			}
			var c *Change
			if err == nil {
				c, err = s.readChange(ctx, p, t, entry)
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
}

// readChange fills an entry of the log with the versions before and after.
func (s *Store) readChange(ctx context.Context, p *plane, t engine.Table, entry engine.Entry) (*Change, error) {
	e := s.keeper(p)
	v, err := e.Get(ctx, t, entry.Key, entry.Rev)
	if err != nil {
		return nil, err
	}
	var old *Object
	switch {
	case entry.Prev == 0:
	case p.origin != nil && entry.Prev <= p.origin.rev:
		old = p.origin.parent.table(t.Resource).get(entry.Key)
	default:
		prev, err := e.Get(ctx, t, entry.Key, entry.Prev)
		if err != nil {
			return nil, err
		}
		if old, err = storedObject(prev.Key, prev.Rev, prev.Create, prev.Value, prev.RevAt, prev.Index); err != nil {
			return nil, err
		}
	}
	c, err := storedChange(v, old)
	if err != nil {
		return nil, err
	}
	c.Plane, c.planeID = p.name, p.id
	return c, nil
}

// storedChange is a change read back from an engine, given the version it
// replaced; old may be nil although there was one, unless the change is a
// deletion kept without its last state.
func storedChange(v engine.Version, old *Object) (*Change, error) {
	c := &Change{
		Plane: v.Plane, planeID: v.Plane, Resource: v.Resource, Rev: v.Rev, Prev: v.Prev, Old: old, Deleted: v.Delete,
		millis: v.Time, provenance: v.Provenance,
	}
	if v.Delete && len(v.Value) == 0 {
		if old == nil {
			return nil, fmt.Errorf("%w: state of %s %q before its deletion at revision %d", ErrCompacted, v.Resource, v.Key, v.Rev)
		}
		c.New = deletedObject(old, v.Rev)
		return c, nil
	}
	var err error
	c.New, err = storedObject(v.Key, v.Rev, v.Create, v.Value, v.RevAt, v.Index)
	return c, err
}

// History yields the retained changes of one object, oldest first. The version
// that is live is always among them however old it is, save in a fork whose
// parent has replaced it since and compacted it. The first change may lack Old.
func (s *Store) History(ctx context.Context, plane, resource, key string) iter.Seq2[*Change, error] {
	return func(yield func(*Change, error) bool) {
		v := s.current.Load()
		p := v.plane(plane)
		if p == nil {
			yield(nil, fmt.Errorf("%w: %q", ErrNoPlane, plane))
			return
		}
		s.history(ctx, p, resource, key, v.rev)(yield)
	}
}

func (s *Store) history(ctx context.Context, p *plane, resource, key string, upTo Revision) iter.Seq2[*Change, error] {
	return func(yield func(*Change, error) bool) {
		var own []engine.Version
		for v, err := range s.keeper(p).Versions(ctx, engine.Table{Plane: p.id, Resource: resource}, key) {
			if err != nil {
				yield(nil, err)
				return
			}
			if v.Rev > upTo {
				break
			}
			own = append(own, v)
		}
		var old *Object // the version before, as long as the object lives
		if p.origin != nil {
			var left Revision // of the version that the fork began with
			if old = p.origin.parent.table(resource).get(key); old != nil {
				left = old.Rev
			}
			whole, err := s.isWhole(ctx, p, resource, own, left, p.table(resource).get(key) != nil)
			switch {
			case err != nil:
				yield(nil, err)
				return
			case !whole:
				old = nil // what lies between is compacted, and so is all before
			case !s.inherited(ctx, p, resource, key, upTo, yield):
				return
			}
		}
		for _, v := range own {
			c, err := storedChange(v, old)
			if err != nil {
				yield(nil, err)
				return
			}
			c.Plane, c.planeID = p.name, p.id
			if old = c.New; c.Deleted {
				old = nil
			}
			if !yield(c, nil) {
				return
			}
		}
	}
}

// isWhole says that own is all that a fork has done to an object since it
// began. The object was at revision left then, 0 for not there; live says
// whether it is there in the end.
func (s *Store) isWhole(ctx context.Context, p *plane, resource string, own []engine.Version, left Revision, live bool) (bool, error) {
	switch {
	case len(own) > 0 && own[0].Prev != left:
		return false, nil
	case len(own) > 0 && left > 0, len(own) == 0 && live:
		return true, nil
	}
	// It was not there at either end: what has come and gone in between shows
	// only in a log that reaches back.
	for _, err := range s.keeper(p).Log(ctx, engine.Table{Plane: p.id, Resource: resource}, p.origin.rev) {
		if errors.Is(err, ErrCompacted) {
			return false, nil
		}
		return err == nil, err
	}
	return true, nil
}

// inherited yields what a fork has of its parent's history; it returns false
// when that is to be the end.
func (s *Store) inherited(ctx context.Context, p *plane, resource, key string, upTo Revision, yield func(*Change, error) bool) bool {
	for c, err := range s.history(ctx, p.origin.parent, resource, key, min(upTo, p.origin.rev)) {
		if err == nil {
			c.Plane = p.name
		}
		if !yield(c, err) || err != nil {
			return false
		}
	}
	return true
}
