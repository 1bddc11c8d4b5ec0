package codec_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	definitions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apitesting "k8s.io/kubernetes/pkg/api/testing"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/kinds"
)

// served are all built-in kinds that are stored, in all their versions.
func served() []spoken {
	codecs := map[*runtime.Scheme]*codec.Codec{}
	var all []spoken
	for _, r := range kinds.Builtin(kinds.Deps{}).All() {
		if r.Create == nil {
			continue
		}
		scheme := r.Scheme.(*runtime.Scheme)
		if codecs[scheme] == nil {
			codecs[scheme] = codec.New(scheme)
		}
		for _, version := range r.Versions {
			all = append(all, spoken{codecs[scheme], r.GroupVersionKind(version)})
		}
	}
	return all
}

// spoken is a kind in one of its versions, and who speaks it.
type spoken struct {
	*codec.Codec
	kind schema.GroupVersionKind
}

// filled is an object of the internal type with something in every field, and
// the defaults that leaves room for.
func (s spoken) filled(tb testing.TB, seed int64) runtime.Object {
	tb.Helper()
	obj, err := s.Scheme.New(schema.GroupVersionKind{Group: s.kind.Group, Version: runtime.APIVersionInternal, Kind: s.kind.Kind})
	if err != nil {
		tb.Fatal(err)
	}
	fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(apitesting.FuzzerFuncs, definitions.Funcs), rand.NewSource(seed), legacyscheme.Codecs).Fill(obj)
	m, err := meta.Accessor(obj)
	if err != nil {
		tb.Fatal(err)
	}
	m.SetResourceVersion("7")
	return s.trip(tb, codec.Find(codec.JSON), obj)
}

func (s spoken) media(tb testing.TB, r *codec.Representation) runtime.SerializerInfo {
	tb.Helper()
	info, err := s.Media(r.MediaType)
	if err != nil {
		tb.Fatal(err)
	}
	return info
}

// read decodes what nothing is wrong with.
func (s spoken) read(tb testing.TB, r *codec.Representation, body []byte) runtime.Object {
	tb.Helper()
	obj, kind, err := s.Decode(s.media(tb, r), true, body, schema.GroupVersionKind{})
	if err != nil {
		tb.Fatalf("%s cannot be read: %v\n%q", r.MediaType, err, body)
	}
	if kind.GroupVersion() != s.kind.GroupVersion() || strings.TrimSuffix(kind.Kind, "List") != s.kind.Kind {
		tb.Errorf("%s says that it is %v", r.MediaType, kind)
	}
	return obj
}

// trip writes an object down and reads it again.
func (s spoken) trip(tb testing.TB, r *codec.Representation, obj runtime.Object) runtime.Object {
	tb.Helper()
	body, err := s.Encode(s.media(tb, r), obj, s.kind.GroupVersion())
	if err != nil {
		tb.Fatal(err)
	}
	return s.read(tb, r, body)
}

func same(tb testing.TB, what string, want, got runtime.Object) {
	tb.Helper()
	if !equality.Semantic.DeepEqual(want, got) {
		tb.Errorf("%s (-want +got):\n%s", what, cmp.Diff(want, got))
	}
}

func TestEveryKindRoundTripsInEveryRepresentation(t *testing.T) {
	for _, s := range served() {
		t.Run(s.kind.String(), func(t *testing.T) {
			for seed := range int64(3) {
				want := s.filled(t, seed)
				for _, r := range codec.Representations {
					same(t, r.MediaType, want, s.trip(t, r, want.DeepCopyObject()))
				}
			}
		})
	}
}

// What is put together from parts is what upstream's serializers write and
// read.
func TestAnswersFromPartsAreWhatSerializersRead(t *testing.T) {
	for _, s := range served() {
		t.Run(s.kind.String(), func(t *testing.T) {
			objects := []runtime.Object{s.filled(t, 1), s.filled(t, 2), s.filled(t, 3)}
			for _, r := range codec.Representations {
				if r.Form == nil {
					continue
				}
				var parts [][]byte
				for _, obj := range objects {
					part := s.part(t, r, obj)
					parts = append(parts, part)
					whole := r.Form.Object(nil, s.kind, part)
					same(t, r.MediaType+" object", obj, s.read(t, r, append(slices.Clone(whole), r.Form.End()...)))
					name, object := event(t, s, r, r.Form.Event(nil, "ADDED", whole))
					if name != "ADDED" {
						t.Errorf("%s event is %s", r.MediaType, name)
					}
					same(t, r.MediaType+" event", obj, s.read(t, r, object))
				}
				left := int64(5)
				m := metav1.ListMeta{ResourceVersion: "9", Continue: "more", RemainingItemCount: &left}
				for n := range len(parts) + 1 {
					sameList(t, s, r, m, objects[:n], parts[:n])
				}
			}
		})
	}
}

