package fair_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// BenchmarkGate is what a request costs at the gate, in and out: of whom it never
// lets wait, of one that finds a seat in the lane, and of one that is queued, as all
// are upstream.
func BenchmarkGate(b *testing.B) {
	for _, bench := range []struct {
		name, who, method, url string
		shares                 int32
	}{
		{"exempt", "root", http.MethodGet, get, 245},
		{"in the lane, get", "jane", http.MethodGet, get, 245},
		{"in the lane, create", "jane", http.MethodPost, pods, 245},
		{"in the lane, list", "jane", http.MethodGet, pods, 245},
		{"in the lane, watch", "jane", http.MethodGet, watch, 245},
		{"queued, get", "jane", http.MethodGet, get, 1},
	} {
		b.Run(bench.name, func(b *testing.B) {
			g := gate(b, bench.shares, queue)
			r := ask(b, bench.who, bench.method, bench.url)
			w := httptest.NewRecorder()
			b.ReportAllocs()
			for b.Loop() {
				place, in := g.Enter(w, r)
				if !in {
					b.Fatal("refused")
				}
				place.Leave()
			}
		})
	}
}
