package bench_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var soakFor = flag.Duration("soak", 20*time.Second, "how long the soak lasts; figures are of 15 minutes")

// The load of a soak. Objects are in shards, by label: each watcher follows one,
// each informer all.
const (
	soakClients   = 50
	soakWatchers  = 500
	soakInformers = 20
	soakObjects   = 2_000
	soakShards    = 50
	soakPause     = 20 * time.Millisecond // of a client, on average
	soakPath      = "/api/v1/namespaces/soak/configmaps"
	soakSettle    = 2 * time.Minute // for all to see the end
)

// soak is a load under which a server runs and is restarted.
type soak struct {
	*server
	life atomic.Int64 // odd while the server is down
	done atomic.Int64 // operations that were answered

	mu   sync.Mutex // guards the fields below
	seen map[string]int
	bad  []string // what was not intended
}

// BenchmarkSoak runs a mixed load of many clients, watchers and informers, and
// restarts the server twice near the beginning, by a kill and by asking it to end.
// Errors are only those that the load intends, what all have seen at the end is
// what a list has, and memory after a collection is told at a third, at two thirds
// and at the end, of the same process.
func BenchmarkSoak(b *testing.B) {
	s := &soak{server: setpointServer(b, buildSetpoint(b)), seen: map[string]int{}}
	s.start(b)
	b.Cleanup(func() { s.stop() })
	s.want(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces", "application/json", []byte(`{"metadata":{"name":"soak"}}`))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	views := s.follow(ctx, b)
	loaded, end := context.WithCancel(ctx)
	var load sync.WaitGroup
	for i := range soakClients {
		load.Go(func() { s.operator(loaded, rand.New(rand.NewPCG(8, uint64(i)))) })
	}
	memory := s.schedule(b)
	end()
	load.Wait()
	s.settle(b, views)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(s.done.Load())/soakFor.Seconds(), "ops/s")
	s.tell(b, memory)
}

// schedule lets the time pass: a kill after a tenth, a restart after a fifth, and a
// look at memory at each third.
func (s *soak) schedule(b *testing.B) (memory [3]used) {
	b.Helper()
	begun := time.Now()
	at := func(share float64) {
		time.Sleep(time.Until(begun.Add(time.Duration(share * float64(*soakFor)))))
		fmt.Printf("soak: %v, %d operations\n", time.Since(begun).Round(time.Second), s.done.Load())
	}
	at(0.1)
	s.restart(b, syscall.SIGKILL)
	at(0.2)
	s.restart(b, syscall.SIGTERM)
	for i := range memory {
		at(float64(i+1) / float64(len(memory)))
		memory[i] = s.used(b)
	}
	return memory
}

// used is what a server holds after a collection.
type used struct{ heap, rss float64 } // MiB

func (s *soak) used(b *testing.B) used {
	b.Helper()
	heap := s.heap(b)
	time.Sleep(returned)
	return used{float64(heap) / (1 << 20), float64(s.memory(b, "RssAnon:")) / 1024}
}

// returned is after how long a server has given back what a collection has freed.
const returned = 4 * time.Second

// restart ends the server and starts it again, in the same place.
func (s *soak) restart(b *testing.B, by syscall.Signal) {
	b.Helper()
	s.life.Add(1)
	old := s.processes[0]
	if err := old.Process.Signal(by); err != nil {
		b.Fatal(err)
	}
	_ = old.Wait() // it was told to
	s.processes = []*exec.Cmd{exec.CommandContext(b.Context(), old.Path, old.Args[1:]...)}
	s.start(b)
	s.life.Add(1)
}

// operator is one of the clients.
func (s *soak) operator(ctx context.Context, random *rand.Rand) {
	for i := 0; ctx.Err() == nil; i++ {
		life := s.life.Load()
		name, code, err := s.operate(ctx, random, i)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && (life%2 == 1 || s.life.Load() != life):
			s.note("connection lost while the server restarted", false)
		case err != nil:
			s.note(fmt.Sprintf("%s: %v", name, err), true)
		default:
			s.done.Add(1)
			if code >= http.StatusBadRequest {
				intended := code == http.StatusNotFound || code == http.StatusConflict || code == http.StatusGone
				s.note(fmt.Sprintf("%s: %d", name, code), !intended)
			}
		}
		time.Sleep(time.Duration(random.Int64N(int64(2 * soakPause))))
	}
}

