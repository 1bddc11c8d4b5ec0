package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/crd"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/server/route"
	"setpoint.dev/setpoint/store"
)

// inside is a request of the control plane itself, to its plane.
func (h *Handler) inside(ctx context.Context, r *kinds.Resource, verb, namespace, name, subresource string) (*call, error) {
	version := r.Versions[0]
	info := &route.Request{Plane: h.Plane, RequestInfo: &request.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIPrefix: "apis", APIGroup: r.Group, APIVersion: version,
		Namespace: namespace, Resource: r.Name, Subresource: subresource, Name: name,
	}}
	self := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	ctx = request.WithUser(request.WithNamespace(request.WithRequestInfo(ctx, info.RequestInfo), namespace), self)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "setpoint")
	c := &call{Handler: h, ctx: ctx, r: req, info: info, resource: r, kind: r.GroupVersionKind(version), user: self}
	if subresource != "" {
		if c.sub = r.Subresources[subresource]; c.sub == nil {
			return nil, fmt.Errorf("%s has no subresource %s", r.GroupResource(), subresource)
		}
	}
	return c, nil
}

// Amend changes a stored object, of the internal type, as an update of it or of
// one of its subresources does.
func (h *Handler) Amend(ctx context.Context, r *kinds.Resource, subresource, namespace, name string, amend func(runtime.Object) error) error {
	c, err := h.inside(ctx, r, "update", namespace, name, subresource)
	if err != nil {
		return err
	}
	strategy := r.Update
	if c.sub != nil {
		strategy = c.sub.Update
	}
	owned, err := c.fieldManager(strategy)
	if err != nil {
		return err
	}
	manager := c.manager("")
	_, _, err = c.change(change{
		strategy: strategy, retry: true, manager: manager, options: &metav1.UpdateOptions{},
		make: func(old runtime.Object) (runtime.Object, error) {
			obj := old.DeepCopyObject()
			if err := amend(obj); err != nil {
				return nil, err
			}
			return owned.Update(old, obj, manager), nil
		},
	})
	return err
}

// Provision makes a namespace, on the plane that the context's request is for.
func (h *Handler) Provision(ctx context.Context, name string) error {
	r := h.Kinds().Find("", "v1", "namespaces")
	c, err := h.inside(ctx, r, "create", name, "", "")
	if err != nil {
		return err
	}
	if what := route.From(ctx); what != nil {
		c.info.Plane = what.Plane
	}
	owned, err := c.fieldManager(r.Update)
	if err != nil {
		return err
	}
	live, err := r.Scheme.New(c.kind)
	if err != nil {
		return err
	}
	manager := c.manager("")
	obj := owned.Update(live, &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, manager)
	_, err = c.insert(obj, &metav1.CreateOptions{}, manager)
	return err
}

// DeleteAll begins the deletion of every object of a kind, and returns how many
// are still there.
func (h *Handler) DeleteAll(ctx context.Context, r *kinds.Resource) (left int, err error) {
	sn, err := h.Store.Snapshot(h.Plane)
	if err != nil {
		return 0, err
	}
	for o, err := range sn.Scan(ctx, r.Table, store.Range{}) {
		if err != nil {
			return 0, err
		}
		namespace, name := r.SplitKey(o.Key())
		c, err := h.inside(ctx, r, "delete", namespace, name, "")
		if err != nil {
			return 0, err
		}
		gone, _, err := c.deleteObject(&metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, err
		}
		if err == nil && !gone {
			left++
		}
	}
	return left, nil
}

// Add stores an object of an external type, unless there is one of its name.
func (h *Handler) Add(ctx context.Context, external runtime.Object) error {
	op, err := h.creation(h.Plane, external, serverManager)
	if err != nil {
		return err
	}
	return h.commitOwn(ctx, "create", op)
}

