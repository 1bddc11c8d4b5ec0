package rest

import (
	"context"
	"iter"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/store"
)

// Objects are the objects of a plane, as admission
// reads them: as new as the last acknowledged write, decoded once for each of
// their revisions, shared.
type Objects struct {
	Store *store.Store
	// On is the plane; "" means store.Main.
	On    string
	Kinds func() *kinds.List

	codecs codecs
	mu     sync.Mutex // guards read
	read   map[readKey]readObject
}

// maxRead bounds how many objects are kept decoded; all are dropped when there
// are more.
const maxRead = 4096

type readKey struct {
	plane, table, key, version string
}

type readObject struct {
	rev store.Revision
	obj runtime.Object
}

// Plane implements view.Objects.
func (o *Objects) Plane(context.Context) string {
	if o.On == "" {
		return store.Main
	}
	return o.On
}

// Revision implements view.Objects.
func (o *Objects) Revision(ctx context.Context, resource schema.GroupResource) uint64 {
	sn, err := o.Store.Snapshot(o.Plane(ctx))
	if err != nil {
		return 0 // a plane that is gone has nothing that could change
	}
	table := resource.String()
	if rev := sn.LastChange(table); rev > 0 || sn.Len(table) == 0 {
		return uint64(rev)
	}
	return 1 // there were some when the store was opened
}

// Get implements view.Objects.
func (o *Objects) Get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (runtime.Object, error) {
	missing := apierrors.NewNotFound(resource.GroupResource(), name)
	r := o.Kinds().Find(resource.Group, resource.Version, resource.Resource)
	if r == nil || r.Create == nil {
		return nil, missing
	}
	plane := o.Plane(ctx)
	sn, err := o.Store.Snapshot(plane)
	if err != nil {
		return nil, err
	}
	have, err := sn.Get(ctx, r.Table, r.Key(namespace, name))
	if err != nil {
		return nil, err
	}
	if have == nil {
		return nil, missing
	}
	return o.decode(plane, r, resource.Version, have)
}

// List implements view.Objects.
func (o *Objects) List(ctx context.Context, resource schema.GroupVersionResource, namespace string) iter.Seq2[runtime.Object, error] {
	return func(yield func(runtime.Object, error) bool) {
		r := o.Kinds().Find(resource.Group, resource.Version, resource.Resource)
		if r == nil || r.Create == nil {
			yield(nil, apierrors.NewNotFound(resource.GroupResource(), ""))
			return
		}
		plane := o.Plane(ctx)
		sn, err := o.Store.Snapshot(plane)
		if err != nil {
			yield(nil, err)
			return
		}
		within := store.Range{}
		if namespace != "" {
			within.Prefix = namespace + "/"
		}
		for have, err := range sn.Scan(ctx, r.Table, within) {
			var obj runtime.Object
			if err == nil {
				obj, err = o.decode(plane, r, resource.Version, have)
			}
			if !yield(obj, err) || err != nil {
				return
			}
		}
	}
}

// decode is a stored object in a version of its kind.
func (o *Objects) decode(plane string, r *kinds.Resource, version string, have *store.Object) (runtime.Object, error) {
	key := readKey{plane, r.Table, have.Key(), version}
	o.mu.Lock()
	kept, ok := o.read[key]
	o.mu.Unlock()
	if ok && kept.rev == have.Rev && r.Custom == nil {
		return kept.obj, nil
	}
	obj, err := o.decodeNew(r, version, have)
	if err != nil || r.Custom != nil { // custom kinds change what their objects are
		return obj, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.read == nil || len(o.read) >= maxRead {
		o.read = map[readKey]readObject{}
	}
	o.read[key] = readObject{have.Rev, obj}
	return obj, nil
}

func (o *Objects) decodeNew(r *kinds.Resource, version string, have *store.Object) (runtime.Object, error) {
	speaks := o.codecs.of(r)
	if r.Custom == nil && r.Storage == (schema.GroupVersion{Group: r.Group, Version: version}) {
		info, err := speaks.Media(codec.JSON)
		if err != nil {
			return nil, err
		}
		kind := r.StorageKind()
		obj, _, err := info.Serializer.Decode(have.Value(), &kind, nil)
		return obj, err
	}
	if r.Custom != nil {
		if err := r.Custom.Ready(); err != nil {
			return nil, err
		}
	}
	obj, err := speaks.DecodeStored(have.Value(), r.StorageKind())
	if err != nil {
		return nil, err
	}
	if r.Custom != nil {
		return obj, nil // decoded into the version of the request
	}
	return r.Scheme.ConvertToVersion(obj, schema.GroupVersion{Group: r.Group, Version: version})
}
