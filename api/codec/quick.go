package codec

import (
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/api/onepass"
)

// quick reads JSON that is of the kind that is expected, and says so, in one
// pass. Everything else is the serializer's: to read, or to say what is wrong
// with it.
type quick struct {
	runtime.Decoder
	types runtime.ObjectCreater
}

// Decode implements runtime.Decoder.
func (q quick) Decode(body []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if obj, got, ok := q.read(body, kind, into); ok {
		return obj, got, nil
	}
	return q.Decoder.Decode(body, kind, into)
}

func (q quick) read(body []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, bool) {
	if kind == nil {
		return nil, nil, false
	}
	switch into := into.(type) {
	case nil:
		obj, err := q.types.New(*kind)
		if err != nil {
			return nil, nil, false
		}
		if u, ok := obj.(*unstructured.Unstructured); ok {
			return readUntyped(body, u, kind)
		}
		if mayCarry(body) || !onepass.Read(body, obj) || obj.GetObjectKind().GroupVersionKind() != *kind {
			return nil, nil, false
		}
		got := *kind
		return obj, &got, true
	case *unstructured.Unstructured:
		return readUntyped(body, into, kind)
	}
	return nil, nil, false
}

// readUntyped reads an object without a Go type. u is not touched when it
// cannot.
func readUntyped(body []byte, u *unstructured.Unstructured, kind *schema.GroupVersionKind) (runtime.Object, *schema.GroupVersionKind, bool) {
	fields, ok := onepass.Fields(body)
	version, name := kind.ToAPIVersionAndKind()
	if !ok || fields["apiVersion"] != version || fields["kind"] != name {
		return nil, nil, false
	}
	u.Object = fields
	got := *kind
	return u, &got, true
}

// quickWriter is a serializer that writes typed objects in JSON in one pass. All
// others, and all that has to be said about an object, are the serializer's.
type quickWriter struct{ runtime.Serializer }

// Encode implements runtime.Encoder.
func (q quickWriter) Encode(obj runtime.Object, w io.Writer) error {
	room := rooms.Get().(*[]byte)
	defer rooms.Put(room)
	b, ok := onepass.Append((*room)[:0], obj)
	if cap(b) <= maxRoom {
		*room = b
	}
	if !ok {
		return q.Serializer.Encode(obj, w)
	}
	_, err := w.Write(append(b, '\n'))
	return err
}

// rooms are what objects are written into before it is known how long they are; a room
// that was needed for a large one is not kept.
var rooms = sync.Pool{New: func() any { return new([]byte) }}

const maxRoom = 64 << 10
