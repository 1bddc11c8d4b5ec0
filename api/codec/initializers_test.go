package codec_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metainternalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/api/initializers"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// waiting is what an object waits for in these tests.
func waiting() *initializers.Initializers {
	return &initializers.Initializers{
		Pending: []initializers.Initializer{{Name: "a.example.org"}, {Name: "<b>.example.org"}},
		Result:  &metav1.Status{Status: metav1.StatusFailure, Code: 418, Message: `"no"`, ListMeta: metav1.ListMeta{ResourceVersion: "setpoint-revision"}},
	}
}

func carry(tb testing.TB, obj runtime.Object, i *initializers.Initializers) {
	tb.Helper()
	if err := initializers.Set(obj, i); err != nil {
		tb.Fatal(err)
	}
}

// TestEveryKindKeepsItsInitializers is over all kinds, representations and
// forms, with templates where there are some.
func TestEveryKindKeepsItsInitializers(t *testing.T) {
	templates := 0
	for _, s := range served() {
		t.Run(s.kind.String(), func(t *testing.T) {
			want := s.filled(t, 1)
			carry(t, want, waiting())
			for _, p := range initializers.Places(want)[1:] {
				p.Put(want, `{"pending":[{"name":"in.the.template"}]}`)
				templates++
			}
			check := func(what string, r *codec.Representation, body []byte) {
				t.Helper()
				if bytes.Contains(body, []byte(initializers.Carried)) {
					t.Errorf("%s tells how it is carried: %q", what, body)
				}
				same(t, what, want, s.read(t, r, body))
			}
			for _, r := range codec.Representations {
				info := s.media(t, r)
				body, err := s.Encode(info, want, s.kind.GroupVersion())
				if err != nil {
					t.Fatal(err)
				}
				check(r.MediaType, r, body)
				if body, err = s.EncodePretty(info, want, s.kind.GroupVersion()); err != nil {
					t.Fatal(err)
				}
				if r.MediaType == codec.JSON { // what is kept as it is has been indented, too
					var plain bytes.Buffer
					if err := json.Compact(&plain, body); err != nil {
						t.Fatal(err)
					}
					body = plain.Bytes()
				}
				check(r.MediaType+" pretty", r, body)
				if r.Form != nil {
					check(r.MediaType+" part", r, r.Form.Object(nil, s.kind, s.part(t, r, want)))
				}
			}
			value, at, err := s.EncodeStored(want, s.kind.GroupVersion())
			if err != nil {
				t.Fatal(err)
			}
			check("stored", codec.Find(codec.JSON), bytes.Join([][]byte{value[:at], value[at:]}, []byte("7")))
		})
	}
	if templates != 8 {
		t.Errorf("%d kinds have templates", templates)
	}
}

// TestTheFieldIsWhereItWas reads what is written without our types.
func TestTheFieldIsWhereItWas(t *testing.T) {
	c := codec.New(legacyscheme.Scheme)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	carry(t, d, waiting())
	initializers.Places(d)[1].Put(d, `{"pending":[]}`)
	list := &appsv1.DeploymentList{Items: []appsv1.Deployment{{}, *d}}
	table := &metav1.Table{Rows: []metav1.TableRow{{}, {Object: runtime.RawExtension{Object: d}}}}
	metas := codec.New(metainternalscheme.Scheme)
	partials := &metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{{}, {ObjectMeta: d.ObjectMeta}}}

	text, err := json.Marshal(waiting())
	if err != nil {
		t.Fatal(err)
	}
	var want any
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	readers := map[string]func([]byte, any) error{
		codec.JSON: json.Unmarshal,
		codec.YAML: func(b []byte, into any) error { return yaml.Unmarshal(b, into) },
		codec.CBOR: direct.Unmarshal,
	}
	for name, e := range map[string]struct {
		speaks *codec.Codec
		obj    runtime.Object
		path   []string
	}{
		"object":   {c, d, nil},
		"list":     {c, list, []string{"items", "1"}},
		"table":    {metas, table, []string{"rows", "1", "object"}},
		"metadata": {metas, partials, []string{"items", "1"}},
	} {
		for media, read := range readers {
			t.Run(name+" "+media, func(t *testing.T) {
				info, err := e.speaks.Media(media)
				if err != nil {
					t.Fatal(err)
				}
				gv := appsv1.SchemeGroupVersion
				if e.speaks == metas {
					gv = metav1.SchemeGroupVersion
				}
				b, err := e.speaks.Encode(info, e.obj, gv)
				if err != nil {
					t.Fatal(err)
				}
				var got any
				if err := read(b, &got); err != nil {
					t.Fatal(err)
				}
				at := func(path ...string) any {
					v := got
					for _, step := range append(append([]string(nil), e.path...), path...) {
						switch in := v.(type) {
						case map[string]any:
							v = in[step]
						case []any:
							v = in[int(step[0]-'0')]
						}
					}
					return v
				}
				numbers := func(v any) string { return fmt.Sprint(v) } // 418 is of another type in each
				if got := at("metadata", "initializers"); numbers(got) != numbers(want) {
					t.Errorf("want %v, got %v", want, got)
				}
				if name != "metadata" {
					if got := fmt.Sprint(at("spec", "template", "metadata", "initializers")); got != "map[pending:[]]" {
						t.Errorf("the template has %v", got)
					}
				}
				if bytes.Contains(b, []byte(initializers.Carried)) {
					t.Errorf("it is told how it is carried: %q", b)
				}
			})
		}
	}
}

