package watch

import (
	"sync/atomic"

	"setpoint.dev/setpoint/store"
)

// table is what the hub keeps of a resource that is watched: the recent
// changes, and the topics that have watchers. Its topics hold no change that
// its own ring does not, so the ring's bounds are the table's.
type table struct {
	name tableName
	ring *ring
	past *past
	// end is why its watchers end; nil as long as they do not.
	end atomic.Pointer[error]

	// The fields below are guarded by Hub.mu.
	topics map[scope]*topic
	fields map[string]int // how many topics there are for a field
	counts [byField + 1]int
	idle   int // sweeps that found no watcher, in a row
}

type tableName struct{ plane, resource string }

func newTable(name tableName, floor store.Revision, cfg Config) *table {
	return &table{
		name: name, ring: newRing(floor, cfg.RingLength), past: newPast(cfg.RingSize),
		topics: map[scope]*topic{}, fields: map[string]int{},
	}
}

// joinLocked adds a watcher to a topic. A new topic knows nothing up to floor.
func (t *table) joinLocked(s scope, floor store.Revision, limit int) (*topic, *bell) {
	tp := t.topics[s]
	if tp == nil {
		tp = &topic{scope: s, ring: t.ring}
		if s.kind != whole {
			tp.ring = newRing(floor, limit)
		}
		t.topics[s] = tp
		t.counts[s.kind]++
		if s.kind == byField {
			t.fields[s.field]++
		}
	}
	t.idle = 0
	return tp, tp.joinLocked()
}

// leaveLocked takes a watcher away again.
func (t *table) leaveLocked(tp *topic, b *bell) {
	if tp.leaveLocked(b); tp.watchers > 0 {
		return
	}
	delete(t.topics, tp.scope)
	t.counts[tp.scope.kind]--
	if s := tp.scope; s.kind == byField {
		if t.fields[s.field]--; t.fields[s.field] == 0 {
			delete(t.fields, s.field)
		}
	}
}

// putLocked makes room for a change and adds it to the rings it belongs to.
// It appends the topics to dirty that are not there yet.
func (t *table) putLocked(c *store.Change, maxSize int, dirty []*topic) []*topic {
	size := cost(c)
	for t.ring.len() > 0 && (t.ring.full() || t.ring.size+size > maxSize) {
		gone := t.ring.evict()
		t.eachTopicLocked(gone, func(tp *topic) {
			for o := tp.ring.oldest(); tp.ring != t.ring && o != nil && o.Rev <= gone.Rev; o = tp.ring.oldest() {
				tp.ring.evict()
			}
		})
	}
	t.ring.put(c)
	t.eachTopicLocked(c, func(tp *topic) {
		if tp.ring != t.ring {
			if tp.ring.full() {
				tp.ring.evict()
			}
			tp.ring.put(c)
		}
		if !tp.dirty {
			tp.dirty = true
			dirty = append(dirty, tp)
		}
	})
	return dirty
}

// eachTopicLocked calls fn once with every topic that a change touches. What
// it costs depends on how many kinds of topics there are, not on how many
// topics.
func (t *table) eachTopicLocked(c *store.Change, fn func(*topic)) {
	find := func(s scope) {
		if tp := t.topics[s]; tp != nil {
			fn(tp)
		}
	}
	if t.counts[whole] > 0 {
		find(scope{})
	}
	if t.counts[byNamespace] > 0 {
		if ns := namespace(c.Key()); ns != "" {
			find(scope{kind: byNamespace, text: ns})
		}
	}
	if t.counts[byKey] > 0 {
		find(scope{kind: byKey, text: c.Key()})
	}
	for field := range t.fields {
		after, has := c.New.Field(field)
		if has {
			find(scope{byField, field, after})
		}
		if c.Old == nil {
			continue
		}
		if before, had := c.Old.Field(field); had && (!has || before != after) {
			find(scope{byField, field, before})
		}
	}
}

// failLocked ends every watcher of the table.
func (t *table) failLocked(err error) {
	t.end.Store(&err)
	for _, tp := range t.topics {
		for _, b := range tp.bells {
			b.ring()
		}
	}
}
