package enginetest

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"

	"setpoint.dev/setpoint/store/engine"
)

// model is an engine one can check by reading it: it forgets nothing but
// dropped planes, and every answer is worked out from all that was committed.
type model struct {
	last     engine.Revision                   // of the newest transaction
	reserved engine.Revision                   // the highest reserve
	tables   map[engine.Table][]engine.Version // all, in the order of commits
	floors   map[engine.Table]engine.Revision  // 0 where there is none
}

func newModel() *model {
	return &model{tables: map[engine.Table][]engine.Version{}, floors: map[engine.Table]engine.Revision{}}
}

func (m *model) current() engine.Revision {
	return max(m.last, m.reserved)
}

// commit applies a transaction. It copies the bytes, so that the model is
// right even when the engine spoils what it was given.
func (m *model) commit(txn engine.Txn) {
	m.last = txn.Rev
	for _, c := range txn.Changes {
		t := engine.Table{Plane: c.Plane, Resource: c.Resource}
		m.tables[t] = append(m.tables[t], clone(engine.Version{
			Change: c, Rev: txn.Rev, Time: txn.Time, Provenance: txn.Provenance,
		}))
	}
}

func clone(v engine.Version) engine.Version {
	v.Key = strings.Clone(v.Key)
	v.Value = bytes.Clone(v.Value)
	v.Index = bytes.Clone(v.Index)
	v.Provenance = bytes.Clone(v.Provenance)
	return v
}

func (m *model) reserve(rev engine.Revision) {
	m.reserved = max(m.reserved, rev)
}

// compact raises the floor, not beyond what was handed out. What a compaction
// removes is left out when it is asked for.
func (m *model) compact(t engine.Table, upTo engine.Revision) {
	m.floors[t] = max(m.floors[t], min(upTo, m.current()))
}

func (m *model) drop(plane string) {
	for t := range m.tables {
		if t.Plane == plane {
			delete(m.tables, t)
			delete(m.floors, t)
		}
	}
}

// listed is every table that was written to, with its floor. One that was
// compacted until nothing was left still has its floor.
func (m *model) listed() map[engine.Table]engine.Revision {
	tables := map[engine.Table]engine.Revision{}
	for t := range m.tables {
		tables[t] = m.floors[t]
	}
	return tables
}

// keys lists the keys that a table ever had, in order.
func (m *model) keys(t engine.Table) []string {
	keys := map[string]bool{}
	for _, v := range m.tables[t] {
		keys[v.Key] = true
	}
	return slices.Sorted(maps.Keys(keys))
}

func (m *model) scan(t engine.Table, from, to string, at engine.Revision) ([]engine.Version, error) {
	if at == 0 {
		at = m.current()
	} else if at < m.floors[t] {
		return nil, engine.ErrCompacted
	}
	state := map[string]engine.Version{}
	for _, v := range m.tables[t] {
		if v.Rev > at || v.Key < from || to != "" && v.Key >= to {
			continue
		}
		if v.Delete {
			delete(state, v.Key)
		} else {
			state[v.Key] = v
		}
	}
	var objects []engine.Version
	for _, key := range slices.Sorted(maps.Keys(state)) {
		objects = append(objects, state[key])
	}
	return objects, nil
}

// load is scan over all tables in order.
func (m *model) load() []engine.Version {
	tables := slices.SortedFunc(maps.Keys(m.tables), func(a, b engine.Table) int {
		return cmp.Or(cmp.Compare(a.Plane, b.Plane), cmp.Compare(a.Resource, b.Resource))
	})
	var objects []engine.Version
	for _, t := range tables {
		of, _ := m.scan(t, "", "", 0) // now is never compacted
		objects = append(objects, of...)
	}
	return objects
}

// retained are the versions of an object that a read from the floor on can
// see: those above the floor, and the object's state at the floor.
func (m *model) retained(t engine.Table, key string) []engine.Version {
	var versions []engine.Version
	for _, v := range m.tables[t] {
		if v.Key != key {
			continue
		}
		if v.Rev <= m.floors[t] {
			versions = nil // replaced before or at the floor
		}
		if v.Rev > m.floors[t] || !v.Delete {
			versions = append(versions, v)
		}
	}
	return versions
}

func (m *model) get(t engine.Table, key string, rev engine.Revision) (engine.Version, error) {
	for _, v := range m.retained(t, key) {
		if v.Rev == rev {
			return v, nil
		}
	}
	return engine.Version{}, engine.ErrCompacted
}

func (m *model) log(t engine.Table, after engine.Revision) ([]engine.Entry, error) {
	if after < m.floors[t] {
		return nil, engine.ErrCompacted
	}
	var log []engine.Entry
	for _, v := range m.tables[t] {
		if v.Rev > after {
			log = append(log, engine.Entry{Rev: v.Rev, Time: v.Time, Key: v.Key, Prev: v.Prev, Delete: v.Delete})
		}
	}
	return log, nil
}

// live returns the newest version of an object, unless it is deleted.
func (m *model) live(t engine.Table, key string) (engine.Version, bool) {
	for _, v := range slices.Backward(m.tables[t]) {
		if v.Key == key {
			return v, !v.Delete
		}
	}
	return engine.Version{}, false
}
