package rest

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/store"
)

// Observe tells of the objects of some tables in plane main, until ctx ends:
// first of those that are there, with a nil old, then of every change in
// order, with a nil obj for a deletion. Objects are of the version that they
// are stored in and are made for this call. Those that want does not want,
// which looks at the stored form, are left out on either side of a change.
func (h *Handler) Observe(ctx context.Context, tables []string, want func(table string, o *store.Object) bool, observe func(old, obj runtime.Object)) error {
	feed, _ := h.Store.Feed() // before the snapshot, so that nothing is between them
	sn, err := h.Store.Snapshot(h.Plane)
	if err != nil {
		return err
	}
	o := observer{h: h, want: want, tables: map[string]*kinds.Resource{}}
	for _, r := range h.Kinds().All() {
		if r.Create != nil && o.tables[r.Table] == nil {
			o.tables[r.Table] = r
		}
	}
	wanted := map[string]bool{}
	for _, table := range tables {
		wanted[table] = o.tables[table] != nil
		if !wanted[table] {
			continue
		}
		for have, err := range sn.Scan(ctx, table, store.Range{}) {
			if err != nil {
				return err
			}
			if obj := o.decode(table, have); obj != nil {
				observe(nil, obj)
			}
		}
	}
	for {
		batch, err := feed.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, c := range batch.Changes {
			if c.Plane != h.Plane || !wanted[c.Resource] || c.Rev <= sn.Rev() {
				continue
			}
			old, obj := o.decode(c.Resource, c.Old), runtime.Object(nil)
			if !c.Deleted {
				obj = o.decode(c.Resource, c.New)
			}
			if old != nil || obj != nil {
				observe(old, obj)
			}
		}
	}
}

// observer decodes what Observe tells.
type observer struct {
	h      *Handler
	want   func(table string, o *store.Object) bool
	tables map[string]*kinds.Resource
}

// decode is a stored object in the version that it is stored in; nil when
// there is none, or it is not wanted. One that cannot be read tells nothing.
func (o *observer) decode(table string, have *store.Object) runtime.Object {
	if have == nil || !o.want(table, have) {
		return nil
	}
	r := o.tables[table]
	speaks := o.h.codecs.of(r)
	info, err := speaks.Media(codec.JSON)
	if err != nil {
		return nil
	}
	kind := r.StorageKind()
	obj, _, err := info.Serializer.Decode(have.Value(), &kind, nil)
	if err != nil {
		return nil
	}
	return obj
}
