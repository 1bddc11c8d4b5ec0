package ownership

import (
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"setpoint.dev/setpoint/api/equal"
)

// untyped is a Go value as one without a Go type.
func untyped(v reflect.Value) (any, error) {
	switch {
	case v.Kind() == reflect.Pointer && v.IsNil():
		return nil, nil
	case v.Kind() == reflect.Pointer:
	case v.CanAddr():
		v = v.Addr()
	default: // from a map
		held := reflect.New(v.Type())
		held.Elem().Set(v)
		v = held
	}
	u, err := value.NewValueReflect(v.Interface())
	if err != nil {
		return nil, err
	}
	return u.Unstructured(), nil
}

// structs compares two Go structs of one type, field by field. Only what
// differs is turned into values without Go types.
func (d *differ) structs(s shape, t *smdschema.Map, before, after reflect.Value) error {
	for _, f := range value.TypeReflectEntryOf(before.Type()).OrderedFields() {
		was, is := f.GetFrom(before), f.GetFrom(after)
		if equal.Values(was, is) {
			continue
		}
		at, ok := s.field(t, f.JsonName)
		if !ok {
			return errOdd
		}
		d.enter(fieldpath.PathElement{FieldName: &f.JsonName})
		err := d.structField(at, f, was, is)
		d.leave()
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) structField(s shape, f *value.FieldCacheEntry, before, after reflect.Value) error {
	added, gone := f.CanOmit(before), f.CanOmit(after)
	if added && gone {
		return nil
	}
	if t := s.granular(before, after); t != nil && !added && !gone {
		return d.structs(s, t, reflect.Indirect(before), reflect.Indirect(after))
	}
	if added {
		return d.addGo(s, after)
	}
	if !gone && before.Kind() == reflect.Slice && before.Len() == 0 {
		// The list was there, if only in name.
		if walked, err := d.walkList(s, after); walked || err != nil {
			return err
		}
	}
	was, err := untyped(before)
	if err != nil {
		return err
	}
	if gone {
		return d.compare(s, was, absent{})
	}
	is, err := untyped(after)
	if err != nil {
		return err
	}
	return d.compare(s, was, is)
}

// granular is the type of two Go structs that can be compared by their fields,
// nil for what cannot be.
func (s shape) granular(before, after reflect.Value) *smdschema.Map {
	t := before.Type()
	if t.Kind() == reflect.Pointer {
		if before.IsNil() || after.IsNil() {
			return nil
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || value.TypeReflectEntryOf(t).CanConvertToUnstructured() {
		return nil
	}
	atom, ok := s.schema.Resolve(s.ref)
	if !ok || atom.Map == nil || atom.Map.ElementRelationship == smdschema.Atomic {
		return nil
	}
	return atom.Map
}

// check makes sure that Go values of one type are valid. Most types leave
// nothing to check: what a Go struct holds has the type that the schema says.
type check struct {
	shape  shape
	fields []checkedField           // of structs
	items  *check                   // of lists and maps
	keys   []*value.FieldCacheEntry // of items: one has to be there; nil for no matter
	whole  bool                     // looked at as a value without a Go type
}

type checkedField struct {
	*value.FieldCacheEntry
	check *check
}

// checks makes checks, and knows those that are being made: types can hold
// themselves.
type checks map[checkedType]*check

type checkedType struct {
	goType reflect.Type
	atom   smdschema.Atom
}

// of is the check of a type, nil when there is nothing to check.
func (c checks) of(s shape, t reflect.Type) *check {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	atom, ok := s.schema.Resolve(s.ref)
	if !ok {
		return &check{shape: s, whole: true}
	}
	if atom.Scalar != nil && isScalar(t, *atom.Scalar) {
		return nil
	}
	key := checkedType{t, atom}
	if known, ok := c[key]; ok {
		return known
	}
	made := &check{shape: s}
	c[key] = made
	if c.fill(made, atom, t) {
		c[key] = nil
		return nil
	}
	return made
}

// fill says what to look at in a type, and whether that is nothing.
func (c checks) fill(made *check, atom smdschema.Atom, t reflect.Type) (nothing bool) {
	entry := value.TypeReflectEntryOf(t)
	switch {
	case entry.CanConvertToUnstructured():
	case t.Kind() == reflect.Struct && atom.Map != nil:
		return c.fillStruct(made, atom.Map, t, entry)
	case t.Kind() == reflect.Map && atom.Map != nil && t.Key().Kind() == reflect.String && len(atom.Fields) == 0 && atom.Map.ElementType != smdschema.TypeRef{}:
		made.items = c.of(shape{made.shape.schema, atom.Map.ElementType}, t.Elem())
		return made.items == nil
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 && atom.List != nil:
		return c.fillList(made, atom.List, t.Elem())
	}
	made.whole = true
	return false
}

func (c checks) fillStruct(made *check, m *smdschema.Map, t reflect.Type, entry *value.TypeReflectCacheEntry) bool {
	zero := reflect.New(t).Elem()
	for _, f := range entry.OrderedFields() {
		at, ok := made.shape.field(m, f.JsonName)
		below := &check{shape: at, whole: true}
		if ok {
			below = c.of(at, f.GetFrom(zero).Type())
		}
		if below != nil {
			made.fields = append(made.fields, checkedField{f, below})
		}
	}
	return len(made.fields) == 0
}

func (c checks) fillList(made *check, l *smdschema.List, item reflect.Type) bool {
	at := shape{made.shape.schema, l.ElementType}
	made.items = c.of(at, item)
	switch {
	case l.ElementRelationship != smdschema.Associative:
	case len(l.Keys) == 0:
		switch item.Kind() {
		case reflect.String, reflect.Int, reflect.Int32, reflect.Int64, reflect.Bool:
		default:
			made.whole = true
		}
	case item.Kind() != reflect.Struct || value.TypeReflectEntryOf(item).CanConvertToUnstructured():
		made.whole = true
	default:
		made.keys = keysOf(at, l, item)
	}
	return made.items == nil && made.keys == nil && !made.whole
}

// keysOf are the fields of which an item needs one, nil when it always has one.
func keysOf(s shape, l *smdschema.List, item reflect.Type) []*value.FieldCacheEntry {
	keys := make([]*value.FieldCacheEntry, 0, len(l.Keys))
	fields := value.TypeReflectEntryOf(item).Fields()
	zero := reflect.New(item).Elem()
	for _, name := range l.Keys {
		f := fields[name]
		if s.keyDefault(name) != nil || f != nil && !f.CanOmit(f.GetFrom(zero)) {
			return nil
		}
		if f != nil {
			keys = append(keys, f)
		}
	}
	return keys
}

var (
	times    = []reflect.Type{reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[metav1.Duration](), reflect.TypeFor[resource.Quantity]()}
	eitherOr = reflect.TypeFor[intstr.IntOrString]()
)

// isScalar says that values of a Go type are always such scalars, or null.
func isScalar(t reflect.Type, scalar smdschema.Scalar) bool {
	open := scalar == smdschema.Untyped
	if slices.Contains(times, t) {
		return open || scalar == smdschema.String
	}
	if t == eitherOr {
		return open
	}
	if value.TypeReflectEntryOf(t).CanConvertToUnstructured() {
		return false
	}
	switch t.Kind() {
	case reflect.String:
		return open || scalar == smdschema.String
	case reflect.Slice:
		return t.Elem().Kind() == reflect.Uint8 && (open || scalar == smdschema.String)
	case reflect.Bool:
		return open || scalar == smdschema.Boolean
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Float32, reflect.Float64:
		return open || scalar == smdschema.Numeric
	default:
		return false
	}
}

// valid says that a Go value is. A nil check has nothing against anything.
func (c *check) valid(v reflect.Value) bool {
	if c == nil {
		return true
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return true
		}
		v = v.Elem()
	}
	if c.whole {
		u, err := untyped(v)
		return err == nil && c.shape.valid(u)
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range c.fields {
			if below := f.GetFrom(v); !f.CanOmit(below) && !f.check.valid(below) {
				return false
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if item := v.Index(i); c.keys != nil && !hasOne(c.keys, item) || !c.items.valid(item) {
				return false
			}
		}
	case reflect.Map:
		for all := v.MapRange(); all.Next(); {
			if !c.items.valid(all.Value()) {
				return false
			}
		}
	}
	return true
}

func hasOne(keys []*value.FieldCacheEntry, item reflect.Value) bool {
	for _, key := range keys {
		if !key.CanOmit(key.GetFrom(item)) {
			return true
		}
	}
	return false
}

// checked keeps the check of the Go type that a manager's objects have.
type checked struct {
	mu     sync.Mutex // guards the fields below
	goType reflect.Type
	check  *check
}

// of is the check of a Go type, nil for nothing to check.
func (c *checked) of(s shape, t reflect.Type) *check {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.goType != t {
		c.goType, c.check = t, checks{}.of(s, t)
	}
	return c.check
}
