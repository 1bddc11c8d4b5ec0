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
	if m, ok := u.Object["metadata"].(map[string]any); ok && m != nil && plainMetadata(m) && kind != "" && version != "" {
		return k.coercePlain(p, u, m, from)
	}
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
	ours, paths, err := k.coerceFields(p, u, from)
	if err != nil {
		return nil, err
	}
	unknown = append(unknown, paths...)
	if ours && lenient && meta.Generation == 0 {
		meta.Generation = 1
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

// coercePlain is Coerce for an object whose metadata, kind and version need no
// second look.
func (k *kind) coercePlain(p *parts, u *unstructured.Unstructured, metadata map[string]any, from codec.Origin) ([]string, error) {
	kind, version := u.Object["kind"], u.Object["apiVersion"]
	delete(u.Object, "metadata") // nobody else is to look at it
	ours, unknown, err := k.coerceFields(p, u, from)
	u.Object["kind"], u.Object["apiVersion"], u.Object["metadata"] = kind, version, metadata
	if _, has := metadata["generation"]; ours && err == nil && from == codec.FromStore && !has {
		metadata["generation"] = int64(1)
	}
	return unknown, err
}

// coerceFields brings all but the metadata into the shape of the kind's schema,
// if the object is of the kind.
func (k *kind) coerceFields(p *parts, u *unstructured.Unstructured, from codec.Origin) (ours bool, unknown []string, err error) {
	gvk := u.GroupVersionKind()
	if gvk.GroupKind() != k.gvk.GroupKind() {
		return false, nil, nil
	}
	s, lenient, strict := p.schemas[gvk.Version], from == codec.FromStore, from == codec.FromStrictClient
	if !p.full.Spec.PreserveUnknownFields {
		unknown = pruning.PruneWithOptions(u.Object, s, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: strict})
		structuraldefaulting.PruneNonNullableNullsWithoutDefaults(u.Object, s)
	}
	ferr, paths := objectmeta.CoerceWithOptions(nil, u.Object, s, false, objectmeta.CoerceOptions{
		DropInvalidFields: lenient, ReturnUnknownFieldPaths: strict,
	})
	if ferr != nil {
		return true, nil, ferr
	}
	return true, append(unknown, paths...), nil
}
