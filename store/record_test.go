package store

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What decodeProvenance accepts, encode writes again.
func FuzzDecodeProvenance(f *testing.F) {
	f.Add([]byte{})
	f.Add(Provenance{User: "ann", Verb: "patch", Admission: []string{"a", ""}, Cause: 300, Transaction: "t"}.encode())
	f.Add([]byte{tagUser, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodeProvenance(b, 5)
		if err != nil {
			return
		}
		if again := p.encode(); !bytes.Equal(b, again) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, p, again)
		}
	})
}

// An index that checkIndex accepts can be read without a check.
func FuzzCheckIndex(f *testing.F) {
	good, err := Index{
		Labels: map[string]string{"app": "web"}, Fields: map[string]string{"a": "b"},
		Owners: []string{"u1", "u2"}, Flags: 300,
	}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte{0, 0, 0})
	f.Add([]byte{0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(_ *testing.T, b []byte) {
		o, err := storedObject("key", 7, 7, []byte("value 7"), 6, b)
		if err != nil {
			return
		}
		for range o.Labels() {
			continue
		}
		for range o.Fields() {
			continue
		}
		for range o.Owners() {
			continue
		}
	})
}

func TestStoredObjectRefusesDamage(t *testing.T) {
	index := []byte{0, 0, 0}
	for name, c := range map[string]struct {
		value string
		revAt int
		index []byte
	}{
		"another revision":  {"value 8", 6, index},
		"revision outside":  {"value 7", 9, index},
		"short index":       {"value 7", 6, index[:2]},
		"index with a tail": {"value 7", 6, append(bytes.Clone(index), 1)},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := storedObject("key", 7, 7, []byte(c.value), c.revAt, c.index); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestProvenanceRoundTrip(t *testing.T) {
	want := Provenance{
		Time: time.UnixMilli(1_700_000_000_123).UTC(), User: "u", Impersonator: "i", UserAgent: "a", FieldManager: "f",
		Verb: "v", RequestID: "r", Admission: []string{"x", "y"}, Cause: 9, Transaction: "t",
	}
	got, err := decodeProvenance(want.encode(), want.Time.UnixMilli())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
