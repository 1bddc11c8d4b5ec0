package codec

import (
	"bufio"
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// protobufForm has objects' messages for parts. On the wire is an envelope that
// names the kind, around the message:
//
//	"k8s\x00"  1: {1: apiVersion, 2: kind}  2: message  3: ""  4: ""
//
// A list's message is {1: metadata, 2: item, 2: item, ...}; an event is
// {1: name, 2: {1: envelope}} behind its length in four bytes.
type protobufForm struct{}

const (
	protobufMagic = "k8s\x00"
	// ending is what follows the message in its envelope.
	ending = "\x1a\x00\x22\x00"
)

func protobufPart(obj runtime.Object) ([]byte, error) {
	obj, at := bared(obj)
	m, ok := obj.(interface{ Marshal() ([]byte, error) })
	if !ok {
		return nil, fmt.Errorf("%T has no protobuf form", obj)
	}
	b, err := m.Marshal()
	for i := 0; i < len(at) && err == nil; i++ {
		b, err = putField(b, at[i].Hops, at[i].Text)
	}
	return b, err
}

// envelope begins an envelope around a message of the given length; ending
// ends it.
func envelope(b []byte, kind schema.GroupVersionKind, message int) []byte {
	version, name := kind.ToAPIVersionAndKind()
	b = append(b, protobufMagic...)
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(2+protowire.SizeBytes(len(version))+protowire.SizeBytes(len(name))))
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, version)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendString(b, name)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(message))
}

func (protobufForm) Object(room []byte, kind schema.GroupVersionKind, part []byte) []byte {
	b := envelope(room, kind, len(part))
	return append(append(b, part...), ending...)
}

func (protobufForm) End() string { return "" }

func (protobufForm) Measure(parts [][]byte) Measure {
	of := Measure{Count: len(parts)}
	for _, part := range parts {
		of.Size += 1 + protowire.SizeBytes(len(part))
	}
	return of
}

func (protobufForm) Head(b []byte, kind schema.GroupVersionKind, m metav1.ListMeta, of Measure) []byte {
	about, _ := m.Marshal() // of texts and a number
	kind.Kind += "List"
	b = envelope(b, kind, 1+protowire.SizeBytes(len(about))+of.Size)
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	return protowire.AppendBytes(b, about)
}

func (protobufForm) Items(w *bufio.Writer, _ schema.GroupVersionKind, parts [][]byte) {
	for _, part := range parts {
		frame := protowire.AppendTag(w.AvailableBuffer(), 2, protowire.BytesType)
		_, _ = w.Write(protowire.AppendVarint(frame, uint64(len(part))))
		_, _ = w.Write(part)
	}
}

func (protobufForm) Tail(b []byte, _ metav1.ListMeta) []byte { return append(b, ending...) }

func (protobufForm) Event(b []byte, name string, object []byte) []byte {
	raw := 1 + protowire.SizeBytes(len(object))
	size := 1 + protowire.SizeBytes(len(name)) + 1 + protowire.SizeBytes(raw)
	b = binary.BigEndian.AppendUint32(b, uint32(size)) //nolint:gosec // objects are far smaller
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, name)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(raw))
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	return protowire.AppendBytes(b, object)
}