// Drop removes an object that Stored has returned, unless it has changed since.
func (h *Handler) Drop(ctx context.Context, stored runtime.Object) error {
	c, err := h.about(h.Plane, stored)
	if err != nil {
		return err
	}
	m, err := meta.Accessor(stored)
	if err != nil {
		return err
	}
	rev, err := strconv.ParseInt(m.GetResourceVersion(), 10, 64)
	if err != nil {
		return err
	}
	return h.commitOwn(ctx, "delete", store.Op{
		Plane: h.Plane, Resource: c.resource.Table, Key: c.resource.Key(m.GetNamespace(), m.GetName()),
		If: store.At(store.Revision(rev)), Delete: true, RevAt: -1,
	})
}

// commitOwn commits what the control plane does by itself. It is no error that
// somebody else was faster.
func (h *Handler) commitOwn(ctx context.Context, verb string, op store.Op) error {
	_, err := h.Store.Commit(ctx, store.Provenance{User: user.APIServerUser, Verb: verb, FieldManager: serverManager}, op)
	if isConflict(err) {
		return nil
	}
	return err
}

// Definitions are the stored CustomResourceDefinitions of a plane, now or, with a
// revision that is not 0, as they were then.
func (l Lookup) Definitions(at store.Revision) crd.Source {
	if l.Plane == "" {
		l.Plane = store.Main
	}
	return definitions{l, at}
}

type definitions struct {
	Lookup
	at store.Revision
}

func (d definitions) snapshot() (*store.Snapshot, error) {
	if d.at != 0 {
		return d.Store.SnapshotAt(d.Plane, d.at)
	}
	return d.Store.Snapshot(d.Plane)
}

// Revision implements crd.Source.
func (d definitions) Revision() uint64 {
	if d.at != 0 {
		return uint64(d.at)
	}
	sn, err := d.snapshot()
	if err != nil {
		return 0 // a plane that is gone has none
	}
	if rev := sn.LastChange(kinds.Definitions); rev > 0 || sn.Len(kinds.Definitions) == 0 {
		return uint64(rev)
	}
	return 1 // there were some when the store was opened
}

// Since implements crd.Source. A mark is a revision of the store.
func (d definitions) Since(ctx context.Context, mark uint64) (changed []crd.Stored, all bool, next uint64, err error) {
	sn, err := d.snapshot()
	if err != nil {
		return nil, false, 0, err
	}
	next = uint64(sn.Rev())
	if mark > 0 {
		changed, err = d.changed(ctx, sn, store.Revision(mark))
		if !errors.Is(err, store.ErrCompacted) {
			return changed, false, next, err
		}
	}
	changed = make([]crd.Stored, 0, max(sn.Len(kinds.Definitions), 0))
	for o, err := range sn.Scan(ctx, kinds.Definitions, store.Range{}) {
		if err != nil {
			return nil, false, 0, err
		}
		changed = append(changed, storedDefinition(o))
	}
	return changed, true, next, nil
}

// changed are the definitions, as they are in a snapshot, that were written
// after a revision.
func (d definitions) changed(ctx context.Context, sn *store.Snapshot, after store.Revision) ([]crd.Stored, error) {
	var changed []crd.Stored
	seen := map[string]bool{}
	for c, err := range d.Store.Changes(ctx, d.Plane, kinds.Definitions, after) {
		if err != nil {
			return nil, err
		}
		if seen[c.Key()] {
			continue
		}
		seen[c.Key()] = true
		o, err := sn.Get(ctx, kinds.Definitions, c.Key())
		if err != nil {
			return nil, err
		}
		if o == nil {
			changed = append(changed, crd.Stored{Name: c.Key()})
		} else {
			changed = append(changed, storedDefinition(o))
		}
	}
	return changed, nil
}

func storedDefinition(o *store.Object) crd.Stored {
	return crd.Stored{Name: o.Key(), Revision: uint64(o.Rev), Value: o.Value()}
}

// Wait implements crd.Source.
func (d definitions) Wait(ctx context.Context, revision uint64) error {
	feed, _ := d.Store.Feed() // before the look, so that nothing is between them
	for d.Revision() == revision {
		if _, err := feed.Next(ctx); err != nil {
			return errors.Join(err, ctx.Err())
		}
	}
	return nil
}
