package initializers

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Place is metadata in objects of a Go type that can have initializers: the
// object's own, or that of its pod template.
type Place struct {
	// Path are the names in JSON that lead to the metadata, and Numbers those in
	// protobuf; only the types of versions have them.
	Path    []string
	Numbers []int32

	index []int // of the Go fields
}

// Places are those of an object's Go type; none for kinds without metadata and
// for objects without a type of their own.
func Places(obj runtime.Object) []Place { return shapeOf(reflect.TypeOf(obj)).places }

// in is the place's metadata in an object; nil where a pointer leads nowhere.
func (p *Place) in(obj reflect.Value) *metav1.ObjectMeta {
	v, err := obj.FieldByIndexErr(p.index)
	if err != nil {
		return nil
	}
	return v.Addr().Interface().(*metav1.ObjectMeta)
}

// Put makes the place of an object carry a field, as JSON; "" takes it away.
func (p *Place) Put(obj runtime.Object, text string) {
	if m := p.in(reflect.ValueOf(obj).Elem()); m != nil {
		carry(m, text)
	}
}

// shape is what there is to know of a Go type: where its objects carry
// initializers, and for a list where the items are.
type shape struct {
	places []Place
	items  []int  // index of the items; nil for what is no list
	of     *shape // of an item
}

var shapes sync.Map // by reflect.Type, of pointers

var none = &shape{}

// shapeOf looks at a type once.
func shapeOf(t reflect.Type) *shape {
	if known, ok := shapes.Load(t); ok {
		return known.(*shape)
	}
	s := none
	if t != nil && t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct {
		s = newShape(t.Elem())
	}
	known, _ := shapes.LoadOrStore(t, s)
	return known.(*shape)
}

var metaType = reflect.TypeFor[metav1.ObjectMeta]()

func newShape(t reflect.Type) *shape {
	s := &shape{}
	if f, ok := t.FieldByName("ObjectMeta"); ok && f.Type == metaType && len(f.Index) == 1 {
		s.places = append(s.places, Place{}.through(f))
		s.places = append(s.places, templates(t, Place{}, nil)...)
	}
	if f, ok := t.FieldByName("Items"); ok && f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
		s.items, s.of = f.Index, newShape(f.Type.Elem())
	}
	return s
}

// through is the place that a field leads to from here.
func (p Place) through(f reflect.StructField) Place {
	next := Place{Path: slices.Clip(p.Path), Numbers: slices.Clip(p.Numbers), index: slices.Concat(p.index, f.Index)}
	if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
		next.Path = append(next.Path, name)
	}
	if parts := strings.Split(f.Tag.Get("protobuf"), ","); len(parts) > 1 {
		if n, err := strconv.ParseInt(parts[1], 10, 32); err == nil {
			next.Numbers = append(next.Numbers, int32(n))
		}
	}
	return next
}

// templates finds the metadata of pod templates in a type, through fields and
// pointers, but not in lists.
func templates(t reflect.Type, at Place, within []reflect.Type) []Place {
	const deepest = 4 // a CronJob's
	if len(within) == deepest || slices.Contains(within, t) {
		return nil
	}
	within = append(slices.Clip(within), t)
	var found []Place
	for f := range t.Fields() {
		next := f.Type
		if next.Kind() == reflect.Pointer {
			next = next.Elem()
		}
		if !f.IsExported() || next.Kind() != reflect.Struct || next == metaType {
			continue
		}
		if m, ok := next.FieldByName("ObjectMeta"); ok && next.Name() == "PodTemplateSpec" {
			found = append(found, at.through(f).through(m))
			continue
		}
		found = append(found, templates(next, at.through(f), within)...)
	}
	return found
}

// Spot is where an object, or one in a list or table, carries initializers, and
// the field as JSON.
type Spot struct {
	// Path leads to the metadata in JSON: names, and indexes into lists.
	Path []any
	// Hops lead there in protobuf.
	Hops []Hop
	Text string

	meta *metav1.ObjectMeta
}

// Hop is the field of a message that a way goes on through: the one of a number,
// after others of the same number.
type Hop struct {
	Number int32
	After  int
}

// Spots are where an object carries initializers; nil for nearly all of them.
func Spots(obj runtime.Object) []Spot {
	if t, ok := obj.(*metav1.Table); ok {
		return tableSpots(t)
	}
	s := shapeOf(reflect.TypeOf(obj))
	if len(s.places) == 0 && s.items == nil {
		return nil
	}
	v := reflect.ValueOf(obj).Elem()
	found := s.spots(v, nil, nil, nil)
	if s.items == nil {
		return found
	}
	const items = 2 // in every list's message
	list := v.FieldByIndex(s.items)
	for i := range list.Len() {
		found = s.of.spots(list.Index(i), found, []any{"items", i}, []Hop{{items, i}})
	}
	return found
}

// spots appends those of one object. The way there is copied where it is needed.
func (s *shape) spots(obj reflect.Value, found []Spot, path []any, hops []Hop) []Spot {
	for i := range s.places {
		p := &s.places[i]
		m := p.in(obj)
		if m == nil {
			continue
		}
		text, carries := m.Annotations[Carried]
		if !carries {
			continue
		}
		spot := Spot{Text: text, Path: slices.Clone(path), Hops: slices.Clone(hops), meta: m}
		for _, name := range p.Path {
			spot.Path = append(spot.Path, name)
		}
		for _, n := range p.Numbers {
			spot.Hops = append(spot.Hops, Hop{Number: n})
		}
		found = append(found, spot)
	}
	return found
}

func tableSpots(t *metav1.Table) []Spot {
	var found []Spot
	for i := range t.Rows {
		if obj := t.Rows[i].Object.Object; obj != nil {
			for _, spot := range Spots(obj) {
				spot.Path = append([]any{"rows", i, "object"}, spot.Path...)
				found = append(found, spot)
			}
		}
	}
	return found
}

// Clean takes the annotation away.
func (s *Spot) Clean() { carry(s.meta, "") }
