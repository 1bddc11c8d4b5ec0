package crd

import (
	"fmt"
	"sync"
	"sync/atomic"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/patch"
)

// kind is a custom kind in the version that a request speaks. That version is
// what the request path takes for the internal one: objects are
// *unstructured.Unstructured in it, from the moment that they are read until
// they are stored.
//
// It is the kind's Scheme, its Custom and its codec's Shape.
type kind struct {
	parts       *parts
	gvk         schema.GroupVersionKind
	listKind    string
	namespaced  bool
	fingerprint uint32
	defined     *atomic.Uint64
	made        lazyStrategies
	codec       func() *codec.Codec
	owners      func() *patch.Ownership
}

func newKind(d *definition, version string) *kind {
	names := d.head.Status.AcceptedNames
	k := &kind{
		parts: d.made, gvk: schema.GroupVersionKind{Group: d.head.Spec.Group, Version: version, Kind: names.Kind}, listKind: names.ListKind,
		namespaced: d.head.Spec.Scope == apiextensions.NamespaceScoped, fingerprint: d.fingerprint, defined: d.defined,
	}
	k.codec = sync.OnceValue(func() *codec.Codec { return codec.NewUntyped(k, k) })
	k.owners = sync.OnceValue(func() *patch.Ownership { return patch.NewUntypedOwnership(k, k.types) })
	return k
}

// Codec implements kinds.Custom.
func (k *kind) Codec() *codec.Codec { return k.codec() }

// Owners implements kinds.Custom.
func (k *kind) Owners() *patch.Ownership { return k.owners() }

// Fingerprint implements kinds.Custom.
func (k *kind) Fingerprint() uint32 { return k.fingerprint }

// Defined implements kinds.Custom.
func (k *kind) Defined() uint64 { return k.defined.Load() }

// Ready makes what the kind needs; an error says that it cannot be served.
func (k *kind) Ready() error {
	_, err := k.parts.get()
	return err
}

// types tell field ownership about the kind's fields.
func (k *kind) types() (managedfields.TypeConverter, error) {
	p, err := k.parts.get()
	if err != nil {
		return nil, err
	}
	return p.typeConverter()
}

// own is a version of the kind as objects carry it: the internal one is that
// of the request.
func (k *kind) own(gvk schema.GroupVersionKind) schema.GroupVersionKind {
	if gvk.Version == runtime.APIVersionInternal {
		gvk.Version = k.gvk.Version
	}
	return gvk
}

// New implements runtime.ObjectCreater.
func (k *kind) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk = k.own(gvk); gvk.Group == k.gvk.Group && gvk.Kind == k.listKind {
		l := &unstructured.UnstructuredList{Object: map[string]any{}}
		l.SetGroupVersionKind(gvk)
		return l, nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u, nil
}

// ObjectKinds implements runtime.ObjectTyper.
func (k *kind) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if _, ok := obj.(runtime.Unstructured); !ok {
		return nil, false, runtime.NewNotRegisteredErrForType("custom resources", nil)
	}
	gvk := obj.GetObjectKind().GroupVersionKind()
	switch {
	case gvk.Kind == "":
		return nil, false, runtime.NewMissingKindErr("object has no kind field")
	case gvk.Version == "":
		return nil, false, runtime.NewMissingVersionErr("object has no apiVersion field")
	}
	return []schema.GroupVersionKind{gvk}, false, nil
}

// Recognizes implements runtime.ObjectTyper.
func (k *kind) Recognizes(schema.GroupVersionKind) bool { return true }

// Default implements runtime.ObjectDefaulter.
func (k *kind) Default(obj runtime.Object) {
	u, ok := obj.(*unstructured.Unstructured)
	p, err := k.parts.get()
	if gvk := obj.GetObjectKind().GroupVersionKind(); ok && err == nil && gvk.GroupKind() == k.gvk.GroupKind() {
		structuraldefaulting.Default(u.Object, p.schemas[gvk.Version])
	}
}

// Convert implements runtime.ObjectConvertor.
func (k *kind) Convert(in, out, context any) error {
	p, err := k.parts.get()
	if err != nil {
		return err
	}
	return p.converter.Convert(in, out, context)
}

// ConvertToVersion implements runtime.ObjectConvertor. The internal version is
// that of the request. What a conversion returns is brought into the shape of
// the schema that it was converted to. The object may be returned as it is.
func (k *kind) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	from := in.GetObjectKind().GroupVersionKind()
	to, ok := target.KindForGroupVersionKinds([]schema.GroupVersionKind{from})
	if !ok {
		return nil, fmt.Errorf("%v is unstructured and is not suitable for converting to %q", from, target)
	}
	if to = k.own(to); to.GroupVersion() == from.GroupVersion() {
		return in, nil
	}
	p, err := k.parts.get()
	if err != nil {
		return nil, err
	}
	out, err := p.converter.ConvertToVersion(in, to.GroupVersion())
	if u, ok := out.(*unstructured.Unstructured); ok && err == nil {
		_, err = k.Coerce(u, codec.FromConversion)
	}
	return out, err
}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (k *kind) ConvertFieldLabel(gvk schema.GroupVersionKind, label, value string) (string, string, error) {
	p, err := k.parts.get()
	if err != nil {
		return "", "", err
	}
	return p.converter.ConvertFieldLabel(k.own(gvk), label, value)
}
