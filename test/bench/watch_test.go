package bench_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// fanOut is how many follow the same changes, and how many changes.
var fanOut = []struct{ watchers, events int }{{1, 200}, {100, 100}, {1000, 50}}

// watching are loads of events: objects change while watchers follow, until
// each has seen all. What the changes cost is in it, what it takes to begin to
// watch is not.
func watching(path string, of func(round, i int) string, media string, patch func(round, i int) []byte) []load {
	var loads []load
	for k, f := range fanOut {
		// The loads change the same objects, each in its own way.
		other := func(round, i int) []byte { return patch(round, 10_000*k+i) }
		loads = append(loads, followed(f.watchers, f.events, path, of, media, other))
	}
	return loads
}

// watchBegins is how long it may take to begin a watch.
const watchBegins = 50 * time.Millisecond

// BenchmarkFanOut measures events to ten thousand watchers, beside kube-apiserver
// and etcd when these are given.
func BenchmarkFanOut(b *testing.B) {
	all := newSides(b)
	all.each(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces", "application/json", []byte(`{"metadata":{"name":"bench"}}`))
	k := configMaps
	all.measure(b, []load{
		{"create", fanOutObjects, k.create},
		followed(*fanOutWatchers, fanOutEvents, k.path(), k.of, "application/merge-patch+json", func(round, i int) []byte {
			return fmt.Appendf(nil, `{"metadata":{"labels":{"watched":"%d-%d"}}}`, round, i)
		}),
	})
}

var fanOutWatchers = flag.Int("fan-out", 1_000, "watchers of BenchmarkFanOut; figures are of 10000")

// What ten thousand watchers follow.
const (
	fanOutObjects = 100
	fanOutEvents  = 10
)

// followed is the load of so many watchers that see so many changes each.
func followed(watchers, events int, path string, of func(round, i int) string, media string, patch func(round, i int) []byte) load {
	return load{fmt.Sprintf("watch-%d", watchers), watchers * events, func(b *testing.B, s *server, round, n int) {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute+time.Duration(watchers)*watchBegins)
		defer cancel()
		events := max(1, n/watchers)
		failed := make(chan error, watchers)
		var done sync.WaitGroup
		url := fmt.Sprintf("https://127.0.0.1:%d%s?watch=true&resourceVersion=%s", s.port, path, s.revision(b, path))
		for range watchers {
			begun := make(chan struct{})
			done.Go(func() {
				failed <- follow(ctx, s, url, events, func() { close(begun) })
			})
			<-begun // one after the other, or each would make a connection of its own
		}
		s.mark(b)
		for i := range events {
			s.want(b, http.StatusOK, http.MethodPatch, of(round, i), media, patch(round, i))
		}
		done.Wait()
		close(failed)
		for err := range failed {
			if err != nil {
				b.Fatal(err)
			}
		}
	}}
}

// revision is that of a list.
func (s *server) revision(b *testing.B, path string) string {
	b.Helper()
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(s.want(b, http.StatusOK, http.MethodGet, path+"?limit=1", "", nil), &list); err != nil {
		b.Fatal(err)
	}
	return list.Metadata.ResourceVersion
}

// follow reads a watch until so many events have come.
func follow(ctx context.Context, s *server, url string, events int, begun func()) error {
	once := sync.OnceFunc(begun)
	defer once()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	answer, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // it is only read
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("watch: %d", answer.StatusCode)
	}
	once()
	lines := bufio.NewReaderSize(answer.Body, 64<<10)
	for seen := range events {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("after %d events: %w", seen, err)
		}
		if !bytes.Contains(line, []byte(`"MODIFIED"`)) {
			return fmt.Errorf("event %d: %.200s", seen, line)
		}
	}
	return nil
}
