package bench_test

import (
	"flag"
	"net/http"
	"testing"
	"time"
)

var remembered = flag.Int("remembered", 1_000, "pods that are there while memory is looked at; figures are of 10000")

// BenchmarkMemory measures the memory of a server with pods of 5.4 KiB, and what of
// it each pod has, beside kube-apiserver and etcd when these are given.
func BenchmarkMemory(b *testing.B) {
	b.ReportMetric(0, "ns/op")
	for who, s := range newSides(b) {
		name := []string{"", "peer-"}[who]
		s.want(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces", "application/json", []byte(`{"metadata":{"name":"bench"}}`))
		s.want(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces/bench/serviceaccounts", "application/json", []byte(`{"metadata":{"name":"default"}}`))
		emptyHeap, emptyAnon := s.heap(b), s.memory(b, "RssAnon:")
		s.fill(b, pods, 0, *remembered)
		heap := s.heap(b)
		time.Sleep(settled)
		anon := s.memory(b, "RssAnon:")
		b.ReportMetric(float64(s.memory(b, "VmRSS:"))/1024, name+"MiB")
		b.ReportMetric(float64(heap-emptyHeap)/1024/float64(*remembered), name+"heap-KiB/pod")
		b.ReportMetric(float64(anon-emptyAnon)/float64(*remembered), name+"anon-KiB/pod")
	}
}
