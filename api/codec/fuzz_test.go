package codec_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"setpoint.dev/setpoint/api/codec"
)

// fuzzBodies reads bytes as a body of any built-in kind. Nothing panics, and
// what can be read can be written down, is read again, and written the same.
func fuzzBodies(f *testing.F, media ...string) {
	all := served()
	for i, s := range all {
		obj := s.filled(f, int64(i))
		for _, name := range media {
			body, err := s.Encode(s.media(f, codec.Find(name)), obj, s.kind.GroupVersion())
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint16(i), body)
		}
	}
	f.Fuzz(func(t *testing.T, which uint16, body []byte) {
		s := all[int(which)%len(all)]
		for _, name := range media {
			r := codec.Find(name)
			info := s.media(t, r)
			for _, strict := range []bool{false, true} {
				readFields(t, r, body, strict)
				obj, kind, err := s.Decode(info, strict, body, s.kind)
				if _, reported := runtime.AsStrictDecodingError(err); obj == nil || err != nil && !reported || kind.GroupVersion() != s.kind.GroupVersion() {
					continue
				}
				again, err := s.Encode(info, obj.DeepCopyObject(), s.kind.GroupVersion())
				if err != nil {
					continue // such as a year that has too many digits
				}
				got, _, err := s.Decode(info, true, again, s.kind)
				if err != nil {
					t.Fatalf("%s: what was written cannot be read: %v\n%q", name, err, again)
				}
				// Not the objects are compared: some keep the bytes of what they
				// do not know, which are written in another order.
				twice, err := s.Encode(info, got, s.kind.GroupVersion())
				if err != nil || !bytes.Equal(again, twice) {
					t.Fatalf("%s: written as\n%q\nand then as\n%q (%v)", name, again, twice, err)
				}
			}
		}
	})
}

// readFields reads a body as an apply does.
func readFields(t *testing.T, r *codec.Representation, body []byte, strict bool) {
	t.Helper()
	if r.Fields == nil {
		return
	}
	fields, err := r.Fields(body, strict)
	if err != nil {
		return
	}
	if _, err := json.Marshal(fields); err != nil {
		t.Errorf("%s: fields that JSON does not have: %v", r.MediaType, err)
	}
}

func FuzzCBORBody(f *testing.F) { fuzzBodies(f, codec.CBOR) }

func FuzzProtobufBody(f *testing.F) { fuzzBodies(f, codec.Protobuf) }

func FuzzTextBody(f *testing.F) { fuzzBodies(f, codec.JSON, codec.YAML) }
