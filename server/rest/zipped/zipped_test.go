package zipped_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"setpoint.dev/setpoint/server/rest/zipped"
)

func unzip(t *testing.T, b []byte) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	r.Multistream(false) // some clients know only one
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A piece that was kept of one stream is good in another.
func TestPieces(t *testing.T) {
	long := strings.Repeat("the same again ", 50_000)
	random := make([]byte, 300_000)
	for i := range random {
		random[i] = byte(rand.Uint32()) //nolint:gosec // any bytes will do
	}
	for _, c := range []struct{ name, head, items, tail string }{
		{"nothing", "", "", ""},
		{"short", "head", "items", "tail"},
		{"long", "the same again", long, "the same again"},
		{"random", "head", string(random), "tail"},
		{"items alone", "", long, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var first, second bytes.Buffer
			w := zipped.New(&first)
			_, _ = io.WriteString(w, c.head)
			if w.Cut() != nil {
				t.Error("kept what nobody asked for")
			}
			w.Keep(1 << 20)
			_, _ = io.WriteString(w, c.items)
			piece := w.Cut()
			_, _ = io.WriteString(w, c.tail)
			w.Close()
			if got := unzip(t, first.Bytes()); got != c.head+c.items+c.tail {
				t.Fatalf("%d bytes, want %d", len(got), len(c.head+c.items+c.tail))
			}
			if piece == nil {
				t.Fatal("not kept")
			}
			w = zipped.New(&second)
			_, _ = io.WriteString(w, "another "+c.head)
			w.Cut()
			w.Put(piece)
			_, _ = io.WriteString(w, c.tail+" another")
			w.Close()
			if got := unzip(t, second.Bytes()); got != "another "+c.head+c.items+c.tail+" another" {
				t.Fatalf("%d bytes, want %d", len(got), len(c.head+c.items+c.tail)+16)
			}
		})
	}
}

func TestTooLargeIsNotKept(t *testing.T) {
	random := make([]byte, 1<<16)
	for i := range random {
		random[i] = byte(rand.Uint32()) //nolint:gosec // any bytes will do
	}
	var b bytes.Buffer
	w := zipped.New(&b)
	w.Keep(1 << 10)
	_, _ = w.Write(random)
	if w.Cut() != nil {
		t.Error("kept")
	}
	w.Close()
	if got := unzip(t, b.Bytes()); got != string(random) {
		t.Error("something else")
	}
}

type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestClientThatHasGone(t *testing.T) {
	w := zipped.New(gone{})
	w.Keep(1 << 20)
	for range 100_000 {
		_, _ = io.WriteString(w, strconv.FormatUint(rand.Uint64(), 36))
	}
	if w.Cut() != nil {
		t.Error("kept what nobody got")
	}
	w.Close()
}
