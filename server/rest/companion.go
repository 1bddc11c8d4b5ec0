package rest

import (
	"context"
	"errors"
	"iter"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/store"
)

// join asks the kind what else goes into the commit that puts obj in the place
// of old. The kind may change obj.
func (c *call) join(obj, old runtime.Object, dryRun bool) ([]store.Op, error) {
	if c.resource.Join == nil {
		return nil, nil
	}
	sn, err := c.snapshot()
	if err != nil {
		return nil, err
	}
	var asked runtime.Object
	if settles := c.resource.Settles; settles != nil && obj != nil {
		if c.sub == nil {
			settles.Reset(obj, old)
		}
		asked = obj.DeepCopyObject()
	}
	companions, err := c.resource.Join(c.ctx, kinds.Write{Object: obj, Old: old, DryRun: dryRun, Stored: reader{sn}})
	if err != nil {
		return nil, err
	}
	if asked != nil {
		if err := c.ownSettled(obj, asked); err != nil {
			return nil, err
		}
	}
	if dryRun {
		return nil, nil
	}
	return c.along(c.info.Plane, companions)
}

// along are the operations of companions.
func (h *Handler) along(plane string, companions []kinds.Companion) (ops []store.Op, err error) {
	for _, k := range companions {
		op := store.Op{Plane: plane, Resource: k.Table, Key: k.Key, If: store.Absent, Value: k.Value, RevAt: -1}
		switch {
		case k.Object != nil:
			if op, err = h.creation(plane, k.Object, serverManager); err != nil {
				return nil, err
			}
		case k.Value == nil:
			op.Delete, op.If = true, store.Any
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// joins says that a write asks the kind's Join.
func (c *call) joins() bool {
	return c.sub == nil || c.resource.Settles != nil && c.sub.Name == c.resource.Settles.Subresource
}

// ownSettled makes the control plane the owner of what Join has changed of what
// a client asked for.
func (c *call) ownSettled(obj, asked runtime.Object) error {
	if apiequality.Semantic.DeepEqual(obj, asked) {
		return nil
	}
	through := c.resource.Settles.Subresource
	resets := kinds.ResetFields(c.resource.Subresources[through].Update)
	kind := c.resource.GroupVersionKind(c.resource.Versions[0])
	owned, err := c.codecs.get(c.resource.Scheme).owners.For(kind, through, fieldpath.NewExcludeFilterSetMap(resets))
	if err != nil {
		return err
	}
	m, err := meta.Accessor(owned.Update(asked, obj.DeepCopyObject(), serverManager))
	if err != nil {
		return err
	}
	to, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	to.SetManagedFields(m.GetManagedFields())
	return nil
}

// joinRemoval asks the kind what else goes into the commit that removes have.
func (c *call) joinRemoval(have *store.Object) ([]store.Op, error) {
	if c.resource.Join == nil {
		return nil, nil
	}
	old, err := c.stored(have)
	if err != nil {
		return nil, err
	}
	return c.join(nil, old, false)
}

// isCompanions says that a commit failed because of what should have happened
// along with the write, not because of the object itself.
func (c *call) isCompanions(err error) bool {
	conflict, is := errors.AsType[*store.ConflictError](err)
	return is && conflict.Resource != c.resource.Table
}

// errBusy asks a client to try again whose write was overtaken too often.
func errBusy(resource schema.GroupResource, verb string) error {
	return apierrors.NewServerTimeout(resource, verb, 1)
}

// reader shows a snapshot to kinds.
type reader struct {
	sn *store.Snapshot
}

func (r reader) Get(ctx context.Context, table, key string) ([]byte, error) {
	o, err := r.sn.Get(ctx, table, key)
	if err != nil || o == nil {
		return nil, err
	}
	return o.Value(), nil
}

func (r reader) All(ctx context.Context, table string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for o, err := range r.sn.Scan(ctx, table, store.Range{}) {
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(o.Value(), nil) {
				return
			}
		}
	}
}

func (r reader) Has(ctx context.Context, table, field, value string) (bool, error) {
	for _, err := range r.sn.Scan(ctx, table, store.Range{Field: field, Value: value}) {
		return err == nil, err
	}
	return false, nil
}