// part is what is stored of an object, or kept with it.
func (s spoken) part(tb testing.TB, r *codec.Representation, obj runtime.Object) []byte {
	tb.Helper()
	if r.Part == nil {
		part, err := s.EncodeUnstored(obj, s.kind.GroupVersion())
		if err != nil {
			tb.Fatal(err)
		}
		return part
	}
	versioned, err := s.Scheme.ConvertToVersion(obj.DeepCopyObject(), s.kind.GroupVersion())
	if err != nil {
		tb.Fatal(err)
	}
	part, err := r.Part(versioned)
	if err != nil {
		tb.Fatal(err)
	}
	return part
}

func event(tb testing.TB, s spoken, r *codec.Representation, stream []byte) (name string, object []byte) {
	tb.Helper()
	info := s.media(tb, r)
	frames := info.StreamSerializer.NewFrameReader(io.NopCloser(bytes.NewReader(stream)))
	frame := make([]byte, len(stream))
	n, err := frames.Read(frame)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := frames.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		tb.Errorf("%s: more than an event, or %v", r.MediaType, err)
	}
	var e metav1.WatchEvent
	if _, _, err := info.StreamSerializer.Decode(frame[:n], nil, &e); err != nil {
		tb.Fatal(err)
	}
	return e.Type, e.Object.Raw
}

func sameList(tb testing.TB, s spoken, r *codec.Representation, m metav1.ListMeta, objects []runtime.Object, parts [][]byte) {
	tb.Helper()
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	codec.WriteList(w, r.Form, s.kind, m, parts)
	if err := w.Flush(); err != nil {
		tb.Fatal(err)
	}
	list := s.read(tb, r, b.Bytes())
	got, err := meta.ListAccessor(list)
	if err != nil {
		tb.Fatal(err)
	}
	if got.GetResourceVersion() != m.ResourceVersion || got.GetContinue() != m.Continue || *got.GetRemainingItemCount() != *m.RemainingItemCount {
		tb.Errorf("%s list has metadata %+v", r.MediaType, got)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		tb.Fatal(err)
	}
	if len(items) != len(objects) {
		tb.Fatalf("%s list has %d items, want %d", r.MediaType, len(items), len(objects))
	}
	for i := range items {
		same(tb, r.MediaType+" item", objects[i], items[i])
	}
}

// The bytes of CBOR and protobuf are upstream's, but for the order of what has
// none.
func TestEventsAreUpstreams(t *testing.T) {
	c := codec.New(legacyscheme.Scheme)
	for media, object := range map[string]string{codec.Protobuf: "k8s\x00\x0a\x00", codec.CBOR: "\xd9\xd9\xf7\xa0"} {
		r := codec.Find(media)
		info, err := c.Media(media)
		if err != nil {
			t.Fatal(err)
		}
		var one, want bytes.Buffer
		if err := info.StreamSerializer.Encode(&metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: []byte(object)}}, &one); err != nil {
			t.Fatal(err)
		}
		if _, err := info.StreamSerializer.NewFrameWriter(&want).Write(one.Bytes()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Bytes(), r.Form.Event(nil, "MODIFIED", []byte(object))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", media, diff)
		}
	}
}

func TestStoredObjectsRoundTrip(t *testing.T) {
	for _, s := range served() {
		want := s.filled(t, 4)
		value, at, err := s.EncodeStored(want, s.kind.GroupVersion())
		if err != nil {
			t.Fatalf("%v: %v", s.kind, err)
		}
		if !bytes.HasPrefix(value, []byte(codec.Header(s.kind))) {
			t.Errorf("%v is stored as %.80s", s.kind, value)
		}
		got, err := s.DecodeStored(slices.Insert(value, at, '7'), s.kind)
		if err != nil {
			t.Fatalf("%v: %v", s.kind, err)
		}
		same(t, s.kind.String(), want, got)
	}
}

