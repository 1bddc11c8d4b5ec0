package crd

import (
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/api/initializers"
)

// Coerce does to an object what reading into a Go type does by itself: metadata,
// its own and that of objects in it, has the right types, fields that the
// schema does not know are taken away, and so are nulls where there can be
// none. It returns the paths of unknown fields when a client has to be told.
func (k *kind) Coerce(u *unstructured.Unstructured, from codec.Origin) (unknown []string, err error) {
	p, err := k.parts.get()
	if err != nil {
		return nil, err
	}
	kind, hasKind, err := unstructured.NestedString(u.Object, "kind")
	if err != nil {
		return nil, err
	}
	version, hasVersion, err := unstructured.NestedString(u.Object, "apiVersion")
	if err != nil {
		return nil, err
	}
	lenient, strict := from == codec.FromStore, from == codec.FromStrictClient
	put, strange, err := initializers.Lift(u)
	if err != nil && !lenient {
		return nil, err
	}
	if strict {
		for _, e := range strange {
			unknown = append(unknown, initializers.UnknownPath(e))
		}
	}
	meta, hasMeta, paths, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{
		DropMalformedFields: lenient, ReturnUnknownFieldPaths: strict,
	})
	if err != nil {
		return nil, err
	}
	unknown = append(unknown, paths...)
	if gvk := u.GroupVersionKind(); gvk.GroupKind() == k.gvk.GroupKind() {
		s := p.schemas[gvk.Version]
		if !p.full.Spec.PreserveUnknownFields {
			unknown = append(unknown, pruning.PruneWithOptions(u.Object, s, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: strict})...)
			structuraldefaulting.PruneNonNullableNullsWithoutDefaults(u.Object, s)
		}
		err, paths := objectmeta.CoerceWithOptions(nil, u.Object, s, false, objectmeta.CoerceOptions{
			DropInvalidFields: lenient, ReturnUnknownFieldPaths: strict,
		})
		if err != nil {
			return nil, err
		}
		unknown = append(unknown, paths...)
		if lenient && meta.Generation == 0 {
			meta.Generation = 1
		}
	}
	if hasKind {
		u.SetKind(kind)
	}
	if hasVersion {
		u.SetAPIVersion(version)
	}
	if hasMeta {
		err = objectmeta.SetObjectMeta(u.Object, meta)
	}
	if err == nil {
		put()
	}
	return unknown, err
}
