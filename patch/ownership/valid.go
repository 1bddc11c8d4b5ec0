package ownership

import (
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// absent is the value of a field that is not there, which is not null.
type absent struct{}

// valid says that a value without a Go type conforms to a type, with items of
// lists there more than once or not. What it says no to, upstream's own
// validation has the last word on.
func (s shape) valid(v any) bool {
	atom, ok := s.schema.Resolve(s.ref)
	if !ok {
		return false
	}
	atom = deduced(atom, v)
	switch {
	case atom.Map != nil:
		return s.validMap(atom.Map, v)
	case atom.Scalar != nil:
		return validScalar(*atom.Scalar, v)
	case atom.List != nil:
		return s.validList(atom.List, v)
	default:
		return false
	}
}

func (s shape) validMap(t *smdschema.Map, v any) bool {
	m, ok := v.(map[string]any)
	if !ok {
		return v == nil
	}
	for key, below := range m {
		at, ok := s.field(t, key)
		if !ok || !at.valid(below) {
			return false
		}
	}
	return true
}

// field is the type of a map's field; not ok if it may not have such a one.
func (s shape) field(t *smdschema.Map, key string) (shape, bool) {
	if f, ok := t.FindField(key); ok {
		return shape{s.schema, f.Type}, true
	}
	return shape{s.schema, t.ElementType}, t.ElementType != smdschema.TypeRef{}
}

func (s shape) validList(t *smdschema.List, v any) bool {
	list, ok := v.([]any)
	if !ok {
		return v == nil
	}
	at := shape{s.schema, t.ElementType}
	for _, item := range list {
		if t.ElementRelationship == smdschema.Associative && !at.hasKey(t, item) || !at.valid(item) {
			return false
		}
	}
	return true
}

// hasKey says that an item of a list can be told from others.
func (s shape) hasKey(t *smdschema.List, item any) bool {
	m, isMap := item.(map[string]any)
	if len(t.Keys) == 0 {
		_, isList := item.([]any)
		return item != nil && !isMap && !isList
	}
	if !isMap {
		return false
	}
	for _, key := range t.Keys {
		if _, has := m[key]; has || s.keyDefault(key) != nil {
			return true
		}
	}
	return false
}

// keyDefault is the default of a field of items, nil for none.
func (s shape) keyDefault(key string) any {
	atom, ok := s.schema.Resolve(s.ref)
	if !ok || atom.Map == nil {
		return nil
	}
	f, _ := atom.FindField(key)
	return f.Default
}

func validScalar(t smdschema.Scalar, v any) bool {
	if v == nil {
		return true
	}
	switch kindOf(v) {
	case isNumber:
		return t == smdschema.Numeric || t == smdschema.Untyped
	case isString:
		return t == smdschema.String || t == smdschema.Untyped
	case isBool:
		return t == smdschema.Boolean || t == smdschema.Untyped
	default:
		return false
	}
}

type kindOfValue int

const (
	isNothing kindOfValue = iota // absent or null
	isNumber
	isString
	isBool
	isList
	isMap
	isOther
)

func kindOf(v any) kindOfValue {
	switch v.(type) {
	case nil, absent:
		return isNothing
	case string:
		return isString
	case map[string]any:
		return isMap
	case []any:
		return isList
	case bool:
		return isBool
	case int64, float64, int, int32:
		return isNumber
	default:
		return isOther
	}
}

// deduced leaves of a type that can be several things the one that a value is.
// Nothing, and what cannot be, leaves all.
func deduced(atom smdschema.Atom, v any) smdschema.Atom {
	switch kindOf(v) {
	case isNumber, isString, isBool:
		if atom.Scalar != nil {
			return smdschema.Atom{Scalar: atom.Scalar}
		}
	case isList:
		if atom.List != nil {
			return smdschema.Atom{List: atom.List}
		}
	case isMap:
		if atom.Map != nil {
			return smdschema.Atom{Map: atom.Map}
		}
	}
	return atom
}

// same says that two values without Go types are equal, as upstream does: a
// number is what it is worth.
func same(a, b any) bool {
	switch a := a.(type) {
	case nil:
		return b == nil
	case string:
		b, ok := b.(string)
		return ok && a == b
	case bool:
		b, ok := b.(bool)
		return ok && a == b
	case int64:
		if b, ok := b.(int64); ok {
			return a == b
		}
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			if w, has := b[k]; !has || !same(v, w) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !same(a[i], b[i]) {
				return false
			}
		}
		return true
	}
	return value.Equals(value.NewValueInterface(a), value.NewValueInterface(b))
}