func TestUnknownAndDuplicateFields(t *testing.T) {
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	c := codec.New(legacyscheme.Scheme)
	for _, test := range []struct {
		name, media, body string
		// lax is the error of whoever does not look closely; strict that of who
		// does, together with an object unless lax is the same.
		lax, strict string
	}{
		{"JSON", codec.JSON, `{"metadata":{"name":"a"}}`, "", ""},
		{"JSON unknown", codec.JSON, `{"metadata":{"name":"a","x":1},"y":2}`, "", `strict decoding error: unknown field "metadata.x", unknown field "y"`},
		{"JSON twice", codec.JSON, `{"metadata":{"name":"a","name":"a"}}`, "", `strict decoding error: duplicate field "metadata.name"`},
		{"YAML unknown", codec.YAML, "metadata: {name: a, x: 1}", "", `strict decoding error: unknown field "metadata.x"`},
		{"YAML twice", codec.YAML, "metadata:\n  name: a\n  name: a\n", "", "strict decoding error: yaml: unmarshal errors:\n  line 3: key \"name\" already set in map"},
		{"CBOR", codec.CBOR, "\xa1\x68metadata\xa1\x64name\x61a", "", ""},
		{"CBOR unknown", codec.CBOR, "\xa2\x68metadata\xa1\x64name\x61a\x61y\x02", "", "strict decoding error: cbor: found unknown field at map element index 1"},
		{
			"CBOR twice", codec.CBOR, "\xa1\x68metadata\xa2\x64name\x61a\x64name\x61a",
			`cbor: found duplicate map key "name" at map element index 1`, `cbor: found duplicate map key "name" at map element index 1`,
		},
		// Protobuf drops what it does not know.
		{"protobuf unknown", codec.Protobuf, "k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x08\x0a\x03\x0a\x01a\x98\x06\x01", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			info, err := c.Media(test.media)
			if err != nil {
				t.Fatal(err)
			}
			for strict, want := range map[bool]string{false: test.lax, true: test.strict} {
				obj, _, err := c.Decode(info, strict, []byte(test.body), kind)
				if got := text(err); got != want {
					t.Errorf("strict %v: error %q, want %q", strict, got, want)
				}
				_, reported := runtime.AsStrictDecodingError(err)
				if given := obj != nil; given != (err == nil || reported) {
					t.Errorf("strict %v: object %v with error %v", strict, obj, err)
				} else if m, err := meta.Accessor(obj); given && (err != nil || m.GetName() != "a") {
					t.Errorf("strict %v: got %v", strict, obj)
				}
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestWrongMediaTypesAreRefused(t *testing.T) {
	c := codec.New(legacyscheme.Scheme)
	for contentType, want := range map[string]string{
		"": codec.JSON, "application/json": codec.JSON, "application/json; charset=utf-8": codec.JSON, "application/yaml": codec.YAML,
		"Application/CBOR": codec.CBOR, "application/vnd.kubernetes.protobuf": codec.Protobuf,
		"application/cbor-seq": "", "text/plain": "", "application/*": "", "*/*": "", "json": "", ";": "", "application/json;stream": "", "application/apply-patch+cbor": "",
	} {
		info, err := c.InputOf(&http.Request{Header: http.Header{"Content-Type": {contentType}}})
		unsupported, is := errors.AsType[*codec.UnsupportedError](err)
		switch {
		case want != "" && (err != nil || info.MediaType != want):
			t.Errorf("%q is %s, %v; want %s", contentType, info.MediaType, err, want)
		case want == "" && !is:
			t.Errorf("%q is %s, %v; want an UnsupportedError", contentType, info.MediaType, err)
		case want == "" && !strings.HasSuffix(unsupported.Error(), "application/json, application/yaml, application/vnd.kubernetes.protobuf, application/cbor"):
			t.Errorf("%q: %v", contentType, err)
		}
	}
}

func TestTheTable(t *testing.T) {
	want := []string{"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch", "application/cbor-seq"}
	if diff := cmp.Diff(want, codec.StreamTypes()); diff != "" {
		t.Errorf("streams (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{codec.JSON, codec.YAML, codec.Protobuf}, codec.MediaTypes(codec.Basics())); diff != "" {
		t.Errorf("basics (-want +got):\n%s", diff)
	}
	for patch, want := range map[types.PatchType]string{
		types.ApplyYAMLPatchType: codec.YAML, types.ApplyCBORPatchType: codec.CBOR, types.MergePatchType: "", "": "", "x": "",
	} {
		switch r := codec.Applied(patch); {
		case r == nil && want != "", r != nil && r.MediaType != want:
			t.Errorf("%q applies %v, want %q", patch, r, want)
		}
	}
	upstream := serializer.NewCodecFactory(legacyscheme.Scheme).SupportedMediaTypes()
	for i, info := range upstream {
		if codec.Representations[i].MediaType != info.MediaType {
			t.Errorf("row %d is %s, upstream's is %s", i, codec.Representations[i].MediaType, info.MediaType)
		}
	}
}
