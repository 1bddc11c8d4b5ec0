package bench_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine/embedded"
	"setpoint.dev/setpoint/test/bench"
)

// The load: every writer overwrites objects of 2 KiB, comparing the revision
// it wrote last, as an API server does.
const (
	rounds          = 3
	objectsByWriter = 20
)

var value = bytes.Repeat([]byte("0123456789abcdef"), 128)

// peer is one of the two stores: it writes an object if its revision is still
// the given one, and returns the new revision.
type peer interface {
	write(ctx context.Context, key string, rev int64) (int64, error)
	close() error
}

type setpoint struct{ *store.Store }

func openSetpoint(b *testing.B) peer {
	b.Helper()
	e, err := embedded.Open(b.Context(), embedded.Config{Dir: filepath.Join(b.TempDir(), "store")})
	if err != nil {
		b.Fatal(err)
	}
	s, err := store.Open(b.Context(), store.Config{Engine: e})
	if err != nil {
		b.Fatal(err)
	}
	return setpoint{s}
}

func (s setpoint) write(ctx context.Context, key string, rev int64) (int64, error) {
	condition := store.Absent
	if rev > 0 {
		condition = store.At(store.Revision(rev))
	}
	next, err := s.Commit(ctx, store.Provenance{User: "bench", Verb: "update"},
		store.Op{Resource: "pods", Key: key, If: condition, Value: value, RevAt: -1})
	return int64(next), err
}

func (s setpoint) close() error { return s.Close() }

type etcd struct {
	server *embed.Etcd
	client *clientv3.Client
}

func openEtcd(b *testing.B) peer {
	b.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = b.TempDir()
	cfg.LogLevel = "panic" // it logs its own shutdown as errors
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = loopback, loopback
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = loopback, loopback
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		b.Fatal(err)
	}
	<-server.Server.ReadyNotify()
	return etcd{server, v3client.New(server.Server)}
}

func (e etcd) write(ctx context.Context, key string, rev int64) (int64, error) {
	answer, err := e.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).
		Then(clientv3.OpPut(key, string(value))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return 0, err
	}
	if !answer.Succeeded {
		return 0, fmt.Errorf("conflict on %s", key)
	}
	return answer.Header.Revision, nil
}

func (e etcd) close() error {
	err := e.client.Close()
	e.server.Close()
	if errors.Is(err, context.Canceled) {
		return nil // how the in-process client says goodbye
	}
	return err
}

// storm makes n writes by so many writers and returns processor and wall time
// per write.
func storm(b *testing.B, p peer, writers, n int) (cpu, wall time.Duration) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	before, err := bench.CPU()
	if err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			var revs [objectsByWriter]int64
			for i := 0; left.Add(-1) >= 0; i++ {
				o := i % objectsByWriter
				rev, err := p.write(b.Context(), fmt.Sprintf("round/%d-%d", w, o), revs[o])
				if err != nil {
					b.Error(err)
					return
				}
				revs[o] = rev
			}
		})
	}
	wg.Wait()
	wall = time.Since(start)
	after, err := bench.CPU()
	if err != nil {
		b.Fatal(err)
	}
	return (after - before) / time.Duration(n), wall / time.Duration(n)
}

// BenchmarkCommit makes b.N commits on each store, in rounds that take turns,
// and reports the median of each and of their ratio.
func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			n := max(b.N, writers)
			var ours, theirs, oursWall, theirsWall, ratios []float64
			for range rounds {
				var cpu [2]time.Duration
				for i, open := range []func(*testing.B) peer{openSetpoint, openEtcd} {
					p := open(b)
					var wall time.Duration
					cpu[i], wall = storm(b, p, writers, n)
					if err := p.close(); err != nil {
						b.Fatal(err)
					}
					if i == 0 {
						ours, oursWall = append(ours, micros(cpu[i])), append(oursWall, micros(wall))
					} else {
						theirs, theirsWall = append(theirs, micros(cpu[i])), append(theirsWall, micros(wall))
					}
				}
				ratios = append(ratios, float64(cpu[1])/float64(cpu[0]))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ours), "cpu-µs/commit")
			b.ReportMetric(median(theirs), "etcd-cpu-µs/commit")
			b.ReportMetric(median(oursWall), "wall-µs/commit")
			b.ReportMetric(median(theirsWall), "etcd-wall-µs/commit")
			b.ReportMetric(median(ratios), "etcd/setpoint-cpu")
		})
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
