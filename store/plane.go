package store

import (
	"context"
	"fmt"
	"strings"
)

// PlaneInfo describes a plane.
type PlaneInfo struct {
	Name string
	// Parent and Forked say where a fork came from; a fork's past up to Forked
	// is its parent's. Main has none.
	Parent string
	Forked Revision
}

// Planes lists the planes, sorted by name.
func (s *Store) Planes() []PlaneInfo {
	var infos []PlaneInfo
	s.current.Load().planes.Scan(func(p *plane) bool {
		info := PlaneInfo{Name: p.name}
		if p.origin != nil {
			info.Parent, info.Forked = p.origin.parent.name, p.origin.rev
		}
		infos = append(infos, info)
		return true
	})
	return infos
}

// Fork makes a plane that shares the state of another, as it is now (at 0) or
// was at an earlier revision, and returns the revision it left from. From now
// it costs no more than a few pointers; from the past the state is read from
// disk first. The fork takes commits of its own, lives in memory, and ends
// with the process or with Drop.
func (s *Store) Fork(ctx context.Context, name, from string, at Revision) (Revision, error) {
	if name == "" || len(name) > maxKeyLength || strings.Contains(name, "\x00") {
		return 0, fmt.Errorf("%w: plane name %q must have 1 to %d bytes and no NUL", ErrInvalid, name, maxKeyLength)
	}
	var past *plane
	if at != 0 && at != s.Current() {
		snapshot, err := s.SnapshotAt(from, at)
		if err != nil {
			return 0, err
		}
		if past, err = snapshot.materialize(ctx); err != nil {
			return 0, fmt.Errorf("fork %q from revision %d: %w", name, at, err)
		}
	}
	var left Revision
	r := newEdit(func(d *draft, _ *Batch) error {
		if d.plane(name) != nil {
			return fmt.Errorf("%w: %q", ErrPlaneExists, name)
		}
		parent, rev := past, at
		if parent == nil {
			if parent, rev = d.plane(from), d.rev; parent == nil {
				return fmt.Errorf("%w: %q", ErrNoPlane, from)
			}
		}
		s.committer.forks++
		d.addPlane(&plane{
			name: name, id: fmt.Sprintf("%s#%d", name, s.committer.forks),
			tables: parent.tables, origin: &origin{parent: parent, rev: rev},
		})
		left = rev
		return nil
	})
	if err := s.committer.do(ctx, r); err != nil {
		return 0, err
	}
	return left, r.err
}

// Drop removes a fork. Snapshots of it stay readable; forks made from it stay,
// and so does the part of its past that is theirs.
func (s *Store) Drop(ctx context.Context, name string) error {
	if name == Main {
		return fmt.Errorf("%w: plane %s cannot be dropped", ErrInvalid, Main)
	}
	r := newEdit(func(d *draft, batch *Batch) error {
		p := d.plane(name)
		if p == nil {
			return fmt.Errorf("%w: %q", ErrNoPlane, name)
		}
		d.removePlane(p)
		batch.Dropped = append(batch.Dropped, name)
		return s.dropPast(d, p)
	})
	if err := s.committer.do(ctx, r); err != nil {
		return err
	}
	return r.err
}

// dropPast removes the history of a dropped plane and of those before it that
// were dropped earlier, where no remaining fork descends from them.
func (s *Store) dropPast(d *draft, dropped *plane) error {
	needed := map[string]bool{Main: true}
	d.planes.Scan(func(p *plane) bool {
		for ; p.origin != nil; p = p.origin.parent {
			needed[p.id] = true
		}
		return true
	})
	for p := dropped; !needed[p.id]; p = p.origin.parent {
		if err := s.forks.Drop(context.Background(), p.id); err != nil {
			return err
		}
		s.compactor.forget(p.id)
	}
	return nil
}

// addPlane adds a fork. What the draft has made of the parent so far is now
// shared, so the draft must copy it again before the next change.
func (d *draft) addPlane(p *plane) {
	d.seal(p.origin.parent.name)
	d.planes.Set(p)
	d.edited = true
}

func (d *draft) removePlane(p *plane) {
	d.seal(p.name)
	d.planes.Delete(p)
	d.edited = true
}

// seal gives up the draft's right to change what it has of a plane.
func (d *draft) seal(name string) {
	delete(d.mine, name)
	for t := range d.owned {
		if t.Plane == name {
			delete(d.owned, t)
		}
	}
}
