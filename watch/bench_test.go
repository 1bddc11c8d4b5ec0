package watch_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/memory"
	"setpoint.dev/setpoint/watch"
)

// stamped is an engine that says when its last commit was done. From then on
// until the writer has its answer, the committer does nothing but publish.
type stamped struct {
	engine.Engine
	at atomic.Int64
}

func (e *stamped) Commit(ctx context.Context, group []engine.Txn, reserve engine.Revision) error {
	err := e.Engine.Commit(ctx, group, reserve)
	e.at.Store(time.Now().UnixNano())
	return err
}

// audience is a number of watchers that read as fast as they can.
type audience struct {
	delivered atomic.Int64
	size      int
}

// watchBy starts n watchers, the i-th with filter(i), and waits until they
// wait.
func watchBy(b *testing.B, s *store.Store, n int, filter func(int) watch.Filter) *audience {
	h, _ := runHub(b, s, watch.Config{})
	a := &audience{size: n}
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	var ready sync.WaitGroup
	b.Cleanup(func() {
		cancel()
		readers.Wait()
	})
	for i := range n {
		w := start(b, h, watch.Options{Initial: true, Filter: filter(i)})
		ready.Add(1)
		readers.Go(func() {
			ctx, cancel := context.WithCancel(ctx) // its own, as a request has
			defer cancel()
			if _, err := w.Next(ctx); err != nil { // the initial state, empty
				b.Error(err)
			}
			ready.Done()
			for {
				batch, err := w.Next(ctx)
				if err != nil {
					return
				}
				a.delivered.Add(int64(len(batch.Events)))
			}
		})
	}
	ready.Wait()
	return a
}

// await waits until so many events have been delivered.
func (a *audience) await(events int64) {
	for a.delivered.Load() < events {
		time.Sleep(50 * time.Microsecond)
	}
}

func everything(int) watch.Filter { return watch.Filter{} }

func ofNode(i int) watch.Filter {
	return watch.Filter{Field: "node", Value: fmt.Sprint("node-", i)}
}

// pod is the i-th object of 2 KiB, on the i-th of 10,000 nodes.
func pod(i int, value []byte) store.Op {
	return store.Op{
		Resource: "things", Key: fmt.Sprint("ns/pod-", i%1000), Value: value, RevAt: 10,
		Index: store.Index{Fields: map[string]string{"node": fmt.Sprint("node-", i*7919%10_000)}},
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkWriter is what watchers cost the one who writes: one writer commits
// one object of 2 KiB after the other. publish-p50-ns is the time from the
// engine's answer to the writer's; what grows beyond it with the number of
// watchers is their own reading, on the same processors.
func BenchmarkWriter(b *testing.B) {
	for _, c := range []struct {
		name   string
		n      int
		filter func(int) watch.Filter
	}{
		{"watchers=0", 0, everything},
		{"watchers=1", 1, everything},
		{"watchers=1000", 1000, everything},
		{"watchers=10000", 10_000, everything},
		{"watchers=10000/scoped", 10_000, ofNode},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := &stamped{Engine: memory.New()}
			s := openStore(b, store.Config{Engine: e})
			value := make([]byte, 2<<10)
			a := watchBy(b, s, c.n, c.filter)
			publish := make([]int64, 0, b.N)
			total := make([]int64, 0, b.N)
			before := cpu()
			i := 0
			for b.Loop() {
				begun := time.Now()
				commit(b, s, pod(i, value))
				now := time.Now()
				publish = append(publish, now.UnixNano()-e.at.Load())
				total = append(total, int64(now.Sub(begun)))
				i++
			}
			if c.name == "watchers=10000/scoped" {
				a.await(int64(i)) // and a few for those a pod has left
			} else {
				a.await(int64(i) * int64(c.n))
			}
			used := cpu() - before
			slices.Sort(publish)
			slices.Sort(total)
			b.ReportMetric(float64(publish[len(publish)/2]), "publish-p50-ns")
			b.ReportMetric(float64(publish[len(publish)*99/100]), "publish-p99-ns")
			b.ReportMetric(float64(total[len(total)/2]), "commit-p50-ns")
			b.ReportMetric(float64(total[len(total)*99/100]), "commit-p99-ns")
			b.ReportMetric(float64(a.delivered.Load())/float64(i), "deliveries/op")
			b.ReportMetric(float64(a.delivered.Load())/used.Seconds(), "deliveries/cpu-s")
			b.ReportMetric(float64(used.Nanoseconds())/float64(i), "cpu-ns/op")
		})
	}
}

// BenchmarkFanOut is what it costs to deliver: bursts of changes, committed
// together, each delivered to every watcher before the next burst. The CPU of
// the commits is counted as well.
func BenchmarkFanOut(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000} {
		for _, burst := range []int{1, 100} {
			b.Run(fmt.Sprintf("watchers=%d/burst=%d", n, burst), func(b *testing.B) {
				s := openStore(b, store.Config{})
				value := make([]byte, 2<<10)
				a := watchBy(b, s, n, everything)
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				mallocs, before := m.Mallocs, cpu()
				bursts := 0
				for b.Loop() {
					var writers sync.WaitGroup
					for i := range burst {
						writers.Go(func() { commit(b, s, pod(i, value)) })
					}
					writers.Wait()
					bursts++
					a.await(int64(bursts) * int64(burst) * int64(n))
				}
				used := cpu() - before
				runtime.ReadMemStats(&m)
				deliveries := float64(a.delivered.Load())
				b.ReportMetric(deliveries/used.Seconds(), "deliveries/cpu-s")
				b.ReportMetric(float64(m.Mallocs-mallocs)/deliveries, "allocs/delivery")
				b.ReportMetric(deliveries/float64(bursts), "deliveries/op")
			})
		}
	}
}
