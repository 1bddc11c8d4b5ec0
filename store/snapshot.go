package store

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"setpoint.dev/setpoint/store/engine"
)

// Snapshot is a plane at a revision. It never changes, may be held for as long
// as one likes, and is safe for use by several goroutines.
//
// A snapshot of now is read from memory and its errors are always nil. One of
// the past is read from disk, and fails with ErrCompacted once retention has
// caught up with it.
type Snapshot struct {
	store *Store
	rev   Revision
	plane *plane
	// now is the revision of plane: rev, or later for a snapshot of the past.
	now Revision
}

// Range says which objects to read, in key order. The zero value means all.
type Range struct {
	// Prefix keeps keys that begin with it.
	Prefix string
	// After keeps keys behind it: the last key of the page before.
	After string
	// Field and Value keep objects whose declared field has the value. An
	// empty Field keeps all.
	Field string
	Value string
	// Owner keeps objects with this owner's UID. Field goes first if both are
	// given.
	Owner string
}

// Snapshot returns a plane as it is now.
func (s *Store) Snapshot(plane string) (*Snapshot, error) {
	v := s.current.Load()
	p := v.plane(plane)
	if p == nil {
		return nil, fmt.Errorf("%w: %q", ErrNoPlane, plane)
	}
	return &Snapshot{store: s, rev: v.rev, plane: p, now: v.rev}, nil
}

// SnapshotAt returns a plane as it was at a revision, from 1 on.
func (s *Store) SnapshotAt(plane string, at Revision) (*Snapshot, error) {
	now, err := s.Snapshot(plane)
	if err != nil {
		return nil, err
	}
	switch {
	case at == now.rev:
		return now, nil
	case at > now.rev:
		return nil, fmt.Errorf("%w: %d is asked for, %d is the newest", ErrFuture, at, now.rev)
	case at < 1:
		return nil, fmt.Errorf("%w: revision %d", ErrInvalid, at)
	}
	sn := &Snapshot{store: s, rev: at, plane: now.plane, now: now.rev}
	for o := sn.plane.origin; o != nil && at <= o.rev; o = sn.plane.origin {
		sn.plane, sn.now = o.parent, o.rev
	}
	return sn, nil
}

// Rev is the snapshot's revision.
func (sn *Snapshot) Rev() Revision { return sn.rev }

func (sn *Snapshot) past() bool { return sn.rev < sn.now }

// Get returns the object under a key, nil when there is none.
func (sn *Snapshot) Get(ctx context.Context, resource, key string) (*Object, error) {
	if !sn.past() {
		return sn.plane.table(resource).get(key), nil
	}
	for o, err := range sn.Scan(ctx, resource, Range{Prefix: key}) {
		if err != nil || o.Key() == key {
			return o, err
		}
		break
	}
	return nil, nil //nolint:nilnil // nothing there is an answer
}

// Len is how many objects of a resource a snapshot of now holds. A snapshot of
// the past would have to read them all, and returns -1.
func (sn *Snapshot) Len(resource string) int {
	if sn.past() {
		return -1
	}
	t := sn.plane.table(resource)
	if t == nil {
		return 0
	}
	return t.objects.Len()
}

// Count is how many objects of a resource lie in the range, and whether that is
// known without reading them: it is in a snapshot of now, for a range that has
// neither field nor owner.
func (sn *Snapshot) Count(resource string, r Range) (int, bool) {
	if sn.past() || r.term() != "" {
		return 0, false
	}
	t := sn.plane.table(resource)
	if t == nil {
		return 0, true
	}
	return t.count(r), true
}

// CountMarked is how many objects of a resource are marked, and whether that is
// known without reading them: it is in a snapshot of now.
func (sn *Snapshot) CountMarked(resource string) (int, bool) {
	if sn.past() {
		return 0, false
	}
	t := sn.plane.table(resource)
	if t == nil {
		return 0, true
	}
	return t.marked, true
}

// LastChange is the revision at which a resource last changed, 0 when it has
// not since the store was opened. It tells whether something made from the
// resource is still good. A snapshot of the past does not know, and returns
// its own revision.
func (sn *Snapshot) LastChange(resource string) Revision {
	if sn.past() {
		return sn.rev
	}
	if t := sn.plane.table(resource); t != nil {
		return t.rev
	}
	return 0
}

// Scan yields the objects of a resource that lie in the range, in key order,
// and at most one error, as its last element.
func (sn *Snapshot) Scan(ctx context.Context, resource string, r Range) iter.Seq2[*Object, error] {
	switch {
	case !sn.past():
		return scanTable(sn.plane.table(resource), r)
	case sn.plane.origin == nil:
		return sn.scanEngine(ctx, resource, r)
	default:
		return func(yield func(*Object, error) bool) {
			t, err := sn.rewind(ctx, resource)
			if err != nil {
				yield(nil, err)
				return
			}
			scanTable(t, r)(yield)
		}
	}
}

