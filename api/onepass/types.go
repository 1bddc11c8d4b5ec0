package onepass

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// plan is what is known about a type: how a value of it is read into its place
// in memory.
type plan struct {
	typ  reflect.Type
	read func(r *reader, at unsafe.Pointer)
	// unfit is set for types that are not for this package, or have a part that
	// is not.
	unfit bool
}

// plans are made once for each type.
var plans sync.Map // reflect.Type -> *plan

// planOf is the plan of a type; nil when it is not for this package.
func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return fit(p.(*plan))
	}
	m := maker{}
	m.plan(t)
	// A plan is published together with all that it refers to. Of two that were
	// made at a time, both are good.
	unfit := false
	for _, p := range m {
		unfit = unfit || p.unfit
	}
	if unfit {
		// Which of them is to blame matters to nobody but the one asked for.
		p := &plan{typ: t, unfit: true}
		plans.Store(t, p)
		return nil
	}
	for t, p := range m {
		plans.LoadOrStore(t, p)
	}
	p, _ := plans.Load(t)
	return fit(p.(*plan))
}

func fit(p *plan) *plan {
	if p.unfit {
		return nil
	}
	return p
}

// maker makes plans of types that may refer to each other.
type maker map[reflect.Type]*plan

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func (m maker) plan(t reflect.Type) *plan {
	if p := m[t]; p != nil {
		return p
	}
	p := &plan{typ: t}
	m[t] = p // before its parts, which may be of the same type
	pointer := reflect.PointerTo(t)
	switch {
	case t.Kind() == reflect.Pointer:
		m.pointer(p)
	case pointer.Implements(unmarshaler):
		p.read = readItself(t)
	case pointer.Implements(textUnmarshaler):
		p.unfit = true
	default:
		m.kind(p)
	}
	return p
}

// kind makes the plan of a type that has no say in how it is read.
func (m maker) kind(p *plan) {
	switch p.typ.Kind() {
	case reflect.String:
		p.read = readString
	case reflect.Bool:
		p.read = readBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.read = readInt(p.typ)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		p.read = readUint(p.typ)
	case reflect.Float64:
		p.read = readFloat
	case reflect.Slice:
		m.slice(p)
	case reflect.Map:
		m.mapping(p)
	case reflect.Struct:
		m.structure(p)
	default:
		p.unfit = true
	}
}

func (m maker) pointer(p *plan) {
	of := p.typ.Elem()
	if of.Kind() == reflect.Pointer {
		p.unfit = true
		return
	}
	to := m.plan(of)
	p.read = func(r *reader, at unsafe.Pointer) {
		if r.isNull() {
			return
		}
		made := reflect.New(of).UnsafePointer()
		to.read(r, made)
		*(*unsafe.Pointer)(at) = made
	}
}

// readItself reads a value of a type that knows how to.
func readItself(t reflect.Type) func(*reader, unsafe.Pointer) {
	return func(r *reader, at unsafe.Pointer) {
		text := r.raw()
		if !r.bad && reflect.NewAt(t, at).Interface().(json.Unmarshaler).UnmarshalJSON(text) != nil {
			r.fail()
		}
	}
}

// field is one of a struct's, or of a struct that is embedded in it.
type field struct {
	name   string
	offset uintptr
	of     *plan
}

func (m maker) structure(p *plan) {
	s := &structure{byName: map[string]int{}}
	if !s.gather(m, p.typ, 0) || len(s.fields) > maxFields {
		p.unfit = true
		return
	}
	p.read = s.read
}

// maxFields is how many fields a struct may have: those that were read are kept
// in a set of bits.
const maxFields = 128

type structure struct {
	fields []field
	byName map[string]int
}

// gather adds the fields of a struct, in the order in which they are written
// down. It is false when encoding/json has to choose among several of a name, or is
// asked for more than names.
func (s *structure) gather(m maker, t reflect.Type, offset uintptr) bool {
	for f := range t.Fields() {
		tag := f.Tag.Get("json")
		if tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		if f.Anonymous && name == "" {
			if f.Type.Kind() != reflect.Struct || !f.IsExported() || !s.gather(m, f.Type, offset+f.Offset) {
				return false
			}
			continue
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if _, twice := s.byName[name]; twice || slices.Contains(strings.Split(options, ","), "string") {
			return false
		}
		s.byName[name] = len(s.fields)
		s.fields = append(s.fields, field{name, offset + f.Offset, m.plan(f.Type)})
	}
	return true
}