// TestProtobufBytes are those of Kubernetes 1.9.
func TestProtobufBytes(t *testing.T) {
	s := spoken{codec.New(legacyscheme.Scheme), podKind}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "x", Finalizers: []string{"f/g"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}}
	bare, err := pod.ObjectMeta.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	carry(t, pod, &initializers.Initializers{Pending: []initializers.Initializer{{Name: "a.b.c"}}})
	body, err := s.Encode(s.media(t, codec.Find(codec.Protobuf)), pod, podKind.GroupVersion())
	if err != nil {
		t.Fatal(err)
	}
	// Field 16 after the finalizers, which are 14, and before managedFields, 17.
	const field = "\x82\x01\x09\x0a\x07\x0a\x05a.b.c"
	at := bytes.Index(bare, []byte("\x8a\x01"))
	want := string(bare[:at]) + field + string(bare[at:])
	if !strings.Contains(string(body), want) {
		t.Errorf("%q\nis not in\n%q", want, body)
	}
}

func TestWhatClientsSend(t *testing.T) {
	s := spoken{codec.New(legacyscheme.Scheme), podKind}
	some := &initializers.Initializers{Pending: []initializers.Initializer{{Name: "a.b.c"}}}
	for name, e := range map[string]struct {
		metadata string
		want     *initializers.Initializers
		wrong    string // unknown, when strict
		err      string
	}{
		"nothing":              {metadata: `{}`},
		"null":                 {metadata: `{"initializers":null}`, want: &initializers.Initializers{}},
		"empty":                {metadata: `{"initializers":{}}`, want: &initializers.Initializers{}},
		"empty list":           {metadata: `{"initializers":{"pending":[]}}`, want: &initializers.Initializers{Pending: []initializers.Initializer{}}},
		"one":                  {metadata: `{"initializers":{"pending":[{"name":"a.b.c"}]}}`, want: some},
		"in other letters":     {metadata: `{"\u0069nitializers":{"pending":[{"name":"a.b.c"}]}}`, want: some},
		"in other case":        {metadata: `{"Initializers":{"pending":[{"name":"a.b.c"}]}}`, wrong: `unknown field "metadata.Initializers"`},
		"unknown within":       {metadata: `{"initializers":{"pending":[{"name":"a.b.c","x":1}],"y":2}}`, want: some, wrong: `unknown field "metadata.initializers.pending[0].x", unknown field "metadata.initializers.y"`},
		"unknown beside":       {metadata: `{"initializers":{"pending":[{"name":"a.b.c"}]},"z":1}`, want: some, wrong: `unknown field "metadata.z"`},
		"of the wrong form":    {metadata: `{"initializers":"a.b.c"}`, err: "metadata.initializers: json: cannot unmarshal string"},
		"a list":               {metadata: `{"initializers":[{"name":"a.b.c"}]}`, err: "metadata.initializers: json: cannot unmarshal array"},
		"the annotation":       {metadata: `{"annotations":{"initializers.setpoint.dev/carried":"{}"}}`},
		"the annotation, also": {metadata: `{"annotations":{"initializers.setpoint.dev/\u0063arried":"{}"},"initializers":{"pending":[{"name":"a.b.c"}]}}`, want: some},
	} {
		for _, r := range codec.Representations {
			if r.MediaType == codec.Protobuf {
				continue
			}
			t.Run(name+" "+r.MediaType, func(t *testing.T) {
				body := []byte(`{"apiVersion":"v1","kind":"Pod","metadata":` + e.metadata + `}`)
				if r.MediaType == codec.CBOR {
					var v any
					if err := json.Unmarshal(body, &v); err != nil {
						t.Fatal(err)
					}
					var err error
					if body, err = direct.Marshal(v); err != nil {
						t.Fatal(err)
					}
				}
				for _, strict := range []bool{false, true} {
					obj, _, err := s.Decode(s.media(t, r), strict, body, podKind)
					if e.err != "" {
						if err == nil || !strings.Contains(err.Error(), e.err) {
							t.Errorf("error is %v", err)
						}
						continue
					}
					problems, is := runtime.AsStrictDecodingError(err)
					if err != nil && !is {
						t.Fatal(err)
					}
					if (e.wrong != "" && strict) != is {
						t.Errorf("strict %t: %v", strict, err)
					}
					if is && r.MediaType != codec.CBOR && !strings.HasSuffix(problems.Error(), e.wrong) {
						t.Errorf("strict %t: %v, not %s", strict, problems, e.wrong)
					}
					got, err := initializers.Of(obj)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(e.want, got); diff != "" {
						t.Errorf("strict %t: want, got:\n%s", strict, diff)
					}
				}
			})
		}
	}
	t.Run("the annotation in protobuf", func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{initializers.Carried: "{}"}}}
		raw, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		r := codec.Find(codec.Protobuf)
		body := r.Form.Object(nil, podKind, raw)
		if got := s.read(t, r, body).(*core.Pod); got.Annotations != nil {
			t.Errorf("annotations are %v", got.Annotations)
		}
	})
}

