package ownership

import (
	"reflect"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

var texts = reflect.TypeFor[map[string]string]()

// addGo notes all fields of a Go value that was not there before. Structs, maps
// of texts and lists of structs with keys are walked as they are; everything
// else is turned into a value without a Go type and compared with nothing.
func (d *differ) addGo(s shape, v reflect.Value) error {
	if walked, err := d.walk(s, v); walked || err != nil {
		return err
	}
	is, err := untyped(v)
	if err != nil {
		return err
	}
	return d.compare(s, absent{}, is)
}

// walk is addGo for what can be walked. It has noted nothing where it says that
// it has not.
func (d *differ) walk(s shape, v reflect.Value) (walked bool, err error) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return false, nil
		}
		v = v.Elem()
	}
	atom, ok := s.schema.Resolve(s.ref)
	if !ok || value.TypeReflectEntryOf(v.Type()).CanConvertToUnstructured() {
		return false, nil
	}
	switch {
	case atom.Map != nil && atom.List == nil && atom.Scalar == nil && atom.Map.ElementRelationship != smdschema.Atomic:
		switch {
		case v.Kind() == reflect.Struct:
			return true, d.addStruct(s, atom.Map, v)
		case v.Type() == texts:
			return d.addTexts(s, atom.Map, v)
		}
	case atom.List != nil:
		if walked, err = d.walkList(s, v); walked && err == nil {
			d.add()
		}
		return walked, err
	case atom.Scalar != nil && atom.Map == nil && atom.List == nil && isPlainScalar(v.Kind()) && isScalar(v.Type(), *atom.Scalar):
		d.add()
		return true, nil
	}
	return false, nil
}

func isPlainScalar(k reflect.Kind) bool {
	return k == reflect.String || k == reflect.Bool || k == reflect.Int32 || k == reflect.Int64
}

func (d *differ) addStruct(s shape, t *smdschema.Map, v reflect.Value) error {
	for _, f := range value.TypeReflectEntryOf(v.Type()).OrderedFields() {
		at := f.GetFrom(v)
		if f.CanOmit(at) {
			continue
		}
		below, ok := s.field(t, f.JsonName)
		if !ok {
			return errOdd
		}
		d.enter(fieldpath.PathElement{FieldName: &f.JsonName})
		err := d.addGo(below, at)
		d.leave()
		if err != nil {
			return err
		}
	}
	d.add()
	return nil
}

func (d *differ) addTexts(s shape, t *smdschema.Map, v reflect.Value) (walked bool, err error) {
	below := shape{s.schema, t.ElementType}
	atom, ok := s.schema.Resolve(t.ElementType)
	if len(t.Fields) > 0 || !ok || atom.Scalar == nil || atom.Map != nil || atom.List != nil || !v.CanInterface() || !isScalar(v.Type().Elem(), *atom.Scalar) || below.ref == (smdschema.TypeRef{}) {
		return false, nil
	}
	for key := range v.Interface().(map[string]string) {
		d.enter(fieldpath.PathElement{FieldName: &key})
		d.add()
		d.leave()
	}
	d.add()
	return true, nil
}

// walkList notes the items of a new list that have keys, each another one. It
// has noted nothing where it says that it has not.
func (d *differ) walkList(s shape, v reflect.Value) (walked bool, err error) {
	atom, ok := s.schema.Resolve(s.ref)
	if !ok || atom.List == nil || atom.Map != nil || atom.Scalar != nil || v.Kind() != reflect.Slice || v.Type().Elem().Kind() != reflect.Struct || v.Len() == 0 {
		return false, nil
	}
	t := atom.List
	if t.ElementRelationship != smdschema.Associative || len(t.Keys) == 0 {
		return false, nil
	}
	at := shape{s.schema, t.ElementType}
	keys := make([]fieldpath.PathElement, v.Len())
	known := fieldpath.MakePathElementMap(v.Len())
	for i := range keys {
		key, ok := at.keyOf(t, v.Index(i))
		if !ok || has(&known, key) {
			return false, nil
		}
		known.Insert(key, nil)
		keys[i] = key
	}
	for i, key := range keys {
		d.enter(key)
		err := d.addGo(at, v.Index(i))
		d.leave()
		if err != nil {
			return true, err
		}
	}
	return true, nil
}

// keyOf is what tells a Go struct from others in a list. It is not ok for
// structs whose keys are more than texts and numbers, or that have none.
func (s shape) keyOf(t *smdschema.List, v reflect.Value) (fieldpath.PathElement, bool) {
	fields := value.TypeReflectEntryOf(v.Type()).Fields()
	keys := make(value.FieldList, 0, len(t.Keys))
	for _, name := range t.Keys {
		f := fields[name]
		if f == nil {
			return fieldpath.PathElement{}, false
		}
		var is any
		switch at := f.GetFrom(v); {
		case f.CanOmit(at):
			if is = s.keyDefault(name); is == nil {
				continue
			}
		case at.Kind() == reflect.String:
			is = at.String()
		case at.Kind() == reflect.Int32 || at.Kind() == reflect.Int64:
			is = at.Int()
		default:
			return fieldpath.PathElement{}, false
		}
		keys = append(keys, value.Field{Name: name, Value: value.NewValueInterface(is)})
	}
	keys.Sort()
	return fieldpath.PathElement{Key: &keys}, len(keys) > 0
}
