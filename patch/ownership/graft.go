package ownership

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// graft merges what is applied into an object, with a look at those parts only
// that the manifest names. It is for one apply.
//
//	object   {metadata {name labels ...} spec {replicas template ...} status ...}
//	wants    {metadata {     labels    } spec {replicas             }           }
//	part     what the object has at what the manifest names
//	merged   part and manifest together
type graft struct {
	*Manager
	shape        shape
	object       runtime.Object // in the version of requests, without its record
	wants        map[string]any
	part, merged any
}

// newGraft merges. An error says no more than that it has to be done the long
// way.
func (m *Manager) newGraft(object, applied runtime.Object, want *typed.TypedValue) (*graft, error) {
	s, err := m.shape()
	if err != nil {
		return nil, err
	}
	manifest, ok := applied.(*unstructured.Unstructured)
	if !ok || !s.equals(shapeOf(want)) {
		return nil, errOdd
	}
	g := &graft{Manager: m, shape: s, object: object, wants: manifest.Object}
	if g.part, err = g.cut(); err != nil {
		return nil, err
	}
	have := typed.AsTypedUnvalidated(value.NewValueInterface(g.part), s.schema, s.ref) //nolint:staticcheck // what it is a part of is valid
	merged, err := have.Merge(want)
	if err != nil || merged.AsValue() == nil {
		return nil, errOdd
	}
	g.merged = merged.AsValue().Unstructured()
	return g, nil
}

// cut takes the part out of an object, which has to be valid.
func (g *graft) cut() (any, error) {
	if u, ok := g.object.(*unstructured.Unstructured); ok {
		if !g.shape.valid(u.Object) {
			return nil, errOdd
		}
		return g.shape.cut(u.Object, g.wants), nil
	}
	v := reflect.ValueOf(g.object)
	if !g.checked.of(g.shape, v.Type()).valid(v) || g.shape.granular(v, v) == nil {
		return nil, errOdd
	}
	return g.shape.cutStruct(v.Elem(), g.wants)
}

// along says that a manifest is to be followed into a value.
func (s shape) along(have, wants any) (t *smdschema.Map, below, named map[string]any) {
	below, isMap := have.(map[string]any)
	named, both := wants.(map[string]any)
	atom, ok := s.schema.Resolve(s.ref)
	if !isMap || !both || !ok || atom.Map == nil || atom.Map.ElementRelationship == smdschema.Atomic {
		return nil, nil, nil
	}
	return atom.Map, below, named
}

func (s shape) cut(have, wants any) any {
	t, below, named := s.along(have, wants)
	if t == nil {
		return have
	}
	part := make(map[string]any, len(named))
	for name, wanted := range named {
		if v, has := below[name]; has {
			at, _ := s.field(t, name)
			part[name] = at.cut(v, wanted)
		}
	}
	return part
}

func (s shape) cutStruct(have reflect.Value, wants map[string]any) (map[string]any, error) {
	fields, t := value.TypeReflectEntryOf(have.Type()).Fields(), s.granular(have, have)
	part := make(map[string]any, len(wants))
	for name, wanted := range wants {
		f := fields[name]
		if f == nil || t == nil {
			return nil, errOdd
		}
		v := f.GetFrom(have)
		if f.CanOmit(v) {
			continue
		}
		at, _ := s.field(t, name)
		var err error
		if below, isMap := wanted.(map[string]any); isMap && at.granular(v, v) != nil {
			part[name], err = at.cutStruct(reflect.Indirect(v), below)
		} else {
			part[name], err = untyped(v)
		}
		if err != nil {
			return nil, err
		}
	}
	return part, nil
}

// differs is what the merge changes.
func (g *graft) differs() (*typed.Comparison, error) {
	d := newDiffer()
	return d.found, d.compare(g.shape, g.part, g.merged)
}

// changes says that the merge makes a difference.
func (g *graft) changes() bool { return !same(g.part, g.merged) }

// grown is the object with the merged part in its place, in the version of
// requests. It shares nothing.
func (g *graft) grown() (runtime.Object, error) {
	if u, ok := g.object.(*unstructured.Unstructured); ok {
		tree, _ := g.shape.grow(u.Object, g.wants, g.merged).(map[string]any)
		return &unstructured.Unstructured{Object: runtime.DeepCopyJSON(tree)}, nil
	}
	merged, ok := g.merged.(map[string]any)
	if !ok {
		return nil, errOdd
	}
	obj := g.object.DeepCopyObject()
	return obj, g.shape.growStruct(reflect.ValueOf(obj).Elem(), g.wants, merged)
}

func (s shape) grow(have, wants, merged any) any {
	t, below, named := s.along(have, wants)
	fresh, isMap := merged.(map[string]any)
	if t == nil || !isMap {
		return merged
	}
	grown := maps.Clone(below)
	for name, wanted := range named {
		v, has := fresh[name]
		if !has {
			continue
		}
		at, _ := s.field(t, name)
		grown[name] = at.grow(below[name], wanted, v)
	}
	return grown
}

func (s shape) growStruct(have reflect.Value, wants, merged map[string]any) error {
	fields, t := value.TypeReflectEntryOf(have.Type()).Fields(), s.granular(have, have)
	flat := make(map[string]any, len(wants))
	for name, wanted := range wants {
		f := fields[name]
		if f == nil || t == nil {
			return errOdd
		}
		at, _ := s.field(t, name)
		v := f.GetFrom(have)
		below, isMap := wanted.(map[string]any)
		fresh, both := merged[name].(map[string]any)
		if isMap && both && at.granular(v, v) != nil {
			if err := at.growStruct(reflect.Indirect(v), below, fresh); err != nil {
				return err
			}
		} else if u, has := merged[name]; has {
			flat[name] = u
		}
	}
	return setFields(have, flat)
}

// setFields sets fields of a Go struct.
func setFields(of reflect.Value, to map[string]any) error {
	if len(to) == 0 {
		return nil
	}
	made := reflect.New(of.Type())
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(to, made.Interface()); err != nil {
		return errOdd
	}
	fields := value.TypeReflectEntryOf(of.Type()).Fields()
	for name := range to {
		field := fields[name].GetFrom(of)
		if !field.CanSet() {
			return errOdd
		}
		field.Set(fields[name].GetFrom(made.Elem()))
	}
	return nil
}

// isBlank says that an object has nothing but its kind.
func isBlank(obj runtime.Object) bool {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		for name := range u.Object {
			if name != "apiVersion" && name != "kind" {
				return false
			}
		}
		return true
	}
	v := reflect.ValueOf(obj).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Name != "TypeMeta" && !v.Field(i).IsZero() {
			return false
		}
	}
	return true
}

// asApplied is what is applied where there was nothing, as an object like that. It
// shares nothing. What says null is for others to merge.
func asApplied(nothing, applied runtime.Object) (runtime.Object, error) {
	manifest, ok := applied.(*unstructured.Unstructured)
	if !ok || hasNull(manifest.Object) {
		return nil, errOdd
	}
	if _, ok := nothing.(*unstructured.Unstructured); ok {
		return manifest.DeepCopy(), nil
	}
	obj, ok := reflect.TypeAssert[runtime.Object](reflect.New(reflect.TypeOf(nothing).Elem()))
	if !ok {
		return nil, errOdd
	}
	return obj, runtime.DefaultUnstructuredConverter.FromUnstructured(manifest.Object, obj)
}

func hasNull(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for _, below := range v {
			if hasNull(below) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasNull)
	}
	return false
}
