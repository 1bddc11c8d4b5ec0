// Package codec turns bytes into objects and back, in every representation
// that the API speaks: JSON, YAML, protobuf and CBOR. Representations is the
// table of them; to speak another one is to add a row.
//
// It adds two things to upstream's serializers. One is the form in which
// objects are stored: JSON of the storage version with a hole where the
// revision goes. The other is answers that are put together from parts, so
// that an object that is read a thousand times is written down once.
package codec

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
)

// Types is what a codec asks of the kinds that it speaks of.
type Types interface {
	runtime.ObjectCreater
	runtime.ObjectTyper
	runtime.ObjectDefaulter
	runtime.ObjectConvertor
}

// Codec speaks all representations of the kinds of one scheme.
type Codec struct {
	Scheme  Types
	media   map[string]runtime.SerializerInfo
	convert runtime.ObjectConvertor
	// shape is set for kinds without a Go type, of which it has one.
	shape Shape
}

// New returns a codec for the kinds of a scheme.
func New(scheme *runtime.Scheme) *Codec {
	var more []serializer.CodecFactoryOptionsMutator
	for _, r := range Representations {
		if r.serializer != nil {
			more = append(more, serializer.WithSerializer(r.serializer))
		}
	}
	c := &Codec{Scheme: scheme, convert: converter{scheme}, media: map[string]runtime.SerializerInfo{}}
	for _, info := range serializer.NewCodecFactory(scheme, more...).SupportedMediaTypes() {
		if info.MediaType == JSON {
			info.Serializer = quickWriter{info.Serializer}
		}
		c.media[info.MediaType] = carrying(info)
	}
	return c
}

// decoder reads what a serializer reads, applies defaults and converts to a
// version.
func (c *Codec) decoder(s runtime.Decoder, origin Origin, version runtime.GroupVersioner) runtime.Decoder {
	if json := c.media[JSON]; s == json.Serializer || s == json.StrictSerializer {
		s = quick{s, c.Scheme}
	}
	if c.shape != nil {
		s = &shaper{s, c.shape, origin}
	}
	return versioning.NewCodec(nil, s, c.convert, c.Scheme, c.Scheme, c.Scheme, nil, version, "setpoint")
}

// encoder writes objects in a version.
func (c *Codec) encoder(s runtime.Encoder, version runtime.GroupVersioner) runtime.Encoder {
	return versioning.NewCodec(s, nil, c.convert, c.Scheme, c.Scheme, c.Scheme, version, nil, "setpoint")
}

// UnsupportedError says that a media type is not spoken.
type UnsupportedError struct {
	MediaType string
	// Offered are those that are; nil for all representations.
	Offered []string
}

func (e *UnsupportedError) Error() string {
	offered := e.Offered
	if offered == nil {
		offered = MediaTypes(Representations)
	}
	return "the body of the request was in an unknown format - accepted media types include: " + strings.Join(offered, ", ")
}

// Media finds the serializer for a content type; "" means JSON.
func (c *Codec) Media(contentType string) (runtime.SerializerInfo, error) {
	if contentType == "" {
		return c.media[JSON], nil
	}
	name, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return runtime.SerializerInfo{}, &UnsupportedError{MediaType: contentType}
	}
	info, ok := c.media[name]
	if !ok {
		return runtime.SerializerInfo{}, &UnsupportedError{MediaType: name}
	}
	return info, nil
}

// InputOf is Media for the body of a request.
func (c *Codec) InputOf(r *http.Request) (runtime.SerializerInfo, error) {
	return c.Media(r.Header.Get("Content-Type"))
}

// Decode reads an object as a client sends it, applies defaults and converts
// it to its internal type. The kind is that of the data, or kind where the
// data does not say. When strict, unknown and duplicate fields are an error
// that runtime.AsStrictDecodingError knows, given beside the object.
func (c *Codec) Decode(info runtime.SerializerInfo, strict bool, body []byte, kind schema.GroupVersionKind) (runtime.Object, *schema.GroupVersionKind, error) {
	s, origin := info.Serializer, FromClient
	if strict {
		s, origin = info.StrictSerializer, FromStrictClient
	}
	var into runtime.Object
	if c.shape != nil {
		// Such an object has to say itself what it is, and its version is the
		// request's or wrong, but never converted.
		into = &unstructured.Unstructured{}
	}
	return c.decoder(s, origin, runtime.InternalGroupVersioner).Decode(body, &kind, into)
}

// DecodeInto reads an object of a kind's version into obj, or returns another
// one if the data is of another kind. It applies no defaults.
func (c *Codec) DecodeInto(info runtime.SerializerInfo, body []byte, kind schema.GroupVersionKind, obj runtime.Object) (runtime.Object, error) {
	read, _, err := c.decoder(info.Serializer, FromClient, kind.GroupVersion()).Decode(body, &kind, obj)
	return read, err
}

