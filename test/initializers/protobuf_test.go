package initializers_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

const protobufType = "application/vnd.kubernetes.protobuf"

var magic = []byte("k8s\x00")

func isProtobuf(body []byte) bool { return bytes.HasPrefix(body, magic) }

// Where the field is that today's Go types do not have.
const (
	metadataField     protowire.Number = 1  // of every object
	itemsField        protowire.Number = 2  // of every list
	initializersField protowire.Number = 16 // of ObjectMeta
	pendingField      protowire.Number = 1  // of Initializers
	resultField       protowire.Number = 2
	nameField         protowire.Number = 1 // of Initializer
)

// templateOf is where a workload has the metadata of its pods.
func templateOf(kind string) []protowire.Number {
	const spec = 2
	template := protowire.Number(3)
	if kind == "Job" {
		template = 6
	}
	return []protowire.Number{spec, template, metadataField}
}

// message is a Go type that is written in protobuf.
type message interface {
	runtime.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// newMessage is an empty object of a kind; nil for kinds that are JSON alone.
func newMessage(version, kind string) message {
	made, err := scheme.Scheme.New(schema.FromAPIVersionAndKind(version, kind))
	if err != nil {
		return nil
	}
	m, _ := made.(message)
	return m
}

// toProtobuf is an object in protobuf, with its initializers and those of its
// template in the field that Kubernetes 1.7 to 1.15 had them in; nil for kinds that are
// JSON alone.
func toProtobuf(t *testing.T, text []byte) []byte {
	t.Helper()
	type metadata struct {
		Initializers *struct {
			Pending []struct{ Name string }
			Result  *metav1.Status
		}
	}
	var of struct {
		APIVersion, Kind string
		Metadata         metadata
		Spec             struct {
			Template struct{ Metadata metadata }
		}
	}
	if err := json.Unmarshal(text, &of); err != nil {
		t.Fatal(err)
	}
	obj := newMessage(of.APIVersion, of.Kind)
	if obj == nil {
		return nil
	}
	if err := json.Unmarshal(text, obj); err != nil {
		t.Fatal(err)
	}
	raw, err := obj.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	add := func(m metadata, path ...protowire.Number) {
		if m.Initializers == nil {
			return
		}
		var field []byte
		for _, p := range m.Initializers.Pending {
			field = appendField(field, pendingField, appendField(nil, nameField, []byte(p.Name)))
		}
		if r := m.Initializers.Result; r != nil {
			status, err := r.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			field = appendField(field, resultField, status)
		}
		raw = insert(t, raw, path, appendField(nil, initializersField, field))
	}
	add(of.Metadata, metadataField)
	add(of.Spec.Template.Metadata, templateOf(of.Kind)...)
	wrapped := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: of.APIVersion, Kind: of.Kind}, Raw: raw}
	body, err := wrapped.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(slices.Clone(magic), body...)
}

func appendField(to []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
}

// insert puts a field at the end of the message that a path of fields leads to.
func insert(t failer, raw []byte, path []protowire.Number, field []byte) []byte {
	if len(path) == 0 {
		return append(slices.Clone(raw), field...)
	}
	var out []byte
	fields(t, raw, func(number protowire.Number, value, whole []byte) {
		if number == path[0] {
			whole = appendField(nil, number, insert(t, value, path[1:], field))
		}
		out = append(out, whole...)
	})
	return out
}

// fields tells of the fields of a message, with their bytes where that is what
// they are.
func fields(t failer, message []byte, tell func(number protowire.Number, value, whole []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			t.Errorf("%v", protowire.ParseError(n))
			return
		}
		m := protowire.ConsumeFieldValue(number, kind, message[n:])
		if m < 0 {
			t.Errorf("%v", protowire.ParseError(m))
			return
		}
		var value []byte
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message[n:])
		}
		tell(number, value, message[:n+m])
		message = message[n+m:]
	}
}

// fromProtobuf is what came in protobuf, as it would be in JSON.
func fromProtobuf(t failer, body []byte) object {
	var wrapped runtime.Unknown
	if err := wrapped.Unmarshal(body[len(magic):]); err != nil {
		t.Errorf("%v", err)
		return nil
	}
	obj := objectOf(t, wrapped.APIVersion, wrapped.Kind, wrapped.Raw)
	itemKind, isList := strings.CutSuffix(wrapped.Kind, "List")
	if !isList {
		return obj
	}
	items := []any{}
	fields(t, wrapped.Raw, func(number protowire.Number, item, _ []byte) {
		if number == itemsField {
			items = append(items, objectOf(t, wrapped.APIVersion, itemKind, item))
		}
	})
	obj["items"] = items
	return obj
}

// objectOf is an object of a kind, as it would be in JSON.
func objectOf(t failer, version, kind string, raw []byte) object {
	m := newMessage(version, kind)
	if m == nil {
		t.Errorf("an answer in protobuf of kind %s %s", version, kind)
		return nil
	}
	if err := m.Unmarshal(raw); err != nil {
		t.Errorf("%v", err)
		return nil
	}
	obj := inJSONOf(t, m)
	obj["apiVersion"], obj["kind"] = version, kind
	fields(t, raw, func(number protowire.Number, metadata, _ []byte) {
		if number != metadataField || metadata == nil {
			return
		}
		fields(t, metadata, func(number protowire.Number, list, _ []byte) {
			if number == initializersField {
				obj["metadata"].(object)["initializers"] = initializersOf(t, list)
			}
		})
	})
	return obj
}

// inJSONOf is a Go value as it would be in JSON.
func inJSONOf(t failer, value any) object {
	var obj object
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &obj)
	}
	if err != nil {
		t.Errorf("%v", err)
	}
	return obj
}

func initializersOf(t failer, raw []byte) object {
	var names []string
	var result any
	fields(t, raw, func(number protowire.Number, value, _ []byte) {
		switch number {
		case pendingField:
			fields(t, value, func(_ protowire.Number, name, _ []byte) { names = append(names, string(name)) })
		case resultField:
			result = objectOf(t, "v1", "Status", value)
		}
	})
	list := pending(names...)
	if result != nil {
		list["result"] = result
	}
	return list
}

// nextInProtobuf is the next event of a stream in protobuf: a length of four
// bytes, and an event.
func nextInProtobuf(t failer, in *bufio.Reader) (event, error) {
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return event{}, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(in, frame); err != nil {
		return event{}, err
	}
	var e metav1.WatchEvent
	if err := e.Unmarshal(frame); err != nil {
		t.Errorf("event: %v", err)
		return event{}, io.EOF
	}
	return event{e.Type, fromProtobuf(t, e.Object.Raw)}, nil
}
