package watch

// Kept says how many tables and topics the hub holds.
func (h *Hub) Kept() (tables, topics int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tables {
		tables++
		topics += len(t.topics)
	}
	return tables, topics
}

// Held says how many changes the rings of a table and of all its topics hold,
// and how many bytes the table's ring counts.
func (h *Hub) Held(plane, resource string) (table, topics, size int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tables[tableName{plane, resource}]
	if t == nil {
		return 0, 0, 0
	}
	for _, tp := range t.topics {
		if tp.ring != t.ring {
			topics += tp.ring.len()
		}
	}
	return t.ring.len(), topics, t.ring.size
}

// HoldsSnapshot says whether the watcher keeps a snapshot in memory.
func (w *Watcher) HoldsSnapshot() bool { return w.initial != nil && w.initial.held.Load() != nil }

// Waits says whether anybody waits for the watcher's bell to ring.
func (w *Watcher) Waits() bool {
	s := w.bell.next.Load()
	return s != nil && s.waiting.Load() > 0
}

// Stroke is what the watcher's bell rings next; another one each time it has
// rung.
func (w *Watcher) Stroke() any { return w.bell.next.Load() }

// Remembered is how many bytes a table's past counts.
func (h *Hub) Remembered(plane, resource string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tables[tableName{plane, resource}]
	t.past.mu.Lock()
	defer t.past.mu.Unlock()
	return t.past.size
}
