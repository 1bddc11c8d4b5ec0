package codec

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

// cborForm has maps without kind and apiVersion for parts: items of a list as
// they are. As an answer of its own an object is the same map with two pairs
// more, behind the tag that says that it is CBOR:
//
//	d9d9f7  map(n+2)  "kind": ...  "apiVersion": ...  the part's n pairs
//
// A list is a map with an array of parts; an event is a map of name and object.
// Upstream gives no order of a map's pairs to rely on.
type cborForm struct{}

const cborMagic = "\xd9\xd9\xf7"

// Major types of items.
const (
	cborBytes = 2 << 5
	cborArray = 4 << 5
	cborMap   = 5 << 5
)

// cborHead appends the head of an item: its major type and a length.
func cborHead(b []byte, major byte, n int) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n <= 0xff:
		return append(b, major|24, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	default:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n)) //nolint:gosec // no object has as many
	}
}

// cborText appends a text. Upstream writes texts as strings of bytes.
func cborText(b []byte, text string) []byte {
	return append(cborHead(b, cborBytes, len(text)), text...)
}

// pairs takes the head off a part: how many pairs there are, and the pairs.
func pairs(part []byte) (int, []byte, error) {
	const widths = 24 // lengths from here on say in how many bytes the length is
	if len(part) == 0 || part[0]&0xe0 != cborMap {
		return 0, nil, errNoMap
	}
	n, rest := int(part[0]&0x1f), part[1:]
	if n < widths {
		return n, rest, nil
	}
	width := 1 << (n - widths)
	if n > widths+2 || len(rest) < width {
		return 0, nil, errNoMap
	}
	n = 0
	for _, b := range rest[:width] {
		n = n<<8 | int(b)
	}
	return n, rest[width:], nil
}

var errNoMap = errors.New("not a map of known length")

func cborPart(obj runtime.Object) ([]byte, error) {
	obj, at := bared(obj)
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	b, err := direct.Marshal(obj)
	if err == nil && at != nil {
		b, err = cborCarriage{}.put(b, at)
	}
	if err != nil {
		return nil, err
	}
	if _, _, err := pairs(b); err != nil {
		return nil, fmt.Errorf("%T as CBOR: %w", obj, err)
	}
	return b, nil
}

// cborKind appends the pairs that say what an object is.
func cborKind(b []byte, kind schema.GroupVersionKind) []byte {
	version, name := kind.ToAPIVersionAndKind()
	b = cborText(cborText(b, "kind"), name)
	return cborText(cborText(b, "apiVersion"), version)
}

func (cborForm) Object(room []byte, kind schema.GroupVersionKind, part []byte) []byte {
	n, rest, _ := pairs(part) // as cborPart has seen
	b := cborHead(append(room, cborMagic...), cborMap, n+2)
	return append(cborKind(b, kind), rest...)
}

func (cborForm) End() string { return "" }

func (cborForm) Measure(parts [][]byte) Measure { return Measure{Count: len(parts)} }

func (cborForm) Head(b []byte, kind schema.GroupVersionKind, m metav1.ListMeta, of Measure) []byte {
	about, _ := direct.Marshal(m) // of texts and a number
	kind.Kind += "List"
	b = cborHead(append(b, cborMagic...), cborMap, 4)
	b = append(cborText(cborKind(b, kind), "metadata"), about...)
	return cborHead(cborText(b, "items"), cborArray, of.Count)
}

func (cborForm) Items(w *bufio.Writer, _ schema.GroupVersionKind, parts [][]byte) {
	for _, part := range parts {
		_, _ = w.Write(part)
	}
}

func (cborForm) Tail(b []byte, _ metav1.ListMeta) []byte { return b }

func (cborForm) Event(b []byte, name string, object []byte) []byte {
	b = cborHead(append(b, cborMagic...), cborMap, 2)
	b = cborText(cborText(b, "type"), name)
	return append(cborText(b, "object"), object...)
}
