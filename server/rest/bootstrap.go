package rest

import (
	"context"
	"fmt"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	upstream "k8s.io/apiserver/pkg/registry/rest"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/server/route"
	"setpoint.dev/setpoint/store"
)

// serverManager owns the fields of objects that the server writes by itself.
// Compat: it is whom upstream names.
const serverManager = "kube-apiserver"

// The seal that says which edition of the default roles the stored ones were
// last reconciled with, and how many roles and bindings there were then. It is
// in a table that is no kind's:
//
//	bootstrap  roles  b82e1663 133
//
// Its revision is the one of that commit: roles of later revisions have been
// changed since, and fewer ones mean that some are gone.
const (
	sealTable = "bootstrap"
	sealKey   = "roles"
)

// Reconciled says that roles and bindings are as they were when Bootstrap last
// sealed them, with the same edition.
func (h *Handler) Reconciled(ctx context.Context, edition string) (bool, error) {
	sn, err := h.Store.Snapshot(h.Plane)
	if err != nil {
		return false, err
	}
	sealed, err := sn.Get(ctx, sealTable, sealKey)
	if err != nil || sealed == nil {
		return false, err
	}
	count, latest, err := countRoles(ctx, sn)
	return latest <= sealed.Rev && string(sealed.Value()) == seal(edition, count), err
}

func seal(edition string, count int) string { return fmt.Sprintf("%s %d", edition, count) }

// countRoles tells how many roles and bindings there are, and the latest
// revision of one.
func countRoles(ctx context.Context, sn *store.Snapshot) (count int, latest store.Revision, err error) {
	for _, resource := range []string{"roles", "rolebindings", "clusterroles", "clusterrolebindings"} {
		for o, err := range sn.Scan(ctx, resource+rbacSuffix, store.Range{}) {
			if err != nil {
				return 0, 0, err
			}
			count++
			latest = max(latest, o.Rev)
		}
	}
	return count, latest, nil
}

// Stored is the stored object of the kind, namespace and name of another, of
// the version that it is stored in; nil when there is none.
func (h *Handler) Stored(ctx context.Context, external runtime.Object) (runtime.Object, error) {
	c, err := h.about(h.Plane, external)
	if err != nil {
		return nil, err
	}
	have, err := c.have(ctx, external)
	if err != nil || have == nil {
		return nil, err
	}
	info, err := c.codec().Media(codec.JSON)
	if err != nil {
		return nil, err
	}
	kind := c.resource.StorageKind()
	obj, _, err := info.Serializer.Decode(have.Value(), &kind, nil)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return obj, nil
}

// Bootstrap stores objects, all at one revision, and seals the roles as
// reconciled with an edition. An object with a UID changes the stored one, if it
// differs; any other is new and takes the place of what is there.
func (h *Handler) Bootstrap(ctx context.Context, objects []runtime.Object, edition string) error {
	sn, err := h.Store.Snapshot(h.Plane)
	if err != nil {
		return err
	}
	count, latest, err := countRoles(ctx, sn)
	if err != nil {
		return err
	}
	var ops []store.Op
	for _, external := range objects {
		op, changes, err := h.bootstrapped(ctx, external)
		if err != nil {
			return err
		}
		if !changes {
			continue
		}
		if op.If == store.Absent && strings.HasSuffix(op.Resource, rbacSuffix) {
			count++
		}
		ops = append(ops, op)
	}
	sealed, err := sn.Get(ctx, sealTable, sealKey)
	if err != nil {
		return err
	}
	if text := seal(edition, count); sealed == nil || latest > sealed.Rev || string(sealed.Value()) != text {
		ops = append(ops, store.Op{Plane: h.Plane, Resource: sealTable, Key: sealKey, Value: []byte(text), RevAt: -1})
	}
	if len(ops) == 0 {
		return nil
	}
	_, err = h.Store.Commit(ctx, store.Provenance{User: "system:apiserver", Verb: "bootstrap", FieldManager: serverManager}, ops...)
	return err
}

// bootstrapped is the operation that stores an object, if it changes anything.
func (h *Handler) bootstrapped(ctx context.Context, external runtime.Object) (op store.Op, changes bool, err error) {
	c, err := h.about(h.Plane, external)
	if err != nil {
		return store.Op{}, false, err
	}
	have, err := c.have(ctx, external)
	if err != nil {
		return store.Op{}, false, err
	}
	obj, err := c.internal(external)
	if err != nil {
		return store.Op{}, false, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return store.Op{}, false, err
	}
	on := store.Absent
	if have != nil {
		on = store.At(have.Rev)
	}
	if have == nil || m.GetUID() == "" {
		upstream.FillObjectMetaSystemFields(m)
		op, err = c.op(obj, on)
		return op, true, err
	}
	old, err := c.stored(have)
	if err != nil || apiequality.Semantic.DeepEqual(obj, old) {
		return store.Op{}, false, err
	}
	owned, err := c.fieldManager(c.resource.Update)
	if err != nil {
		return store.Op{}, false, err
	}
	op, err = c.op(owned.Update(old, obj, serverManager), on)
	return op, true, err
}

// creation is the operation that creates an object of an external type, which
// gets its defaults; manager owns its fields.
func (h *Handler) creation(plane string, external runtime.Object, manager string) (store.Op, error) {
	c, err := h.about(plane, external)
	if err != nil {
		return store.Op{}, err
	}
	obj, err := c.internal(external)
	if err != nil {
		return store.Op{}, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return store.Op{}, err
	}
	upstream.FillObjectMetaSystemFields(m)
	owned, err := c.fieldManager(c.resource.Update)
	if err != nil {
		return store.Op{}, err
	}
	live, err := c.resource.Scheme.New(c.kind)
	if err != nil {
		return store.Op{}, err
	}
	return c.op(owned.Update(live, obj, manager), store.Absent)
}

// about is a call about an object of an external type that no client has made.
func (h *Handler) about(plane string, external runtime.Object) (*call, error) {
	for _, r := range h.Kinds().Builtin() {
		gvks, _, err := r.Scheme.ObjectKinds(external)
		if err == nil && gvks[0].Group == r.Group && gvks[0].Kind == r.Kind && r.Create != nil {
			return &call{Handler: h, info: &route.Request{RequestInfo: &request.RequestInfo{}, Plane: plane}, resource: r, kind: gvks[0]}, nil
		}
	}
	return nil, apierrors.NewBadRequest("object of an unknown kind")
}

// have is what is stored under an object's name, nil when there is nothing.
func (c *call) have(ctx context.Context, obj runtime.Object) (*store.Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	sn, err := c.snapshot()
	if err != nil {
		return nil, err
	}
	return sn.Get(ctx, c.resource.Table, c.resource.Key(m.GetNamespace(), m.GetName()))
}

// internal gives an object its defaults and converts it.
func (c *call) internal(external runtime.Object) (runtime.Object, error) {
	c.resource.Scheme.Default(external)
	return c.resource.Scheme.ConvertToVersion(external, runtime.InternalGroupVersioner)
}
