package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Object is one version of an object. It never changes: share it freely.
//
// Key, value and index lie in one allocation, so that an object of 2 KiB costs
// little more than its bytes:
//
//	data: key | value, revision filled in | encoded index
type Object struct {
	// Rev is the revision that wrote this version.
	Rev Revision
	// Create is the revision that created the object.
	Create Revision

	data   []byte
	keyLen uint32
	valLen uint32
	revAt  int32 // where the revision's text lies in the value; -1: nowhere
	flags  uint32

	derived atomic.Pointer[derived]
}

// derived is an object in one other representation, and what it has in others.
type derived struct {
	form  string
	bytes []byte
	next  *derived
}

// in finds a representation; nil when there is none yet.
func (d *derived) in(form string) *derived {
	for d != nil && d.form != form {
		d = d.next
	}
	return d
}

// Index is what selection needs to know of an object. The store keeps it
// beside the value and never looks into the value itself.
type Index struct {
	// Labels can be asked of an object without decoding it.
	Labels map[string]string
	// Fields are the declared fields; a snapshot finds objects by them.
	Fields map[string]string
	// Owners are the UIDs of the object's owners; a snapshot finds objects by
	// them.
	Owners []string
	// Flags mean whatever the writer says.
	Flags uint32
}

// Marked is the flag whose objects are counted: a snapshot tells how many have it
// without looking at them.
const Marked uint32 = 1 << 31

// Key is the object's key in its table.
func (o *Object) Key() string { return viewString(o.data[:o.keyLen]) }

// Value is the object as the writer gave it, with the revision filled in.
// The caller must not change it.
func (o *Object) Value() []byte {
	end := o.keyLen + o.valLen
	return o.data[o.keyLen:end:end]
}

// Derived is the object in another representation, such as protobuf: made by
// derive when that form is first asked for, and kept with the object.
// Everybody must ask for a form with the same derive, which must not ask for
// another object's; there should be few forms. The caller must not change what
// it gets.
func (o *Object) Derived(form string, derive func(*Object) ([]byte, error)) ([]byte, error) {
	if have := o.derived.Load().in(form); have != nil {
		return have.bytes, nil
	}
	m := &deriving[uint64(o.Rev)%uint64(len(deriving))]
	m.Lock()
	defer m.Unlock()
	if have := o.derived.Load().in(form); have != nil {
		return have.bytes, nil // somebody else was faster
	}
	b, err := derive(o)
	if err != nil {
		return nil, err
	}
	o.derived.Store(&derived{form: form, bytes: b, next: o.derived.Load()})
	return b, nil
}

// deriving are held while an object is derived, the one that its revision
// falls to: watchers ask for a new object all at once.
var deriving [64]sync.Mutex

// Flags are the index flags the writer gave.
func (o *Object) Flags() uint32 { return o.flags }

// Label returns the value of a label and whether the object has it.
func (o *Object) Label(key string) (string, bool) {
	for k, v := range o.Labels() {
		if k == key {
			return v, true
		}
	}
	return "", false
}

// Labels yields the object's labels, sorted by key.
func (o *Object) Labels() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		at := o.labelsAt()
		n, at := o.uvarint(at)
		for range n {
			var k, v string
			k, at = o.text(at)
			v, at = o.text(at)
			if !yield(k, v) {
				return
			}
		}
	}
}

// Field returns the value of a declared field and whether the object has it.
func (o *Object) Field(name string) (string, bool) {
	for at := range o.terms() {
		term := o.termText(at)
		if n, v, ok := strings.Cut(term[1:], "\x00"); ok && term[0] == fieldTerm && n == name {
			return v, true
		}
	}
	return "", false
}

// Fields yields the object's declared fields, sorted by name.
func (o *Object) Fields() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for at := range o.terms() {
			term := o.termText(at)
			if n, v, ok := strings.Cut(term[1:], "\x00"); ok && term[0] == fieldTerm && !yield(n, v) {
				return
			}
		}
	}
}

// Owners yields the UIDs of the object's owners.
func (o *Object) Owners() iter.Seq[string] {
	return func(yield func(string) bool) {
		for at := range o.terms() {
			if term := o.termText(at); term[0] == ownerTerm && !yield(term[1:]) {
				return
			}
		}
	}
}

// index is the encoded index, as the engine keeps it.
func (o *Object) index() []byte { return o.data[o.keyLen+o.valLen:] }

// withRevision returns the value with the text of rev in place of the text of
// the object's own revision. It is how the last state of an object that is
// gone carries the revision at which it went.
func (o *Object) withRevision(rev Revision) []byte {
	value := o.Value()
	if o.revAt < 0 {
		return value
	}
	tail := value[int(o.revAt)+decimalLen(o.Rev):]
	return slices.Concat(strconv.AppendInt(slices.Clone(value[:o.revAt]), int64(rev), 10), tail)
}

// newObject makes a version whose value still lacks the revision's text. It
// copies what it is given, into room that need not be cleared first.
func newObject(key string, rev, create Revision, value []byte, revAt int, index []byte, flags uint32) *Object {
	var digits [20]byte
	var text []byte
	before, after := value, []byte(nil)
	if revAt >= 0 {
		before, after = value[:revAt], value[revAt:]
		text = strconv.AppendInt(digits[:0], int64(rev), 10)
	}
	valLen := len(value) + len(text)
	var b strings.Builder
	b.Grow(len(key) + valLen + len(index))
	b.WriteString(key)
	b.Write(before)
	b.Write(text)
	b.Write(after)
	b.Write(index)
	return &Object{
		Rev: rev, Create: create, data: viewBytes(b.String()),
		keyLen: uint32(len(key)), valLen: uint32(valLen), revAt: int32(revAt), flags: flags,
	}
}

