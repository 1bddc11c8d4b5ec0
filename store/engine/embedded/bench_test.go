package embedded_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/embedded"
)

// value2K is 2 KiB that compress about as well as a pod's JSON.
func value2K(rev engine.Revision) []byte {
	b := make([]byte, 0, 2100)
	for len(b) < 2048 {
		b = fmt.Appendf(b, `{"name":"web-%d","uid":"%016x","image":"registry/app:v%d"},`, rev, uint64(rev)*0x9e3779b97f4a7c15+uint64(len(b)), len(b))
	}
	return b[:2048]
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkCommit(b *testing.B) {
	for _, n := range []int{1, 32, 128} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, err := embedded.Open(b.Context(), embedded.Config{Dir: b.TempDir(), Logger: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			values := make([][]byte, 512)
			for i := range values {
				values[i] = value2K(engine.Revision(i))
			}
			group := make([]engine.Txn, n)
			rev := engine.Revision(0)
			const keys = 5000
			start := cpu()
			b.ResetTimer()
			for range b.N {
				for i := range group {
					rev++
					prev := max(0, rev-keys)
					group[i] = engine.Txn{Rev: rev, Time: int64(rev), Provenance: values[0][:100], Changes: []engine.Change{{
						Plane: "main", Resource: "pods", Key: fmt.Sprintf("default/web-%d", rev%keys), Prev: prev, Create: 1,
						Value: values[int(rev)%len(values)], RevAt: 100, Index: values[1][:120],
					}}}
				}
				if err := e.Commit(b.Context(), group, 0); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64((cpu()-start).Microseconds())/float64(b.N*n), "cpu-us/txn")
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "txn/s")
			if err := e.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkLoad opens a store and reads all objects, and beside it reads the
// same bytes from one file with a length before each.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			flat := filepath.Join(dir, "flat")
			store := filepath.Join(dir, "store")
			f, err := os.Create(flat)
			if err != nil {
				b.Fatal(err)
			}
			w := bufio.NewWriterSize(f, 1<<20)
			e, err := embedded.Open(b.Context(), embedded.Config{Dir: store, Logger: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			for rev := engine.Revision(0); int(rev) < n; {
				group := make([]engine.Txn, 100)
				for i := range group {
					rev++
					v := value2K(rev)
					group[i] = engine.Txn{Rev: rev, Changes: []engine.Change{{
						Plane: "main", Resource: "pods", Key: fmt.Sprintf("default/web-%08d", rev), Create: rev, Value: v, RevAt: 10,
					}}}
					_, _ = w.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(v))))
					_, _ = w.Write(v)
				}
				if err := e.Commit(b.Context(), group, 0); err != nil {
					b.Fatal(err)
				}
			}
			if err := w.Flush(); err != nil {
				b.Fatal(err)
			}
			if err := f.Close(); err != nil {
				b.Fatal(err)
			}
			if err := e.Close(); err != nil {
				b.Fatal(err)
			}
			var flatTime, openTime, loadTime time.Duration
			b.ResetTimer()
			for range b.N {
				start := time.Now()
				kept := readFlat(b, flat, n)
				flatTime += time.Since(start)
				if len(kept) != n {
					b.Fatal(len(kept))
				}

				start = time.Now()
				e, err := embedded.Open(b.Context(), embedded.Config{Dir: store, Logger: quiet()})
				if err != nil {
					b.Fatal(err)
				}
				openTime += time.Since(start)
				var count atomic.Int64
				parts := make([][]engine.Version, 64)
				if err := e.Load(b.Context(), func(part int, v engine.Version) error {
					v.Value = append([]byte(nil), v.Value...)
					parts[part] = append(parts[part], v)
					count.Add(1)
					return nil
				}); err != nil {
					b.Fatal(err)
				}
				loadTime += time.Since(start)
				if count.Load() != int64(n) {
					b.Fatal(count.Load())
				}
				if err := e.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(flatTime.Milliseconds())/float64(b.N), "flat-ms")
			b.ReportMetric(float64(openTime.Milliseconds())/float64(b.N), "open-ms")
			b.ReportMetric(float64(loadTime.Milliseconds())/float64(b.N), "open+load-ms")
			b.ReportMetric(float64(loadTime)/float64(flatTime), "ratio")
		})
	}
}

func readFlat(b *testing.B, path string, n int) [][]byte {
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	r := bufio.NewReaderSize(f, 1<<20)
	kept := make([][]byte, 0, n)
	var size [4]byte
	for {
		if _, err := io.ReadFull(r, size[:]); err != nil {
			break
		}
		v := make([]byte, binary.LittleEndian.Uint32(size[:]))
		if _, err := io.ReadFull(r, v); err != nil {
			b.Fatal(err)
		}
		kept = append(kept, v)
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	return kept
}