func scanTable(t *table, r Range) iter.Seq2[*Object, error] {
	return func(yield func(*Object, error) bool) {
		if t == nil {
			return
		}
		term := r.term()
		if term == "" {
			t.ascend(r, yield)
			return
		}
		t.byTerm().Ascend(termPivot(term, r.from()), func(e entry) bool {
			return e.text() == term && strings.HasPrefix(e.object.Key(), r.Prefix) && yield(e.object, nil)
		})
	}
}

// countFrom is how many objects of a range are looked at before its end is searched
// for: a search costs about as much as looking at that many.
const countFrom = 64

// ascend yields the objects in a range that has no term. It does not look at each
// of a long range: most are not in the processor's caches.
func (t *table) ascend(r Range, yield func(*Object, error) bool) {
	seen, end := 0, -1
	t.objects.Ascend(pivot(r.from()), func(o *Object) bool {
		if seen == countFrom {
			end = t.count(r)
		}
		if seen == end || end < 0 && !strings.HasPrefix(o.Key(), r.Prefix) {
			return false
		}
		seen++
		return yield(o, nil)
	})
}

// from is the first key that may lie in the range.
func (r Range) from() string {
	if r.After != "" && r.After >= r.Prefix {
		return r.After + "\x00"
	}
	return r.Prefix
}

// to is the first key behind the range, "" when there is none.
func (r Range) to() string {
	for i := len(r.Prefix) - 1; i >= 0; i-- {
		if c := r.Prefix[i]; c < 0xff {
			return r.Prefix[:i] + string([]byte{c + 1})
		}
	}
	return ""
}

// term is the index term that objects in the range have, "" for any.
func (r Range) term() string {
	switch {
	case r.Field != "":
		return fieldKey(r.Field, r.Value)
	case r.Owner != "":
		return ownerKey(r.Owner)
	default:
		return ""
	}
}

// scanEngine reads the past of plane main.
func (sn *Snapshot) scanEngine(ctx context.Context, resource string, r Range) iter.Seq2[*Object, error] {
	return func(yield func(*Object, error) bool) {
		t := engine.Table{Plane: sn.plane.id, Resource: resource}
		term := r.term()
		for v, err := range sn.store.engine.Scan(ctx, t, r.from(), r.to(), sn.rev) {
			var o *Object
			if err == nil {
				o, err = storedObject(v.Key, v.Rev, v.Create, v.Value, v.RevAt, v.Index)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if (term == "" || o.hasTerm(term)) && !yield(o, nil) {
				return
			}
		}
	}
}

// rewind makes a table of a fork as it was at the snapshot's revision, by
// undoing what the fork has logged since.
func (sn *Snapshot) rewind(ctx context.Context, resource string) (*table, error) {
	var since []*Change
	for c, err := range sn.store.ownChanges(ctx, sn.plane, resource, sn.rev, sn.now) {
		if err != nil {
			return nil, err
		}
		since = append(since, c)
	}
	t := newTable(resource)
	if now := sn.plane.table(resource); now != nil {
		now.objects.Scan(func(o *Object) bool {
			t.put(o)
			return true
		})
	}
	for _, c := range slices.Backward(since) {
		if c.Old != nil {
			t.put(c.Old)
		} else {
			t.remove(c.New)
		}
	}
	return t, nil
}

// materialize reads a whole snapshot of the past into memory, as a plane.
func (sn *Snapshot) materialize(ctx context.Context) (*plane, error) {
	if !sn.past() {
		return sn.plane, nil
	}
	resources, err := sn.resources(ctx)
	if err != nil {
		return nil, err
	}
	p := &plane{name: sn.plane.name, id: sn.plane.id, origin: sn.plane.origin, tables: newTables()}
	for _, resource := range resources {
		t := newTable(resource)
		for o, err := range sn.Scan(ctx, resource, Range{}) {
			if err != nil {
				return nil, err
			}
			t.put(o)
		}
		p.tables.Set(t)
	}
	return p, nil
}

// resources are those that the snapshot's plane may have held.
func (sn *Snapshot) resources(ctx context.Context) ([]string, error) {
	found := map[string]bool{}
	for p := sn.plane; ; p = p.origin.parent {
		p.tables.Scan(func(t *table) bool {
			found[t.resource] = true
			return true
		})
		if p.origin == nil {
			break
		}
	}
	tables, err := sn.store.keeper(sn.plane).Tables(ctx)
	if err != nil {
		return nil, err
	}
	for t := range tables {
		if t.Plane == sn.plane.id {
			found[t.Resource] = true
		}
	}
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	return names, nil
}