// Internal applies defaults to an object in one of its versions, which is the
// caller's own, and converts it to its internal type.
func (c *Codec) Internal(obj runtime.Object) (runtime.Object, error) {
	c.Scheme.Default(obj)
	return c.convert.ConvertToVersion(obj, runtime.InternalGroupVersioner)
}

// Encode writes an object in one of its versions.
func (c *Codec) Encode(info runtime.SerializerInfo, obj runtime.Object, version schema.GroupVersion) ([]byte, error) {
	var b bytes.Buffer
	err := c.encoder(info.Serializer, version).Encode(obj, &b)
	return b.Bytes(), err
}

// EncodePretty is Encode for people: indented, where the format has that.
func (c *Codec) EncodePretty(info runtime.SerializerInfo, obj runtime.Object, version schema.GroupVersion) ([]byte, error) {
	if info.PrettySerializer == nil {
		return c.Encode(info, obj, version)
	}
	var b bytes.Buffer
	err := c.encoder(info.PrettySerializer, version).Encode(obj, &b)
	return b.Bytes(), err
}

// hole stands for the revision while an object is encoded. No revision looks
// like it, and it cannot come earlier in the JSON of an object: quotes inside
// texts are escaped, and what precedes the revision are the object's kind and
// names.
const (
	hole      = "setpoint-revision"
	holeField = `"resourceVersion":"` + hole + `"`
)

// EncodeStored is the form that an object is stored in: its JSON in the
// storage version, without resourceVersion's text, and where that text goes.
func (c *Codec) EncodeStored(obj runtime.Object, storage schema.GroupVersion) (value []byte, revAt int, err error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, 0, err
	}
	if c.shape != nil {
		versioned, err := c.defaulted(obj, storage)
		if err != nil {
			return nil, 0, err
		}
		return encodeUntyped(versioned, "")
	}
	was := m.GetResourceVersion()
	m.SetResourceVersion(hole)
	defer m.SetResourceVersion(was)
	versioned, err := c.defaulted(obj, storage)
	if err != nil {
		return nil, 0, err
	}
	b, err := c.Encode(c.media[JSON], versioned, storage)
	if err != nil {
		return nil, 0, err
	}
	at := bytes.Index(b, []byte(holeField))
	if at < 0 {
		return nil, 0, fmt.Errorf("encoded %T has no resourceVersion", obj)
	}
	at += len(holeField) - len(hole) - 1
	b = append(b[:at], b[at+len(hole):]...)
	return bytes.TrimSuffix(b, []byte("\n")), at, nil
}

// defaulted is an object in one of its versions, with the defaults that what
// was done to it since it was read has made room for: readers of the bytes
// apply none. The object may have them, too, then.
func (c *Codec) defaulted(obj runtime.Object, version schema.GroupVersion) (runtime.Object, error) {
	versioned, err := c.convert.ConvertToVersion(obj, version)
	if err != nil {
		return nil, err
	}
	c.Scheme.Default(versioned)
	return versioned, nil
}

// EncodeUnstored is EncodeStored for an object that keeps the revision it has.
func (c *Codec) EncodeUnstored(obj runtime.Object, storage schema.GroupVersion) ([]byte, error) {
	versioned, err := c.defaulted(obj, storage)
	if err != nil {
		return nil, err
	}
	if m, err := meta.Accessor(versioned); err == nil && c.shape != nil {
		b, _, err := encodeUntyped(versioned, m.GetResourceVersion())
		return b, err
	}
	b, err := c.Encode(c.media[JSON], versioned, storage)
	return bytes.TrimSuffix(b, []byte("\n")), err
}

// DecodeStored reads a stored object into its internal type. Defaults are
// applied: what is stored may be older than a default.
func (c *Codec) DecodeStored(value []byte, storage schema.GroupVersionKind) (runtime.Object, error) {
	obj, _, err := c.decoder(c.media[JSON].Serializer, FromStore, runtime.InternalGroupVersioner).Decode(value, &storage, nil)
	return obj, err
}

// DecodeVersioned reads stored bytes into the type of the version that they are
// stored in. Nothing is converted or filled in: what is stored is complete.
func (c *Codec) DecodeVersioned(value []byte, storage schema.GroupVersionKind) (runtime.Object, error) {
	obj, _, err := quick{c.media[JSON].Serializer, c.Scheme}.Decode(value, &storage, nil)
	return obj, err
}

// Header is what stored JSON of a kind begins with, and what items of a list
// leave out.
func Header(kind schema.GroupVersionKind) string {
	v, k := kind.ToAPIVersionAndKind()
	return fmt.Sprintf(`{"kind":%q,"apiVersion":%q,`, k, v)
}
