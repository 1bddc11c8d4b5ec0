package rest

import (
	"fmt"
	"net/http"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/store"
)

// Protobuf on the wire is an envelope that names the kind, around the message
// of the object:
//
//	"k8s\x00"  1: {1: apiVersion, 2: kind}  2: message  3: ""  4: ""
//
// and a list's message is {1: metadata, 2: item, 2: item, ...}. The message of
// a stored object is made once and kept with it, so that an answer is put
// together from ready-made parts.
const protobufMagic = "k8s\x00"

// asStoredProtobuf says that the answer's objects are messages kept with what
// is stored.
func (c *call) asStoredProtobuf() bool {
	return c.out.media() == codec.Protobuf && c.out.as == "" && c.groupVersion() == c.resource.Storage && !c.scales()
}

// message is the protobuf message of a stored object.
func (c *call) message(o *store.Object) ([]byte, error) {
	return o.Derived(func(o *store.Object) ([]byte, error) {
		obj, err := c.stored(o)
		if err != nil {
			return nil, err
		}
		versioned, err := c.resource.Scheme.ConvertToVersion(obj, c.resource.Storage)
		if err != nil {
			return nil, err
		}
		m, ok := versioned.(interface{ Marshal() ([]byte, error) })
		if !ok {
			return nil, fmt.Errorf("%T has no protobuf form", versioned)
		}
		return m.Marshal()
	})
}

// envelope begins an envelope around a message of the given length; ending
// ends it.
func envelope(kind schema.GroupVersionKind, message int) []byte {
	version, name := kind.ToAPIVersionAndKind()
	var t []byte
	t = protowire.AppendTag(t, 1, protowire.BytesType)
	t = protowire.AppendString(t, version)
	t = protowire.AppendTag(t, 2, protowire.BytesType)
	t = protowire.AppendString(t, name)
	b := []byte(protobufMagic)
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendBytes(b, t)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(message))
}

const ending = "\x1a\x00\x22\x00"

// encodeProtobuf is an object's message in its envelope.
func (c *call) encodeProtobuf(o *store.Object) ([]byte, error) {
	message, err := c.message(o)
	if err != nil {
		return nil, err
	}
	b := envelope(c.kind, len(message))
	return append(append(b, message...), ending...), nil
}

// writeProtobufList puts a list together from its items' messages.
func (c *call) writeProtobufList(p *page) error {
	m := metav1.ListMeta{ResourceVersion: strconv.FormatInt(int64(p.rev), 10), Continue: p.next, RemainingItemCount: p.remaining}
	about, err := m.Marshal()
	if err != nil {
		return err
	}
	items := make([][]byte, len(p.objects))
	size := 1 + protowire.SizeBytes(len(about))
	for i, o := range p.objects {
		if items[i], err = c.message(o); err != nil {
			return err
		}
		size += 1 + protowire.SizeBytes(len(items[i]))
	}
	kind := c.kind
	kind.Kind += "List"
	w, done := c.open(http.StatusOK, size)
	defer done()
	head := envelope(kind, size)
	head = protowire.AppendTag(head, 1, protowire.BytesType)
	out := buffered(w)
	_, _ = out.Write(protowire.AppendBytes(head, about))
	var frame [16]byte
	for _, item := range items {
		f := protowire.AppendVarint(protowire.AppendTag(frame[:0], 2, protowire.BytesType), uint64(len(item)))
		_, _ = out.Write(f)
		_, _ = out.Write(item)
	}
	_, _ = out.WriteString(ending)
	_ = out.Flush() // errors mean that the client has gone
	return nil
}
