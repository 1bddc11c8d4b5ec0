package ownership

import (
	"errors"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// errOdd says that something is not as it should be; upstream's comparison says
// what.
var errOdd = errors.New("not comparable in short")

// differ finds what differs between two values of a type, of which the first is
// valid. It looks into what differs only, and makes sure that what the second
// has there is valid.
type differ struct {
	found *typed.Comparison
	path  fieldpath.Path
	// added are the parts of found.Added along path, from the whole on, as far as
	// they have been looked up.
	added []*fieldpath.Set
}

func newDiffer() *differ {
	return &differ{found: &typed.Comparison{Removed: fieldpath.NewSet(), Modified: fieldpath.NewSet(), Added: fieldpath.NewSet()}}
}

// enter goes down to a part of a value, leave up again.
func (d *differ) enter(at fieldpath.PathElement) { d.path = append(d.path, at) }

func (d *differ) leave() {
	d.path = d.path[:len(d.path)-1]
	d.added = d.added[:min(len(d.added), len(d.path)+1)]
}

// add notes that what is at path was not there before.
func (d *differ) add() {
	if len(d.path) == 0 {
		return // nobody owns the whole
	}
	if len(d.added) == 0 {
		d.added = append(d.added, d.found.Added)
	}
	last := len(d.path) - 1
	for n := len(d.added); n <= last; n++ {
		d.added = append(d.added, d.added[n-1].Children.Descend(d.path[n-1]))
	}
	d.added[last].Members.Insert(d.path[last])
}

// compare compares two values without Go types, at most one of them absent.
func (d *differ) compare(s shape, before, after any) error {
	atom, ok := s.schema.Resolve(s.ref)
	if !ok {
		return errOdd
	}
	was, is := deduced(atom, before), deduced(atom, after)
	_, gone := after.(absent)
	_, added := before.(absent)
	var leaf bool
	var err error
	switch {
	case gone:
		leaf, err = d.as(s, was, before, after)
	case added || was == is:
		leaf, err = d.as(s, is, before, after)
	default: // it has become something else
		if _, err = d.as(s, was, before, after); err == nil {
			leaf, err = d.as(s, is, before, after)
		}
	}
	if err == nil && !leaf {
		d.mark(before, after)
	}
	return err
}

// mark notes a field that is only on one side.
func (d *differ) mark(before, after any) {
	if _, added := before.(absent); added {
		d.add()
	} else if _, gone := after.(absent); gone {
		d.found.Removed.Insert(d.path)
	}
}

// as compares two values as one kind of thing. It says whether they are a whole
// that is not looked into.
func (d *differ) as(s shape, atom smdschema.Atom, before, after any) (leaf bool, err error) {
	switch {
	case atom.Map != nil:
		l, r := mapOf(before), mapOf(after)
		if atom.Map.ElementRelationship == smdschema.Atomic || len(l) == 0 && len(r) == 0 {
			return true, d.leaf(s, before, after)
		}
		return false, d.maps(s, atom.Map, l, r)
	case atom.Scalar != nil:
		return true, d.leaf(s, before, after)
	case atom.List != nil:
		l, r := listOf(before), listOf(after)
		if atom.List.ElementRelationship == smdschema.Atomic || len(l) == 0 && len(r) == 0 {
			return true, d.leaf(s, before, after)
		}
		if len(l) > 0 && len(l) == len(r) && same(l, r) {
			return false, nil
		}
		return false, d.lists(s, atom.List, l, r)
	default:
		return false, errOdd
	}
}

func mapOf(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func listOf(v any) []any {
	l, _ := v.([]any)
	return l
}

// leaf compares two values as wholes.
func (d *differ) leaf(s shape, before, after any) error {
	_, added := before.(absent)
	_, gone := after.(absent)
	if !added && !gone {
		if same(before, after) {
			return nil
		}
		d.found.Modified.Insert(d.path)
	} else {
		d.mark(before, after)
	}
	if !gone && !s.valid(after) {
		return errOdd
	}
	return nil
}

func (d *differ) maps(s shape, t *smdschema.Map, before, after map[string]any) error {
	for key, was := range before {
		is, has := after[key]
		if !has {
			is = absent{}
		}
		if err := d.field(s, t, key, was, is); err != nil {
			return err
		}
	}
	for key, is := range after {
		if _, had := before[key]; !had {
			if err := d.field(s, t, key, absent{}, is); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *differ) field(s shape, t *smdschema.Map, key string, before, after any) error {
	if quickly(before, after) {
		return nil
	}
	at, ok := s.field(t, key)
	if !ok {
		return errOdd
	}
	d.enter(fieldpath.PathElement{FieldName: &key})
	defer d.leave()
	return d.compare(at, before, after)
}

// quickly says that two values are equal where that takes no long look.
func quickly(a, b any) bool {
	switch a := a.(type) {
	case string:
		b, ok := b.(string)
		return ok && a == b
	case bool:
		b, ok := b.(bool)
		return ok && a == b
	case int64:
		b, ok := b.(int64)
		return ok && a == b
	default:
		return false
	}
}

// lists compares lists whose items have keys, or are their own.
func (d *differ) lists(s shape, t *smdschema.List, before, after []any) error {
	at := shape{s.schema, t.ElementType}
	all := make([]fieldpath.PathElement, 0, max(len(before), len(after)))
	was, is := fieldpath.MakePathElementMap(len(before)), fieldpath.MakePathElementMap(len(after))
	gather := func(into *fieldpath.PathElementMap, list []any, known *fieldpath.PathElementMap) error {
		for _, item := range list {
			key, err := at.key(t, item)
			if err != nil {
				return err
			}
			if twice, has := into.Get(key); has {
				into.Insert(key, append(twice.([]any), item))
				continue
			}
			into.Insert(key, []any{item})
			if known == nil || !has(known, key) {
				all = append(all, key)
			}
		}
		return nil
	}
	if err := gather(&was, before, nil); err != nil {
		return err
	}
	if err := gather(&is, after, &was); err != nil {
		return err
	}
	for _, key := range all {
		if err := d.items(at, key, itemsAt(&was, key), itemsAt(&is, key)); err != nil {
			return err
		}
	}
	return nil
}

func has(m *fieldpath.PathElementMap, key fieldpath.PathElement) bool {
	_, ok := m.Get(key)
	return ok
}

func itemsAt(m *fieldpath.PathElementMap, key fieldpath.PathElement) []any {
	v, _ := m.Get(key)
	items, _ := v.([]any)
	return items
}

// items compares the items that have one key. What is there more than once is
// looked at as a whole.
func (d *differ) items(s shape, key fieldpath.PathElement, before, after []any) error {
	d.enter(key)
	defer d.leave()
	if len(after) > 1 {
		for _, item := range after {
			if !s.valid(item) {
				return errOdd
			}
		}
	}
	one := func(items []any) any {
		if len(items) == 0 {
			return absent{}
		}
		return items[0]
	}
	switch {
	case len(before) <= 1 && len(after) <= 1:
		if len(before) == 1 && len(after) == 1 && same(before[0], after[0]) {
			return nil
		}
		return d.compare(s, one(before), one(after))
	case len(before) > 1 && len(after) > 1:
		if !same(before, after) {
			d.found.Modified.Insert(d.path)
		}
	case len(before) > 1:
		if len(after) == 1 {
			if err := d.compare(s, absent{}, after[0]); err != nil {
				return err
			}
		}
		d.found.Removed.Insert(d.path)
	default:
		if len(before) == 1 {
			if err := d.compare(s, before[0], absent{}); err != nil {
				return err
			}
		}
		d.add()
	}
	return nil
}

// key is what tells an item of a list from others.
func (s shape) key(t *smdschema.List, item any) (fieldpath.PathElement, error) {
	if t.ElementRelationship != smdschema.Associative || !s.hasKey(t, item) {
		return fieldpath.PathElement{}, errOdd
	}
	if len(t.Keys) == 0 {
		v := value.NewValueInterface(item)
		return fieldpath.PathElement{Value: &v}, nil
	}
	m := mapOf(item)
	keys := make(value.FieldList, 0, len(t.Keys))
	for _, name := range t.Keys {
		v, ok := m[name]
		if !ok {
			if v = s.keyDefault(name); v == nil {
				continue
			}
		}
		keys = append(keys, value.Field{Name: name, Value: value.NewValueInterface(v)})
	}
	keys.Sort()
	return fieldpath.PathElement{Key: &keys}, nil
}
