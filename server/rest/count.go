package rest

import (
	"context"
	"iter"
	"time"

	"setpoint.dev/setpoint/metrics"
	"setpoint.dev/setpoint/store"
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

// sampled is how many objects are measured to know how large all are.
const sampled = 16

// Size tells how many objects of a resource the plane holds, by the resource's
// name with its group, and about how many bytes each has; false when there are
// none.
func (h *Handler) Size(resource string) (objects, average int64, known bool) {
	sn, err := h.Store.Snapshot(h.Plane)
	if err != nil {
		return 0, 0, false // the plane is gone
	}
	n, bytes, seen := sn.Len(resource), 0, 0
	for o, err := range sn.Scan(context.Background(), resource, store.Range{}) {
		if err != nil || seen == sampled {
			break
		}
		seen++
		bytes += len(o.Value())
	}
	if seen == 0 {
		return 0, 0, false
	}
	return int64(n), int64(bytes / seen), true
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
