package onepass

import (
	"encoding/base64"
	"reflect"
	"strconv"
	"unsafe"
)

// Read reads a JSON object into what into points to, a zero value of a struct.
// When it returns false, what into points to is of no use any more.
func Read(data []byte, into any) bool {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return false
	}
	p := planOf(v.Type().Elem())
	if p.unread {
		return false
	}
	r := reader{data: data}
	if r.next() != '{' {
		return false
	}
	p.read(&r, v.UnsafePointer())
	return r.done()
}

func (s *structure) read(r *reader, at unsafe.Pointer) {
	if r.isNull() {
		return
	}
	r.enter('{')
	var seen [maxFields / 64]uint64
	var room [64]byte
	expected := 0 // fields mostly come in the order in which they are written
	for n := 0; r.more(n, '}'); n++ {
		name := r.text(room[:])
		if !r.take(':') {
			return
		}
		i, ok := expected, expected < len(s.fields) && s.fields[expected].name == string(name)
		if !ok {
			i, ok = s.byName[string(name)]
		}
		if !ok || seen[i/64]&(1<<(i%64)) != 0 {
			r.fail()
			return
		}
		seen[i/64] |= 1 << (i % 64)
		f := &s.fields[i]
		f.of.read(r, unsafe.Add(at, f.offset))
		expected = i + 1
	}
}

func readString(r *reader, at unsafe.Pointer) {
	if r.isNull() {
		return
	}
	var room [64]byte
	*(*string)(at) = string(r.text(room[:]))
}

func readBool(r *reader, at unsafe.Pointer) {
	switch r.next() {
	case 't':
		*(*bool)(at) = r.word("true")
	case 'f':
		r.word("false")
	case 'n':
		r.word("null")
	default:
		r.fail()
	}
}

// whole reads the text of a whole number; false for a null, or what is none.
func (r *reader) whole() (string, bool) {
	if r.isNull() {
		return "", false
	}
	text, whole := r.number()
	if !whole {
		r.fail()
		return "", false
	}
	return briefly(text), true
}

func readInt(t reflect.Type) func(*reader, unsafe.Pointer) {
	bits := t.Bits()
	return func(r *reader, at unsafe.Pointer) {
		if text, ok := r.whole(); ok {
			n, err := strconv.ParseInt(text, 10, bits)
			if err != nil {
				r.fail()
				return
			}
			switch bits {
			case 64:
				*(*int64)(at) = n
			case 32:
				*(*int32)(at) = int32(n) //nolint:gosec // it was read with so many bits
			default:
				reflect.NewAt(t, at).Elem().SetInt(n)
			}
		}
	}
}

func readUint(t reflect.Type) func(*reader, unsafe.Pointer) {
	return func(r *reader, at unsafe.Pointer) {
		if text, ok := r.whole(); ok {
			n, err := strconv.ParseUint(text, 10, t.Bits())
			if err != nil {
				r.fail()
				return
			}
			reflect.NewAt(t, at).Elem().SetUint(n)
		}
	}
}

func readFloat(r *reader, at unsafe.Pointer) {
	if r.isNull() {
		return
	}
	text, _ := r.number()
	f, err := strconv.ParseFloat(briefly(text), 64)
	if err != nil {
		r.fail()
		return
	}
	*(*float64)(at) = f
}

// slice is how reflect and the runtime see one.
type slice struct {
	data     unsafe.Pointer
	len, cap int
}

func (m maker) slice(p *plan) {
	of := p.typ.Elem()
	if of.Kind() == reflect.Uint8 {
		if of != reflect.TypeFor[byte]() {
			p.unfit()
		}
		p.read, p.write = readBytes, writeBytes
		return
	}
	item := m.plan(of)
	t, size := p.typ, of.Size()
	p.write = writeSlice(item, size)
	p.read = func(r *reader, at unsafe.Pointer) {
		if r.isNull() {
			return
		}
		r.enter('[')
		list := reflect.NewAt(t, at).Elem()
		list.Set(reflect.MakeSlice(t, 0, 0))
		s := (*slice)(at)
		for r.more(s.len, ']') {
			if s.len == s.cap {
				list.Grow(max(1, s.len))
			}
			s.len++
			item.read(r, unsafe.Add(s.data, uintptr(s.len-1)*size))
		}
	}
}

func readBytes(r *reader, at unsafe.Pointer) {
	if r.isNull() {
		return
	}
	text := r.text(nil)
	b := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(b, text)
	if err != nil {
		r.fail()
		return
	}
	*(*[]byte)(at) = b[:n]
}

func (m maker) mapping(p *plan) {
	t := p.typ
	key := t.Key()
	if key.Kind() != reflect.String || reflect.PointerTo(key).Implements(textUnmarshaler) {
		p.unfit()
		return
	}
	if t == reflect.TypeFor[map[string]string]() {
		p.read, p.write = readTexts, writeTexts
		return
	}
	item := m.plan(t.Elem())
	p.write, p.unwritten = writeMap(t, item), !isWrittenInMaps(t)
	p.read = func(r *reader, at unsafe.Pointer) {
		if r.isNull() {
			return
		}
		r.enter('{')
		made := reflect.MakeMap(t)
		reflect.NewAt(t, at).Elem().Set(made)
		name := reflect.New(key).Elem()
		var room [64]byte
		for n := 0; r.more(n, '}'); n++ {
			name.SetString(string(r.text(room[:])))
			if !r.take(':') {
				return
			}
			value := reflect.New(t.Elem())
			item.read(r, value.UnsafePointer())
			made.SetMapIndex(name, value.Elem())
			if made.Len() == n { // it was there before
				r.fail()
			}
		}
	}
}

func readTexts(r *reader, at unsafe.Pointer) {
	if r.isNull() {
		return
	}
	r.enter('{')
	made := map[string]string{}
	*(*map[string]string)(at) = made
	var room [64]byte
	for n := 0; r.more(n, '}'); n++ {
		name := string(r.text(room[:]))
		if !r.take(':') {
			return
		}
		if r.isNull() {
			made[name] = ""
		} else {
			made[name] = string(r.text(room[:]))
		}
		if len(made) == n { // it was there before
			r.fail()
		}
	}
}
