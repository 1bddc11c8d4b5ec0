package bench_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

var informerSizes = flag.String("informed", "1000", "numbers of objects that informers begin with; figures are of 10000,100000")

// informerStarts is how many informers begin, one after the other, in a round.
const informerStarts = 3

// BenchmarkInformers measures the beginning of an informer of client-go, until it
// has all of so many ConfigMaps of 1 KiB, beside kube-apiserver and etcd when these
// are given. It is client-go that decides how it asks.
func BenchmarkInformers(b *testing.B) {
	all := newSides(b)
	all.each(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces", "application/json", []byte(`{"metadata":{"name":"bench"}}`))
	made := 0
	for text := range strings.SplitSeq(*informerSizes, ",") {
		size, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range all {
			s.fill(b, configMaps, made, size)
		}
		made = size
		all.measure(b, []load{{fmt.Sprintf("informer-%d", size), informerStarts, func(b *testing.B, s *server, _, n int) {
			for range n {
				s.inform(b, size)
			}
		}}})
	}
}

// inform begins an informer, waits until it has all, and ends it.
func (s *server) inform(b *testing.B, size int) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	all := s.informers(b, "bench")
	store := all.Core().V1().ConfigMaps().Informer().GetStore()
	all.Start(ctx.Done())
	for kind, synced := range all.WaitForCacheSync(ctx.Done()) {
		if !synced {
			b.Fatalf("informer of %v: not there after five minutes", kind)
		}
	}
	if has := len(store.ListKeys()); has < size {
		b.Fatalf("informer: %d of %d", has, size)
	}
	cancel()
	all.Shutdown()
}
