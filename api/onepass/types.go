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
// in memory, and how it is written from there.
type plan struct {
	typ   reflect.Type
	read  func(r *reader, at unsafe.Pointer)
	write func(w *writer, at unsafe.Pointer)
	// unread and unwritten are set for types that this package does not read, or write,
	// or that have a part of which that is true.
	unread, unwritten bool
}

// unfit makes it the plan of a type that is not for this package.
func (p *plan) unfit() { p.unread, p.unwritten = true, true }

// plans are made once for each type.
var plans sync.Map // reflect.Type -> *plan

// planOf is the plan of a type.
func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	m := maker{}
	mine := m.plan(t)
	// A type is as fit as the least fit that it refers to. Which of them is to blame
	// matters to nobody but the one asked for.
	var all plan
	for _, p := range m {
		all.unread, all.unwritten = all.unread || p.unread, all.unwritten || p.unwritten
	}
	if all.unread || all.unwritten {
		mine.unread, mine.unwritten = all.unread, all.unwritten
		m = maker{t: mine}
	}
	// A plan is published together with all that it refers to. Of two that were
	// made at a time, both are good.
	for t, p := range m {
		plans.LoadOrStore(t, p)
	}
	p, _ := plans.Load(t)
	return p.(*plan)
}

// maker makes plans of types that may refer to each other.
type maker map[reflect.Type]*plan

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	marshaler       = reflect.TypeFor[json.Marshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
)

func (m maker) plan(t reflect.Type) *plan {
	if p := m[t]; p != nil {
		return p
	}
	p := &plan{typ: t}
	m[t] = p // before its parts, which may be of the same type
	pointer := reflect.PointerTo(t)
	if t.Kind() == reflect.Pointer {
		m.pointer(p)
		return p
	}
	reads, writes := pointer.Implements(unmarshaler), pointer.Implements(marshaler)
	if !reads || !writes {
		m.kind(p)
	}
	switch {
	case reads:
		p.read, p.unread = readItself(t), false
	case pointer.Implements(textUnmarshaler):
		p.unread = true
	}
	switch {
	case writes:
		p.write, p.unwritten = writeItself(t), false
	case pointer.Implements(textMarshaler):
		p.unwritten = true
	}
	return p
}

// kind makes the plan of a type that has no say in how it is read, or written.
func (m maker) kind(p *plan) {
	switch p.typ.Kind() {
	case reflect.String:
		p.read, p.write = readString, writeString
	case reflect.Bool:
		p.read, p.write = readBool, writeBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.read, p.write = readInt(p.typ), writeInt(p.typ)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		p.read, p.write = readUint(p.typ), writeUint(p.typ)
	case reflect.Float64:
		p.read, p.write = readFloat, writeFloat
	case reflect.Slice:
		m.slice(p)
	case reflect.Map:
		m.mapping(p)
	case reflect.Struct:
		m.structure(p)
	default:
		p.unfit()
	}
}

func (m maker) pointer(p *plan) {
	of := p.typ.Elem()
	if of.Kind() == reflect.Pointer {
		p.unfit()
		return
	}
	to := m.plan(of)
	p.write = func(w *writer, at unsafe.Pointer) {
		if it := *(*unsafe.Pointer)(at); it == nil {
			w.null()
		} else {
			to.write(w, it)
		}
	}
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
	// label is how the field begins when it is written, and omits says that it is not;
	// nil for never.
	label string
	omits func(at unsafe.Pointer) bool
}

func (m maker) structure(p *plan) {
	s := &structure{byName: map[string]int{}}
	if !s.gather(m, p.typ, 0) || len(s.fields) > maxFields {
		p.unfit()
		return
	}
	p.read, p.write = s.read, s.write
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
		has := strings.Split(options, ",")
		if _, twice := s.byName[name]; twice || slices.Contains(has, "string") {
			return false
		}
		s.byName[name] = len(s.fields)
		s.fields = append(s.fields, field{
			name: name, offset: offset + f.Offset, of: m.plan(f.Type),
			label: string(AppendText(nil, name)) + ":",
			omits: either(slices.Contains(has, "omitempty"), isEmpty(f.Type), slices.Contains(has, "omitzero"), isZero(f.Type)),
		})
	}
	return true
}