// TestObjectsWithoutATypeAreLifted is what definitions' kinds do.
func TestObjectsWithoutATypeAreLifted(t *testing.T) {
	for name, e := range map[string]struct {
		metadata, want string
		unknown        string
		err            bool
	}{
		"nothing":        {metadata: `{"name":"x"}`, want: `{"name":"x"}`},
		"null":           {metadata: `{"initializers":null}`, want: `{"initializers":null}`},
		"some":           {metadata: `{"initializers":{"pending":[{"name":"a.b.c"}]}}`, want: `{"initializers":{"pending":[{"name":"a.b.c"}]}}`},
		"unknown":        {metadata: `{"initializers":{"pending":[],"x":1}}`, want: `{"initializers":{"pending":[]}}`, unknown: `[unknown field "metadata.initializers.x"]`},
		"wrong":          {metadata: `{"initializers":1}`, err: true},
		"the annotation": {metadata: `{"annotations":{"a":"b","initializers.setpoint.dev/carried":"{}"}}`, want: `{"annotations":{"a":"b"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			if err := json.Unmarshal([]byte(`{"apiVersion":"example.org/v1","kind":"X","metadata":`+e.metadata+`}`), u); err != nil {
				t.Fatal(err)
			}
			put, unknown, err := initializers.Lift(u)
			if (err != nil) != e.err {
				t.Fatal(err)
			}
			if e.err {
				return
			}
			if len(unknown) > 0 && fmt.Sprint(unknown) != e.unknown {
				t.Errorf("unknown are %v", unknown)
			}
			if _, there, _ := unstructured.NestedFieldNoCopy(u.Object, "metadata", "initializers"); there {
				t.Error("the field is still there")
			}
			put()
			got, err := json.Marshal(u.Object["metadata"])
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != e.want {
				t.Errorf("want %s, got %s", e.want, got)
			}
		})
	}
}

// BenchmarkOrdinary is what an object costs that has nothing to do with
// initializers.
func BenchmarkOrdinary(b *testing.B) {
	s := spoken{codec.New(legacyscheme.Scheme), podKind}
	pod := s.filled(b, 1)
	for _, r := range codec.Representations {
		info := s.media(b, r)
		body, err := s.Encode(info, pod, podKind.GroupVersion())
		if err != nil {
			b.Fatal(err)
		}
		b.Run("decode "+r.MediaType, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := s.Decode(info, false, body, podKind); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("encode "+r.MediaType, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Encode(info, pod, podKind.GroupVersion()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
