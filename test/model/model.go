// Package model is a deliberately naive store: maps, slices and a replay of
// everything that ever happened. It is slow, keeps all it was given, and is
// simple enough to be seen to be right; its test asks the same of it and of
// the real store and hub, and compares.
package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"setpoint.dev/setpoint/store"
)

// Object is an object as the model knows it.
type Object struct {
	Key    string
	Rev    store.Revision
	Create store.Revision
	Value  string // revision filled in
	Index  store.Index
}

// Change is one line of a plane's history.
type Change struct {
	Resource string
	Rev      store.Revision
	Old      *Object
	New      *Object
	Deleted  bool
	User     string
}

// Plane is a line of history.
type Plane struct {
	Name    string
	Parent  *Plane
	Forked  store.Revision
	Changes []Change // its own, in order
	state   map[string]map[string]*Object
}

// Store is the naive store.
type Store struct {
	Rev    store.Revision
	Planes map[string]*Plane
}

// New returns an empty model.
func New() *Store {
	main := &Plane{Name: store.Main, state: map[string]map[string]*Object{}}
	return &Store{Planes: map[string]*Plane{store.Main: main}}
}

// Commit carries out the operations, or returns the first that cannot be;
// assertions come before the others.
func (s *Store) Commit(user string, ops []store.Op) (conflict *store.Op, have *Object) {
	for _, asserts := range []bool{true, false} {
		for i := range ops {
			op := &ops[i]
			have := s.Planes[op.Plane].Get(op.Resource, op.Key)
			if op.Assert == asserts && !possible(op, have) {
				return op, have
			}
		}
	}
	s.Rev++
	for _, op := range ops {
		if !op.Assert {
			s.Planes[op.Plane].apply(user, s.Rev, op)
		}
	}
	return nil, nil
}

// possible says whether op may happen to have.
func possible(op *store.Op, have *Object) bool {
	switch {
	case have != nil:
		return op.If == store.Any || op.If == store.At(have.Rev)
	case op.Delete:
		return false
	case op.Assert:
		return op.If == store.Absent
	default:
		return op.If == store.Any || op.If == store.Absent
	}
}

func (p *Plane) apply(user string, rev store.Revision, op store.Op) {
	old := p.Get(op.Resource, op.Key)
	o := &Object{Key: op.Key, Rev: rev, Create: rev, Index: op.Index}
	if old != nil {
		o.Create = old.Create
	}
	value, at := string(op.Value), op.RevAt
	if op.Delete && op.Value == nil {
		value, at = old.withoutRevision()
		o.Index = old.Index
	}
	o.Value = value[:at] + fmt.Sprint(rev) + value[at:]
	p.Changes = append(p.Changes, Change{Resource: op.Resource, Rev: rev, Old: old, New: o, Deleted: op.Delete, User: user})
	if p.state[op.Resource] == nil {
		p.state[op.Resource] = map[string]*Object{}
	}
	if op.Delete {
		delete(p.state[op.Resource], op.Key)
	} else {
		p.state[op.Resource][op.Key] = o
	}
}

// withoutRevision is the value as it was given, and where the revision goes.
// Values of the model's users begin with the revision's field.
func (o *Object) withoutRevision() (string, int) {
	head, tail, _ := strings.Cut(o.Value, fmt.Sprintf("%q", fmt.Sprint(o.Rev)))
	return head + `""` + tail, len(head) + 1
}

// LastValue is the value of the replaced object with the change's revision.
func (c Change) LastValue() string {
	value, at := c.Old.withoutRevision()
	return value[:at] + fmt.Sprint(c.Rev) + value[at:]
}

// Get returns an object as it is now, nil when there is none.
func (p *Plane) Get(resource, key string) *Object { return p.state[resource][key] }

// Fork makes a plane with another's state as it was at a revision.
func (s *Store) Fork(name string, parent *Plane, at store.Revision) {
	f := &Plane{Name: name, Parent: parent, Forked: at, state: map[string]map[string]*Object{}}
	for _, resource := range parent.resources() {
		f.state[resource] = parent.At(resource, at)
	}
	s.Planes[name] = f
}

func (p *Plane) resources() []string {
	found := map[string]bool{}
	for ; p != nil; p = p.Parent {
		for _, c := range p.Changes {
			found[c.Resource] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// Log is what happened to a resource after a revision and up to another,
// before the plane was forked included.
func (p *Plane) Log(resource string, after, upTo store.Revision) []Change {
	var log []Change
	if p.Parent != nil && after < p.Forked {
		log = p.Parent.Log(resource, after, min(upTo, p.Forked))
	}
	from, _ := slices.BinarySearchFunc(p.Changes, after+1, func(c Change, rev store.Revision) int { return int(c.Rev - rev) })
	for _, c := range p.Changes[from:] {
		if c.Rev > upTo {
			break
		}
		if c.Resource == resource {
			log = append(log, c)
		}
	}
	return log
}

// At is a resource of the plane as it was at a revision.
func (p *Plane) At(resource string, rev store.Revision) map[string]*Object {
	state := map[string]*Object{}
	for _, c := range p.Log(resource, 0, rev) {
		if c.Deleted {
			delete(state, c.New.Key)
		} else {
			state[c.New.Key] = c.New
		}
	}
	return state
}

// Now is a resource of the plane as it is, to keep.
func (p *Plane) Now(resource string) map[string]*Object { return maps.Clone(p.state[resource]) }

// Select is what of a state lies in a range, in key order.
func Select(state map[string]*Object, r store.Range) []*Object {
	var got []*Object
	for _, key := range slices.Sorted(maps.Keys(state)) {
		o := state[key]
		if strings.HasPrefix(key, r.Prefix) && key > r.After && o.has(r) {
			got = append(got, o)
		}
	}
	return got
}

func (o *Object) has(r store.Range) bool {
	switch {
	case r.Field != "":
		v, ok := o.Index.Fields[r.Field]
		return ok && v == r.Value
	case r.Owner != "":
		return slices.Contains(o.Index.Owners, r.Owner)
	default:
		return true
	}
}

// Restart forgets the forks, as a restart of the process does.
func (s *Store) Restart(current store.Revision) {
	s.Rev = current
	maps.DeleteFunc(s.Planes, func(name string, _ *Plane) bool { return name != store.Main })
}
