package rest_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/server/rest"
	"setpoint.dev/setpoint/store"
)

// A compressed list is the list, be it compressed for this request or for one
// before, in every representation and however its objects were selected.
func TestCompressedLists(t *testing.T) {
	d := newDirect(t)
	for i := range 40 {
		d.create(fmt.Sprintf("m-%02d", i), 10<<10)
	}
	for change := range 3 {
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/cbor"} {
			for _, query := range []string{"", "?limit=30", "?fieldSelector=metadata.name!%3Dm-03", ""} {
				want, got := d.list(query, accept, ""), d.list(query, accept, "gzip")
				if !bytes.Equal(want, got) {
					t.Errorf("after %d changes, %s%s: %d bytes, want %d", change, accept, query, len(got), len(want))
				}
			}
		}
		d.create(fmt.Sprintf("more-%d", change), 10<<10) // another revision, too
	}
}

// list is the body of a list, whose encoding is undone.
func (d *direct) list(query, accept, encoding string) []byte {
	d.tb.Helper()
	r := d.request(d.tb.Context(), http.MethodGet, "/api/v1/namespaces/default/configmaps"+query, accept, "")
	r.Header.Set("Accept-Encoding", encoding)
	answer := httptest.NewRecorder()
	if d.ServeHTTP(answer, r); answer.Code != http.StatusOK {
		d.tb.Fatalf("%d: %s", answer.Code, answer.Body)
	}
	if answer.Header().Get("Content-Encoding") != encoding {
		d.tb.Fatalf("encoded as %q", answer.Header().Get("Content-Encoding"))
	}
	if encoding == "" {
		return answer.Body.Bytes()
	}
	z, err := gzip.NewReader(answer.Body)
	if err != nil {
		d.tb.Fatal(err)
	}
	body, err := io.ReadAll(z)
	if err != nil {
		d.tb.Fatal(err)
	}
	return body
}

// A fork answers with what was compressed for the plane that it comes from, and
// with its own once it is written to; so does that plane.
func TestCompressedListsOfForks(t *testing.T) {
	d := newDirect(t)
	for i := range 40 {
		d.create(fmt.Sprintf("m-%02d", i), 10<<10)
	}
	if _, err := d.Store.Fork(t.Context(), "fork", store.Main, 0); err != nil {
		t.Fatal(err)
	}
	fork := &direct{rest.New(rest.Config{Store: d.Store, Plane: "fork", Hub: d.Hub, Kinds: d.Kinds, Like: d.Handler}), t}
	for _, step := range []struct {
		name  string
		write *direct
	}{{"before a write", nil}, {"after one in the fork", fork}, {"after one in main", d}} {
		if step.write != nil {
			step.write.create("one-more", 10<<10)
		}
		for plane, in := range map[string]*direct{"main": d, "fork": fork} {
			if want, got := in.list("", codec.JSON, ""), in.list("", codec.JSON, "gzip"); !bytes.Equal(want, got) {
				t.Errorf("%s, %s: %d bytes, want %d", step.name, plane, len(got), len(want))
			}
		}
	}
}
