package rest_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A compressed list is the list, be it compressed for this request or for one
// before, in every representation and however its objects were selected.
func TestCompressedLists(t *testing.T) {
	d := newDirect(t)
	for i := range 40 {
		d.create(fmt.Sprintf("m-%02d", i), 10<<10)
	}
	get := func(query, accept, encoding string) []byte {
		t.Helper()
		r := d.request(t.Context(), http.MethodGet, "/api/v1/namespaces/default/configmaps"+query, accept, "")
		r.Header.Set("Accept-Encoding", encoding)
		answer := httptest.NewRecorder()
		if d.ServeHTTP(answer, r); answer.Code != http.StatusOK {
			t.Fatalf("%d: %s", answer.Code, answer.Body)
		}
		if answer.Header().Get("Content-Encoding") != encoding {
			t.Fatalf("encoded as %q", answer.Header().Get("Content-Encoding"))
		}
		if encoding == "" {
			return answer.Body.Bytes()
		}
		z, err := gzip.NewReader(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	for change := range 3 {
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/cbor"} {
			for _, query := range []string{"", "?limit=30", "?fieldSelector=metadata.name!%3Dm-03", ""} {
				want, got := get(query, accept, ""), get(query, accept, "gzip")
				if !bytes.Equal(want, got) {
					t.Errorf("after %d changes, %s%s: %d bytes, want %d", change, accept, query, len(got), len(want))
				}
			}
		}
		d.create(fmt.Sprintf("more-%d", change), 10<<10) // another revision, too
	}
}
