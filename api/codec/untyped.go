package codec

import (
	"bufio"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"

	"setpoint.dev/setpoint/api/onepass"
)

// Shape is what an object without a Go type has instead of one.
type Shape interface {
	// Coerce brings an object that was read into its shape. It returns the
	// paths of fields that it does not know, where a client wants to hear of
	// them.
	Coerce(u *unstructured.Unstructured, from Origin) (unknown []string, err error)
}

// Origin is where an object comes from that is brought into shape.
type Origin int

// Origins.
const (
	FromClient       Origin = iota
	FromStrictClient        // wants to hear of unknown fields
	FromStore               // may be older than its shape: what does not fit is dropped
	FromConversion
)

// NewUntyped returns a codec for a kind without a Go type, whose objects are
// *unstructured.Unstructured. Protobuf is spoken of nothing but its metadata.
func NewUntyped(types Types, shape Shape) *Codec {
	text := func(o kjson.SerializerOptions) runtime.Serializer {
		return kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, types, types, o)
	}
	return &Codec{Scheme: types, convert: types, shape: shape, media: map[string]runtime.SerializerInfo{
		JSON: {
			MediaType: JSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
			Serializer: text(kjson.SerializerOptions{}), PrettySerializer: text(kjson.SerializerOptions{Pretty: true}),
			StrictSerializer: text(kjson.SerializerOptions{Strict: true}),
		},
		YAML: {
			MediaType: YAML, MediaTypeType: "application", MediaTypeSubType: "yaml", EncodesAsText: true,
			Serializer: text(kjson.SerializerOptions{Yaml: true}), StrictSerializer: text(kjson.SerializerOptions{Yaml: true, Strict: true}),
		},
		Protobuf: {
			MediaType: Protobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf",
			Serializer: protobuf.NewSerializer(types, types), StrictSerializer: protobuf.NewSerializer(types, types),
		},
		CBOR: cbor.NewSerializerInfo(types, types),
	}}
}

// DecodeKept is DecodeStored for an object without a Go type that was stored by
// the rules of now: it is in shape, and has its defaults.
func (c *Codec) DecodeKept(value []byte, storage schema.GroupVersionKind) (runtime.Object, error) {
	read := versioning.NewCodec(nil, quick{c.media[JSON].Serializer, c.Scheme}, c.Scheme, c.Scheme, c.Scheme, nil, nil, runtime.InternalGroupVersioner, "setpoint")
	obj, _, err := read.Decode(value, &storage, nil)
	return obj, err
}

// shaper brings what a serializer reads into shape.
type shaper struct {
	runtime.Decoder
	shape  Shape
	origin Origin
}

// Decode implements runtime.Decoder.
func (s *shaper) Decode(body []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, got, err := s.Decoder.Decode(body, kind, into)
	var found []error
	if err != nil {
		strict, is := runtime.AsStrictDecodingError(err)
		if !is || obj == nil {
			return nil, got, err
		}
		found = strict.Errors()
	}
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, got, err
	}
	unknown, err := s.shape.Coerce(u, s.origin)
	if err != nil {
		return nil, got, err
	}
	for _, path := range unknown {
		found = append(found, fmt.Errorf(`unknown field "%s"`, path))
	}
	if len(found) > 0 {
		return obj, got, runtime.NewStrictDecodingError(found)
	}
	return obj, got, nil
}

// encodeUntyped is the form that an object without a Go type is stored in. The
// revision's text comes before everything that a client may choose, so that
// its place is known; with none given, it is left open.
//
//	{"apiVersion":...,"kind":...,"metadata":{"resourceVersion":"","name":...},"spec":...}
func encodeUntyped(obj runtime.Object, revision string) (value []byte, revAt int, err error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, 0, fmt.Errorf("%T is no object without a type", obj)
	}
	about, _ := u.Object["metadata"].(map[string]any)
	about = maps.Clone(about)
	delete(about, "resourceVersion")
	b := make([]byte, 0, untypedSize)
	b = append(b, `{"apiVersion":`...)
	b = onepass.AppendText(b, u.GetAPIVersion())
	b = onepass.AppendText(append(b, `,"kind":`...), u.GetKind())
	b = append(b, `,"metadata":{"resourceVersion":"`...)
	revAt = len(b)
	b = append(append(b, revision...), '"')
	if len(about) > 0 {
		at := len(b) // a comma takes the place of what opens the rest of the metadata
		if b, err = appendValue(b, about); err != nil {
			return nil, 0, err
		}
		b[at] = ','
	} else {
		b = append(b, '}')
	}
	for _, name := range slices.Sorted(maps.Keys(u.Object)) {
		if name == "apiVersion" || name == "kind" || name == "metadata" {
			continue
		}
		b = onepass.AppendText(append(b, ','), name)
		if b, err = appendValue(append(b, ':'), u.Object[name]); err != nil {
			return nil, 0, err
		}
	}
	return append(b, '}'), revAt, nil
}

// untypedSize is what most objects without a type fit in.
const untypedSize = 4 << 10

// Reshape brings an object that somebody has changed back into its shape. What
// has a Go type has that by itself.
func (c *Codec) Reshape(obj runtime.Object) error {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || c.shape == nil {
		return nil
	}
	_, err := c.shape.Coerce(u, FromConversion)
	return err
}

// UntypedJSON puts JSON answers together from stored objects that have no Go
// type. Compat: items of such a list say what they are, and a list that does not
// continue says so.
type UntypedJSON struct {
	jsonForm
	// ListKind is the kind of lists.
	ListKind string
}

// Head implements Form.
func (f UntypedJSON) Head(b []byte, kind schema.GroupVersionKind, _ metav1.ListMeta, _ Measure) []byte {
	version, _ := kind.ToAPIVersionAndKind()
	return fmt.Appendf(b, `{"apiVersion":%q,"items":[`, version)
}

// Items implements Form.
func (f UntypedJSON) Items(w *bufio.Writer, _ schema.GroupVersionKind, parts [][]byte) {
	for i, part := range parts {
		if i > 0 {
			_ = w.WriteByte(',')
		}
		_, _ = w.Write(part)
	}
}

// Tail implements Form.
func (f UntypedJSON) Tail(b []byte, m metav1.ListMeta) []byte {
	b = fmt.Appendf(b, `],"kind":%q,"metadata":{"continue":%q,`, f.ListKind, m.Continue)
	if m.RemainingItemCount != nil {
		b = fmt.Appendf(b, `"remainingItemCount":%d,`, *m.RemainingItemCount)
	}
	return fmt.Appendf(b, `"resourceVersion":%q}}`+"\n", m.ResourceVersion)
}
