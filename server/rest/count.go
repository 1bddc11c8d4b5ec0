package rest

import (
	"iter"
	"time"

	"setpoint.dev/setpoint/metrics"
)

// Counts yields how many objects of each stored resource plane main holds.
func (h *Handler) Counts() iter.Seq[metrics.Count] {
	return func(yield func(metrics.Count) bool) {
		sn, err := h.Store.Snapshot(h.Plane)
		if err != nil {
			return // main is always there
		}
		seen := map[string]bool{}
		for _, r := range h.Kinds().All() {
			if r.Create == nil || seen[r.Table] {
				continue
			}
			seen[r.Table] = true
			if !yield(metrics.Count{Group: r.Storage.Group, Resource: r.Name, Objects: sn.Len(r.Table)}) {
				return
			}
		}
	}
}

// CountWaiting tells what waits for initializers.
func (h *Handler) CountWaiting() metrics.Waiting {
	w := metrics.Waiting{Creates: int(h.waiting.Load())}
	backlog := h.backlog.Load()
	if backlog == nil {
		return w
	}
	for name, b := range *backlog {
		oldest := time.Duration(0)
		if !b.Oldest.IsZero() {
			oldest = time.Since(b.Oldest)
		}
		w.Objects = append(w.Objects, metrics.Backlog{Name: name, Pending: b.Pending, Oldest: oldest})
	}
	return w
}
