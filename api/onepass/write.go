package onepass

import (
	"encoding/base64"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// writer has written some JSON. Once bad is set, it is of no use.
type writer struct {
	b     []byte
	depth int
	bad   bool
}

// Append appends the JSON of what obj points to, a struct, as json.Marshal writes
// it. When it returns false, json.Marshal is to write it, or to say what is wrong
// with it, and what was appended is of no use.
func Append(b []byte, obj any) ([]byte, bool) {
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return b, false
	}
	p := planOf(v.Type().Elem())
	if p.unwritten {
		return b, false
	}
	w := writer{b: b}
	p.write(&w, v.UnsafePointer())
	return w.b, !w.bad
}

func (w *writer) null() { w.b = append(w.b, "null"...) }

// deeper says that something may be nested in what is written.
func (w *writer) deeper() bool {
	w.depth++
	w.bad = w.bad || w.depth > maxDepth
	return !w.bad
}

func (s *structure) write(w *writer, at unsafe.Pointer) {
	if !w.deeper() {
		return
	}
	w.b = append(w.b, '{')
	begun := len(w.b)
	for i := range s.fields {
		f := &s.fields[i]
		value := unsafe.Add(at, f.offset)
		if f.omits != nil && f.omits(value) {
			continue
		}
		if len(w.b) > begun {
			w.b = append(w.b, ',')
		}
		w.b = append(w.b, f.label...)
		f.of.write(w, value)
	}
	w.b = append(w.b, '}')
	w.depth--
}

// writeItself writes a value of a type that knows how to.
func writeItself(t reflect.Type) func(*writer, unsafe.Pointer) {
	return func(w *writer, at unsafe.Pointer) {
		text, err := reflect.NewAt(t, at).Interface().(json.Marshaler).MarshalJSON()
		if err != nil {
			w.bad = true
			return
		}
		w.given(text)
	}
}

// given writes JSON that somebody else has made.
func (w *writer) given(text []byte) {
	for _, c := range text {
		if c <= ' ' || c >= utf8.RuneSelf || c == '<' || c == '>' || c == '&' {
			// It may have to be written in another way.
			var err error
			if text, err = json.Marshal(json.RawMessage(text)); err != nil {
				w.bad = true
				return
			}
			w.b = append(w.b, text...)
			return
		}
	}
	r := reader{data: text}
	r.raw()
	if !r.done() {
		w.bad = true
		return
	}
	w.b = append(w.b, text...)
}

func writeString(w *writer, at unsafe.Pointer) { w.b = AppendText(w.b, *(*string)(at)) }

func writeBool(w *writer, at unsafe.Pointer) { w.b = strconv.AppendBool(w.b, *(*bool)(at)) }

func writeInt(t reflect.Type) func(*writer, unsafe.Pointer) {
	switch t.Bits() {
	case 64:
		return func(w *writer, at unsafe.Pointer) { w.b = strconv.AppendInt(w.b, *(*int64)(at), 10) }
	case 32:
		return func(w *writer, at unsafe.Pointer) { w.b = strconv.AppendInt(w.b, int64(*(*int32)(at)), 10) }
	}
	return func(w *writer, at unsafe.Pointer) {
		w.b = strconv.AppendInt(w.b, reflect.NewAt(t, at).Elem().Int(), 10)
	}
}

func writeUint(t reflect.Type) func(*writer, unsafe.Pointer) {
	return func(w *writer, at unsafe.Pointer) {
		w.b = strconv.AppendUint(w.b, reflect.NewAt(t, at).Elem().Uint(), 10)
	}
}

func writeFloat(w *writer, at unsafe.Pointer) {
	text, err := json.Marshal(*(*float64)(at))
	w.bad = w.bad || err != nil // JSON has no infinity
	w.b = append(w.b, text...)
}

func writeBytes(w *writer, at unsafe.Pointer) {
	b := *(*[]byte)(at)
	if b == nil {
		w.null()
		return
	}
	w.b = append(w.b, '"')
	w.b = base64.StdEncoding.AppendEncode(w.b, b)
	w.b = append(w.b, '"')
}

func writeSlice(item *plan, size uintptr) func(*writer, unsafe.Pointer) {
	return func(w *writer, at unsafe.Pointer) {
		s := (*slice)(at)
		if s.data == nil {
			w.null()
			return
		}
		if !w.deeper() {
			return
		}
		w.b = append(w.b, '[')
		for i := range s.len {
			if i > 0 {
				w.b = append(w.b, ',')
			}
			item.write(w, unsafe.Add(s.data, uintptr(i)*size)) //nolint:gosec // there are so many
		}
		w.b = append(w.b, ']')
		w.depth--
	}
}

// usual is how many names a map has for which room is made beforehand.
const usual = 16

func writeTexts(w *writer, at unsafe.Pointer) {
	texts := *(*map[string]string)(at)
	if texts == nil {
		w.null()
		return
	}
	var room [usual]string
	names := room[:0]
	for name := range texts {
		names = append(names, name)
	}
	slices.Sort(names)
	w.b = append(w.b, '{')
	for i, name := range names {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.b = append(AppendText(w.b, name), ':')
		w.b = AppendText(w.b, texts[name])
	}
	w.b = append(w.b, '}')
}

