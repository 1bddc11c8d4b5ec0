package codec

import (
	"bufio"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/api/onepass"
)

// Media types of the API.
const (
	JSON     = runtime.ContentTypeJSON
	YAML     = runtime.ContentTypeYAML
	Protobuf = runtime.ContentTypeProtobuf
	CBOR     = runtime.ContentTypeCBOR
)

// Representation is a way to write objects down.
type Representation struct {
	MediaType string
	// Basic says that it is spoken also where no kind is: in the lists of groups
	// and by who refuses a request before its kind is known.
	Basic bool
	// Tables says that tables can be in it.
	Tables bool
	// Stream is the content type of a watch; "" when it cannot be watched.
	Stream string
	// Fields reads a body into plain values, as many as JSON has. When strict,
	// what is there twice is an error. It is nil for what cannot be read without
	// a type.
	Fields func(body []byte, strict bool) (map[string]any, error)
	// Apply is the type of a patch that applies what Fields reads; "" for none.
	Apply types.PatchType
	// Form puts answers together from parts. It is nil for what is written anew
	// for every reader.
	Form Form
	// Part makes an object's part from the object in its storage version, which
	// it may change. It is nil when the part is what is stored.
	Part func(obj runtime.Object) ([]byte, error)

	// serializer is upstream's, where it has to be asked for.
	serializer func(runtime.ObjectCreater, runtime.ObjectTyper) runtime.SerializerInfo
}

// Form puts answers together from the parts of objects. A part is an object
// written down once, without its revision's readers in mind: it is what is
// stored, or is kept beside it.
type Form interface {
	// Object is the answer that an object is: its part with the kind that it has.
	// It may be the part itself, or use room.
	Object(room []byte, kind schema.GroupVersionKind, part []byte) []byte
	// End is what an answer of one object ends with.
	End() string
	// A list of objects of a kind is its Head, its Items and its Tail. Only the
	// items depend on the objects, and on nothing else; Measure says what the head
	// has to know of them. Errors are the writer's to keep.
	Measure(parts [][]byte) Measure
	Head(b []byte, kind schema.GroupVersionKind, m metav1.ListMeta, of Measure) []byte
	Items(w *bufio.Writer, kind schema.GroupVersionKind, parts [][]byte)
	Tail(b []byte, m metav1.ListMeta) []byte
	// Event appends an event of a watch with an object, as Object or a
	// serializer has written it.
	Event(b []byte, name string, object []byte) []byte
}

// Measure is how many items a list has, and how many bytes they are written in
// where a form has to say that before.
type Measure struct{ Count, Size int }

// WriteList writes a list of objects of a kind.
func WriteList(w *bufio.Writer, form Form, kind schema.GroupVersionKind, m metav1.ListMeta, parts [][]byte) {
	_, _ = w.Write(form.Head(w.AvailableBuffer(), kind, m, form.Measure(parts)))
	form.Items(w, kind, parts)
	_, _ = w.Write(form.Tail(w.AvailableBuffer(), m))
}

// Representations are all that the API speaks, the preferred one first.
var Representations = []*Representation{
	{
		MediaType: JSON, Basic: true, Tables: true, Stream: JSON, Form: jsonForm{},
		Fields: func(body []byte, _ bool) (fields map[string]any, err error) {
			err = json.Unmarshal(body, &fields)
			return fields, err
		},
	},
	{
		MediaType: YAML, Basic: true, Tables: true, Apply: types.ApplyYAMLPatchType,
		Fields: func(body []byte, strict bool) (fields map[string]any, err error) {
			if fields, plain := onepass.YAML(body); plain {
				return fields, nil
			}
			if strict {
				err = yaml.UnmarshalStrict(body, &fields)
			} else {
				err = yaml.Unmarshal(body, &fields)
			}
			return fields, err
		},
	},
	{
		MediaType: Protobuf, Basic: true, Stream: Protobuf + streamParameter, Form: protobufForm{}, Part: protobufPart,
	},
	{
		MediaType: CBOR, Stream: runtime.ContentTypeCBORSequence, Form: cborForm{}, Part: cborPart, Apply: types.ApplyCBORPatchType,
		// What is there twice is always an error.
		Fields: func(body []byte, _ bool) (fields map[string]any, err error) {
			err = direct.Unmarshal(body, &fields)
			return fields, err
		},
		serializer: cbor.NewSerializerInfo,
	},
}

// streamParameter asks for a watch, in the name of a media type that has no
// other for streams.
const streamParameter = ";stream=watch"

// MediaTypes are the names of representations.
func MediaTypes(of []*Representation) []string {
	var names []string
	for _, r := range of {
		names = append(names, r.MediaType)
	}
	return names
}

// Basics are the representations that are spoken where no kind is.
func Basics() []*Representation {
	var basic []*Representation
	for _, r := range Representations {
		if r.Basic {
			basic = append(basic, r)
		}
	}
	return basic
}

// StreamTypes are the media types to ask for a watch with.
func StreamTypes() []string {
	var names []string
	for _, r := range Representations {
		switch r.Stream {
		case "":
		case r.MediaType:
			names = append(names, r.MediaType+streamParameter)
		default:
			names = append(names, r.Stream)
		}
	}
	return names
}

// Find returns the representation of a media type, without parameters; nil when
// there is none.
func Find(media string) *Representation {
	for _, r := range Representations {
		if r.MediaType == media {
			return r
		}
	}
	return nil
}

// Applied returns the representation that a type of patch applies; nil when it
// is no apply.
func Applied(patch types.PatchType) *Representation {
	for _, r := range Representations {
		if r.Apply == patch && patch != "" {
			return r
		}
	}
	return nil
}