// operate does one thing to a random object: all clients share them, so that
// creates, puts and deletes meet.
func (s *soak) operate(ctx context.Context, random *rand.Rand, i int) (name string, code int, err error) {
	object := random.IntN(soakObjects)
	path := fmt.Sprintf("%s/object-%d", soakPath, object)
	send := func(name, method, path, media string, body []byte) (string, int, error) {
		code, _, err := s.do(ctx, method, path, media, body)
		return name, code, err
	}
	switch n := random.IntN(100); {
	case n < 25:
		return send("create", http.MethodPost, soakPath, "application/json", soakObject(object, i))
	case n < 50:
		return send("get", http.MethodGet, path, "", nil)
	case n < 70:
		return send("patch", http.MethodPatch, path, "application/merge-patch+json", fmt.Appendf(nil, `{"data":{"turn":"%d"}}`, i))
	case n < 78:
		return send("apply", http.MethodPatch, path+"?fieldManager=soak&force=true", "application/apply-patch+yaml", soakObject(object, i))
	case n < 86:
		return s.put(ctx, path, i)
	case n < 98:
		return send("delete", http.MethodDelete, path, "", nil)
	default:
		return send("list", http.MethodGet, soakPath+"?limit=100&labelSelector=shard%3D"+shardOf(object), "", nil)
	}
}

// put reads an object and writes it back, which fails when somebody has been there
// in between.
func (s *soak) put(ctx context.Context, path string, i int) (string, int, error) {
	code, body, err := s.do(ctx, http.MethodGet, path, "", nil)
	if err != nil || code != http.StatusOK {
		return "put", code, err
	}
	var o map[string]any
	if err := json.Unmarshal(body, &o); err != nil {
		return "put", 0, err
	}
	o["data"].(map[string]any)["put"] = fmt.Sprint(i)
	if body, err = json.Marshal(o); err != nil {
		return "put", 0, err
	}
	code, _, err = s.do(ctx, http.MethodPut, path, "application/json", body)
	return "put", code, err
}

func shardOf(object int) string { return fmt.Sprint(object % soakShards) }

func soakObject(object, turn int) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"object-%d","labels":{"shard":%q}},"data":{"turn":"%d","filler":%q}}`,
		object, shardOf(object), turn, strings.Repeat("x", 1000))
}

// note counts what happened.
func (s *soak) note(what string, bad bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[what]++
	if bad && len(s.bad) < 20 {
		s.bad = append(s.bad, what)
	}
}

// settle waits until all have seen what a list has.
func (s *soak) settle(b *testing.B, views []view) {
	b.Helper()
	want := s.listed(b)
	differ := []string(nil)
	for deadline := time.Now().Add(soakSettle); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		differ = nil
		for i, v := range views {
			if got := v.objects(); !maps.Equal(got, want[v.shard()]) {
				differ = append(differ, fmt.Sprintf("view %d of shard %q has %d objects, a list %d", i, v.shard(), len(got), len(want[v.shard()])))
			}
		}
		if len(differ) == 0 {
			fmt.Printf("soak: %d views are equal to a list of %d objects\n", len(views), len(want[""]))
			return
		}
	}
	b.Errorf("%d views differ after %v: %v", len(differ), soakSettle, differ[:min(5, len(differ))])
}

// listed are the revisions of all objects by name, for each shard and, under "",
// for all.
func (s *soak) listed(b *testing.B) map[string]map[string]string {
	b.Helper()
	var list struct{ Items []soaked }
	if err := json.Unmarshal(s.want(b, http.StatusOK, http.MethodGet, soakPath, "", nil), &list); err != nil {
		b.Fatal(err)
	}
	by := map[string]map[string]string{"": {}}
	for i := range soakShards {
		by[fmt.Sprint(i)] = map[string]string{}
	}
	for _, o := range list.Items {
		by[""][o.Metadata.Name] = o.Metadata.ResourceVersion
		by[o.Metadata.Labels["shard"]][o.Metadata.Name] = o.Metadata.ResourceVersion
	}
	return by
}

// tell reports what happened, and fails if something was not intended.
func (s *soak) tell(b *testing.B, memory [3]used) {
	b.Helper()
	for _, what := range slices.Sorted(maps.Keys(s.seen)) {
		fmt.Printf("soak: %6d %s\n", s.seen[what], what)
	}
	for i, name := range []string{"third", "two-thirds", "end"} {
		fmt.Printf("soak: memory at %s: heap %.1f MiB, resident and not of files %.1f MiB\n", name, memory[i].heap, memory[i].rss)
		b.ReportMetric(memory[i].heap, name+"-heap-MiB")
		b.ReportMetric(memory[i].rss, name+"-anon-MiB")
	}
	if len(s.bad) > 0 {
		b.Error(errors.New("not intended: " + strings.Join(s.bad, "; ")))
	}
}