// isWrittenInMaps says that a map's names and values are written as they are
// elsewhere. A value in a map has no place in memory, so a method of a pointer to it is
// not called, and names may have a say of their own.
func isWrittenInMaps(t reflect.Type) bool {
	return !t.Key().Implements(textMarshaler) && isWrittenAnywhere(t.Elem())
}

// isWrittenAnywhere says that a value is written the same where it has no place in memory.
func isWrittenAnywhere(t reflect.Type) bool {
	switch {
	case t.Implements(marshaler):
		return true
	case reflect.PointerTo(t).Implements(marshaler):
		return false
	case t.Kind() != reflect.Struct:
		return true
	}
	for f := range t.Fields() {
		if !isWrittenAnywhere(f.Type) {
			return false
		}
	}
	return true
}

func writeMap(t reflect.Type, item *plan) func(*writer, unsafe.Pointer) {
	list := reflect.SliceOf(t.Elem())
	type entry struct {
		name  string
		value unsafe.Pointer
	}
	return func(w *writer, at unsafe.Pointer) {
		from := reflect.NewAt(t, at).Elem()
		if from.IsNil() {
			w.null()
			return
		}
		if !w.deeper() {
			return
		}
		var room [usual]entry
		entries := room[:0]
		values, name := reflect.MakeSlice(list, from.Len(), from.Len()), reflect.New(t.Key()).Elem()
		for iter := from.MapRange(); iter.Next(); {
			name.SetIterKey(iter)
			value := values.Index(len(entries))
			value.SetIterValue(iter)
			entries = append(entries, entry{name.String(), value.Addr().UnsafePointer()})
		}
		slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
		w.b = append(w.b, '{')
		for i, e := range entries {
			if i > 0 {
				w.b = append(w.b, ',')
			}
			w.b = append(AppendText(w.b, e.name), ':')
			item.write(w, e.value)
		}
		w.b = append(w.b, '}')
		w.depth--
	}
}

// plain are the characters that are written as they are.
var plain = func() (is [utf8.RuneSelf]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		is[c] = c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
	}
	return is
}()

// AppendText appends a text with its quotes.
func AppendText(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	begun := 0 // of what is written as it is
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if plain[c] {
				i++
				continue
			}
			b = append(append(b, s[begun:i]...), '\\')
			switch c {
			case '"', '\\':
				b = append(b, c)
			case '\b':
				b = append(b, 'b')
			case '\f':
				b = append(b, 'f')
			case '\n':
				b = append(b, 'n')
			case '\r':
				b = append(b, 'r')
			case '\t':
				b = append(b, 't')
			default:
				b = append(b, 'u', '0', '0', hex[c>>4], hex[c&0xf])
			}
			i++
			begun = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(append(b, s[begun:i]...), `\ufffd`...)
			begun = i + size
		case r == '\u2028' || r == '\u2029': // ends of lines to JavaScript
			b = append(append(b, s[begun:i]...), `\u202`...)
			b = append(b, hex[r&0xf])
			begun = i + size
		}
		i += size
	}
	return append(append(b, s[begun:]...), '"')
}

// either is what one of two is, as far as they are asked for; nil when neither is.
func either(first bool, a func(unsafe.Pointer) bool, second bool, b func(unsafe.Pointer) bool) func(unsafe.Pointer) bool {
	switch first, second := first && a != nil, second && b != nil; {
	case first && second:
		return func(at unsafe.Pointer) bool { return a(at) || b(at) }
	case first:
		return a
	case second:
		return b
	}
	return nil
}

// isEmpty says what omitempty leaves out of a type; nil for nothing.
func isEmpty(t reflect.Type) func(unsafe.Pointer) bool {
	switch t.Kind() {
	case reflect.String:
		return func(at unsafe.Pointer) bool { return *(*string)(at) == "" }
	case reflect.Bool:
		return func(at unsafe.Pointer) bool { return !*(*bool)(at) }
	case reflect.Pointer:
		return func(at unsafe.Pointer) bool { return *(*unsafe.Pointer)(at) == nil }
	case reflect.Slice:
		return func(at unsafe.Pointer) bool { return (*slice)(at).len == 0 }
	case reflect.Map:
		return func(at unsafe.Pointer) bool {
			return *(*unsafe.Pointer)(at) == nil || reflect.NewAt(t, at).Elem().Len() == 0
		}
	case reflect.Struct:
		return nil
	}
	return func(at unsafe.Pointer) bool { return reflect.NewAt(t, at).Elem().IsZero() }
}

// isZero says what omitzero leaves out of a type.
func isZero(t reflect.Type) func(unsafe.Pointer) bool {
	type zeroer interface{ IsZero() bool }
	says := reflect.TypeFor[zeroer]()
	switch {
	case t.Kind() == reflect.Pointer && t.Implements(says):
		return func(at unsafe.Pointer) bool {
			v := reflect.NewAt(t, at).Elem()
			return v.IsNil() || v.Interface().(zeroer).IsZero()
		}
	case t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(says):
		return func(at unsafe.Pointer) bool { return reflect.NewAt(t, at).Interface().(zeroer).IsZero() }
	}
	return func(at unsafe.Pointer) bool { return reflect.NewAt(t, at).Elem().IsZero() }
}