// storedObject makes a version from finished bytes read back from an engine.
func storedObject(key string, rev, create Revision, value []byte, revAt int, index []byte) (*Object, error) {
	flags, err := checkIndex(index)
	if err != nil {
		return nil, fmt.Errorf("object %q at revision %d: %w", key, rev, err)
	}
	if revAt >= 0 {
		var digits [20]byte
		if revAt > len(value) || !bytes.HasPrefix(value[revAt:], strconv.AppendInt(digits[:0], int64(rev), 10)) {
			return nil, fmt.Errorf("object %q at revision %d: value does not carry its revision", key, rev)
		}
	}
	o := newObject(key, rev, create, value, -1, index, flags)
	o.revAt = int32(revAt)
	return o, nil
}

func decimalLen(rev Revision) int {
	n := 1
	for rev >= 10 {
		rev /= 10
		n++
	}
	return n
}

// The encoded index:
//
//	uvarint flags
//	uvarint count, then per label:  uvarint length, key, uvarint length, value
//	uvarint count, then per term:   uvarint length, term
//
// A term is what the table's index is sorted by: 'f' name 00 value for a
// declared field, 'o' UID for an owner.
const (
	fieldTerm = 'f'
	ownerTerm = 'o'
)

var errIndex = errors.New("index data is damaged")

func fieldKey(name, value string) string { return string(fieldTerm) + name + "\x00" + value }
func ownerKey(uid string) string         { return string(ownerTerm) + uid }

func (x Index) encode() ([]byte, error) {
	size := 16
	for k, v := range x.Labels {
		size += len(k) + len(v) + 4
	}
	for k, v := range x.Fields {
		size += len(k) + len(v) + 4
	}
	for _, uid := range x.Owners {
		size += len(uid) + 3
	}
	var room [16]string // for sorting the keys of most objects
	b := binary.AppendUvarint(make([]byte, 0, size), uint64(x.Flags))
	b = binary.AppendUvarint(b, uint64(len(x.Labels)))
	for _, k := range sortedKeys(x.Labels, room[:0]) {
		b = appendText(b, k)
		b = appendText(b, x.Labels[k])
	}
	b = binary.AppendUvarint(b, uint64(len(x.Fields)+len(x.Owners)))
	for _, name := range sortedKeys(x.Fields, room[:0]) {
		if strings.Contains(name, "\x00") {
			return nil, fmt.Errorf("%w: field name %q holds a NUL byte", ErrInvalid, name)
		}
		value := x.Fields[name]
		b = binary.AppendUvarint(b, uint64(len(name)+len(value)+2))
		b = append(append(append(append(b, fieldTerm), name...), 0), value...)
	}
	for i, uid := range x.Owners {
		if slices.Contains(x.Owners[:i], uid) {
			return nil, fmt.Errorf("%w: owner %q is named twice", ErrInvalid, uid)
		}
		b = binary.AppendUvarint(b, uint64(len(uid)+1))
		b = append(append(b, ownerTerm), uid...)
	}
	return b, nil
}

func sortedKeys(m map[string]string, keys []string) []string {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// checkIndex says whether b is an encoded index and returns its flags. The
// readers of Object rely on it and check nothing themselves.
func checkIndex(b []byte) (flags uint32, err error) {
	d := decoder{b: b}
	f := d.uvarint()
	if f > 1<<32-1 {
		return 0, errIndex
	}
	for range d.count() {
		d.text()
		d.text()
	}
	for range d.count() {
		term := d.text()
		isField := strings.HasPrefix(term, string(fieldTerm)) && strings.Contains(term, "\x00")
		if !isField && !strings.HasPrefix(term, string(ownerTerm)) {
			return 0, errIndex
		}
	}
	if d.bad || len(d.b) > 0 {
		return 0, errIndex
	}
	return uint32(f), nil
}

// labelsAt is where in data the labels' count stands.
func (o *Object) labelsAt() int {
	at := int(o.keyLen + o.valLen)
	_, at = o.uvarint(at)
	return at
}

// terms yields where in data each term of the index stands.
func (o *Object) terms() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		at := o.labelsAt()
		n, at := o.uvarint(at)
		for range 2 * n {
			_, at = o.text(at)
		}
		n, at = o.uvarint(at)
		for range n {
			if !yield(uint32(at)) {
				return
			}
			_, at = o.text(at)
		}
	}
}

func (o *Object) termText(at uint32) string {
	term, _ := o.text(int(at))
	return term
}

func (o *Object) uvarint(at int) (uint64, int) {
	if c := o.data[at]; c < 0x80 {
		return uint64(c), at + 1
	}
	n, w := binary.Uvarint(o.data[at:])
	return n, at + w
}

func (o *Object) text(at int) (string, int) {
	n, at := o.uvarint(at)
	end := at + int(n)
	return viewString(o.data[at:end]), end
}

// viewString is b as a string without a copy; b must never change.
func viewString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// viewBytes is s as bytes without a copy; nobody may change them.
func viewBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
