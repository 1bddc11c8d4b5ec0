package store_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine/embedded"
)

// cpu is the processor time this process has used.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sample is an operation that writes a value of 2 KiB with the index data that
// a pod has.
func sample(i int) store.Op {
	value := make([]byte, 2040)
	n := copy(value, `{"metadata":{"name":"`+fmt.Sprint(i)+`","resourceVersion":""`)
	for j := n; j < len(value); j++ {
		value[j] = "abcdefghijklmnopqrstuvwxyz0123456789"[(i*31+j*j+j>>3)%36]
	}
	return store.Op{
		Resource: "pods", Key: fmt.Sprintf("namespace-%02d/pod-%06d", i%100, i), Value: value, RevAt: n - 1,
		Index: store.Index{
			Labels: map[string]string{"app": fmt.Sprint("app-", i%50), "pod-template-hash": "6d4cf56db6"},
			Fields: map[string]string{"spec.nodeName": fmt.Sprint("node-", i%200), "status.phase": "Running"},
			Owners: []string{fmt.Sprintf("7a3f0c1e-93b5-4c0f-8d7e-%012d", i%1000)},
		},
	}
}

var who = store.Provenance{
	User: "system:serviceaccount:kube-system:replicaset-controller", UserAgent: "kube-controller-manager/v1.36.3",
	FieldManager: "kube-controller-manager", Verb: "create", RequestID: "3b1f6c9e-6f2f-4d0a-9c1e-1b7f3a9d2c44", Cause: 12345,
}

func openEmbedded(tb testing.TB, dir string) *store.Store {
	tb.Helper()
	e, err := embedded.Open(tb.Context(), embedded.Config{Dir: dir})
	if err != nil {
		tb.Fatal(err)
	}
	s, err := store.Open(tb.Context(), store.Config{Engine: e})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func fill(tb testing.TB, s *store.Store, objects int) {
	tb.Helper()
	const writers = 64
	var next atomic.Int64
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < objects; i = int(next.Add(1)) - 1 {
				if _, err := s.Commit(tb.Context(), who, sample(i)); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := openEmbedded(b, filepath.Join(b.TempDir(), "store"))
			defer s.Close() //nolint:errcheck // a benchmark
			ops := make([]store.Op, 1000)
			for i := range ops {
				ops[i] = sample(i)
			}
			var next atomic.Int64
			var wg sync.WaitGroup
			before := cpu(b)
			b.ResetTimer()
			for range writers {
				wg.Go(func() {
					for i := int(next.Add(1)); i <= b.N; i = int(next.Add(1)) {
						if _, err := s.Commit(context.Background(), who, ops[i%len(ops)]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/commit")
		})
	}
}

// BenchmarkOpen opens a store and, in the same run, reads and decodes the same
// bytes from a plain file.
func BenchmarkOpen(b *testing.B) {
	for _, objects := range []int{0, 10_000, 100_000} {
		b.Run(fmt.Sprintf("objects=%d", objects), func(b *testing.B) {
			dir := b.TempDir()
			s := openEmbedded(b, filepath.Join(dir, "store"))
			fill(b, s, objects)
			writePlain(b, s, filepath.Join(dir, "plain"))
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			var opened, plain, openedCPU, plainCPU time.Duration
			for b.Loop() {
				opened += timed(b, &openedCPU, func() {
					s = openEmbedded(b, filepath.Join(dir, "store"))
				})
				sn, err := s.Snapshot(store.Main)
				if err != nil || sn.Len("pods") != objects {
					b.Fatal(err, sn.Len("pods"))
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				plain += timed(b, &plainCPU, func() { readPlain(b, filepath.Join(dir, "plain"), objects) })
			}
			n := float64(b.N)
			b.ReportMetric(float64(opened.Milliseconds())/n, "open-ms")
			b.ReportMetric(float64(openedCPU.Milliseconds())/n, "open-cpu-ms")
			if objects > 0 {
				b.ReportMetric(float64(plain.Milliseconds())/n, "plain-ms")
				b.ReportMetric(float64(opened)/float64(plain), "open/plain")
				b.ReportMetric(float64(openedCPU)/float64(plainCPU), "open/plain-cpu")
			}
		})
	}
}

// timed runs f on a clean heap and adds the processor time it took.
func timed(tb testing.TB, used *time.Duration, f func()) time.Duration {
	runtime.GC()
	before, start := cpu(tb), time.Now()
	f()
	took := time.Since(start)
	*used += cpu(tb) - before
	return took
}

func writePlain(tb testing.TB, s *store.Store, path string) {
	tb.Helper()
	f, err := os.Create(path)
	if err != nil {
		tb.Fatal(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	sn, err := s.Snapshot(store.Main)
	if err != nil {
		tb.Fatal(err)
	}
	text := func(b []byte) {
		_, _ = w.Write(binary.AppendUvarint(nil, uint64(len(b))))
		_, _ = w.Write(b)
	}
	for o, err := range sn.Scan(tb.Context(), "pods", store.Range{}) {
		if err != nil {
			tb.Fatal(err)
		}
		text([]byte(o.Key()))
		text(o.Value())
	}
	if err := w.Flush(); err != nil {
		tb.Fatal(err)
	}
	if err := f.Close(); err != nil {
		tb.Fatal(err)
	}
}

// readPlain reads length-prefixed keys and values into a map.
func readPlain(tb testing.TB, path string, objects int) {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	r := bufio.NewReaderSize(f, 1<<20)
	text := func() []byte {
		n, err := binary.ReadUvarint(r)
		if err != nil {
			return nil
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(r, b); err != nil {
			tb.Fatal(err)
		}
		return b
	}
	all := make(map[string][]byte)
	for key := text(); key != nil; key = text() {
		all[string(key)] = text()
	}
	if len(all) != objects {
		tb.Fatalf("%d objects", len(all))
	}
}

func BenchmarkFork(b *testing.B) {
	s, err := store.Open(b.Context(), store.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // a benchmark
	fill(b, s, 100_000)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Fork(b.Context(), fmt.Sprint("fork-", i), store.Main, 0); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func BenchmarkSnapshot10k(b *testing.B) {
	s, err := store.Open(b.Context(), store.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // a benchmark
	fill(b, s, 10_000)
	for _, c := range []struct {
		name string
		r    store.Range
		want int
	}{
		{"all", store.Range{}, 10_000},
		{"namespace", store.Range{Prefix: "namespace-07/"}, 100},
		{"field", store.Range{Field: "spec.nodeName", Value: "node-7"}, 50},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sn, err := s.Snapshot(store.Main)
				if err != nil {
					b.Fatal(err)
				}
				n, size := 0, 0
				for o := range sn.Scan(b.Context(), "pods", c.r) {
					n++
					size += len(o.Value())
				}
				if n != c.want {
					b.Fatalf("%d objects", n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(c.want), "ns/object")
		})
	}
}

// BenchmarkMemory loads 100,000 objects from disk and asks what they cost.
func BenchmarkMemory(b *testing.B) {
	const objects = 100_000
	dir := filepath.Join(b.TempDir(), "store")
	s := openEmbedded(b, dir)
	fill(b, s, objects)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		heap := func() uint64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		s := openEmbedded(b, dir)
		after := heap()
		sn, err := s.Snapshot(store.Main)
		if err != nil {
			b.Fatal(err)
		}
		var bytes int
		for o := range sn.Scan(b.Context(), "pods", store.Range{}) {
			bytes += len(o.Value())
		}
		b.ReportMetric(float64(after-before)/objects, "heap-B/object")
		b.ReportMetric(float64(after-before)/float64(bytes), "heap/bytes")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
