package bench_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The load on custom resources: objects of 2 KiB.
const (
	customObjects  = 10_000
	customClients  = 16
	customPatches  = 4_000
	customApplies  = 2_000
	customLists    = 5
	customWatchers = 100
	customEvents   = 200 // changes that every watcher sees
)

// cost is what an operation takes, on the clock and of the server's
// processors.
type cost struct{ wall, cpu time.Duration }

// BenchmarkCustom measures what is done with custom resources, beside
// kube-apiserver and etcd when these are given. Both servers are up for the
// whole run and take turns.
func BenchmarkCustom(b *testing.B) {
	ours := setpointServer(b, buildSetpoint(b))
	ours.start(b)
	defer ours.stop()
	servers := map[string]*server{"": ours}
	order := []string{""}
	if hasPeer() {
		theirs := peerServer(b)
		theirs.start(b)
		defer theirs.stop()
		servers["peer-"], order = theirs, append(order, "peer-")
	} else {
		b.Log("no peer: give -kube-apiserver and -etcd to measure beside them")
	}
	d := newDefinition(0)
	for _, s := range servers {
		s.want(b, http.StatusCreated, http.MethodPost, definitionsPath, "application/json", d.json(b))
		s.waitServed(b, d)
	}
	b.ReportMetric(0, "ns/op")
	for _, load := range []struct {
		name string
		run  func(b *testing.B, s *server, d definition) (operations int)
	}{
		{"create", createCustom}, {"merge", mergeCustom}, {"apply", applyCustom}, {"list", listCustom}, {"watch", watchCustom},
	} {
		costs := map[string]cost{}
		for _, who := range order {
			s := servers[who]
			begun, cpu := time.Now(), s.cpu(b)
			n := time.Duration(load.run(b, s, d))
			c := cost{time.Since(begun) / n, (s.cpu(b) - cpu) / n}
			costs[who] = c
			b.ReportMetric(float64(c.wall.Nanoseconds())/1000, who+load.name+"-µs")
			b.ReportMetric(float64(c.cpu.Nanoseconds())/1000, who+load.name+"-cpu-µs")
		}
		if theirs, ok := costs["peer-"]; ok {
			b.ReportMetric(float64(theirs.wall)/float64(costs[""].wall), load.name+"-ratio")
			b.ReportMetric(float64(theirs.cpu)/float64(costs[""].cpu), load.name+"-cpu-ratio")
		}
	}
}

// customObject is an object of 2 KiB.
func customObject(d definition, i int) []byte {
	type object = map[string]any
	spec := object{}
	for p := range 8 {
		spec[fmt.Sprintf("part%02d", p)] = object{
			"name": fmt.Sprintf("part-%d-of-%d", p, i), "count": p, "ready": true,
			"ports":  []object{{"port": 80, "protocol": "TCP"}, {"port": 443, "protocol": "TCP"}},
			"labels": object{"app": strings.Repeat("a", 40), "tier": strings.Repeat("b", 40)},
		}
	}
	body, _ := json.Marshal(object{ // of texts and numbers
		"apiVersion": d.group + "/v1", "kind": d.kind, "metadata": object{"name": customName(i), "labels": object{"app": "bench"}}, "spec": spec,
	})
	return body
}

func customName(i int) string { return fmt.Sprintf("object-%05d", i) }

// together runs n operations by all clients.
func together(b *testing.B, n int, one func(i int) error) int {
	b.Helper()
	var next atomic.Int64
	var wait sync.WaitGroup
	failed := make(chan error, customClients)
	for range customClients {
		wait.Go(func() {
			for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
				if err := one(i); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wait.Wait()
	select {
	case err := <-failed:
		b.Fatal(err)
	default:
	}
	return n
}

func (s *server) expect(ctx context.Context, code int, method, path, media string, body []byte) error {
	got, answer, err := s.do(ctx, method, path, media, body)
	if err != nil || got != code {
		return fmt.Errorf("%s %s: %d, %w: %.500s", method, path, got, err, answer)
	}
	return nil
}

func createCustom(b *testing.B, s *server, d definition) int {
	return together(b, customObjects, func(i int) error {
		return s.expect(b.Context(), http.StatusCreated, http.MethodPost, d.path(), "application/json", customObject(d, i))
	})
}

func mergeCustom(b *testing.B, s *server, d definition) int {
	return together(b, customPatches, func(i int) error {
		patch := fmt.Appendf(nil, `{"spec":{"part00":{"count":%d}}}`, i+100)
		return s.expect(b.Context(), http.StatusOK, http.MethodPatch, d.path()+"/"+customName(i), "application/merge-patch+json", patch)
	})
}

func applyCustom(b *testing.B, s *server, d definition) int {
	return together(b, customApplies, func(i int) error {
		patch := fmt.Appendf(nil, `{"apiVersion":"%s/v1","kind":%q,"metadata":{"name":%q},"spec":{"part01":{"name":"applied","count":%d,"labels":{"by":"bench"}}}}`,
			d.group, d.kind, customName(i), i+200)
		return s.expect(b.Context(), http.StatusOK, http.MethodPatch, d.path()+"/"+customName(i)+"?fieldManager=bench&force=true", "application/apply-patch+yaml", patch)
	})
}

func listCustom(b *testing.B, s *server, d definition) int {
	for range customLists {
		s.want(b, http.StatusOK, http.MethodGet, d.path(), "", nil)
	}
	return customLists
}

// watchCustom changes objects while watchers follow, until each has seen all.
func watchCustom(b *testing.B, s *server, d definition) int {
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(s.want(b, http.StatusOK, http.MethodGet, d.path()+"?limit=1", "", nil), &list); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	path := fmt.Sprintf("https://127.0.0.1:%d%s?watch=true&resourceVersion=%s", s.port, d.path(), list.Metadata.ResourceVersion)
	failed := make(chan error, customWatchers)
	var watching, done sync.WaitGroup
	watching.Add(customWatchers)
	for range customWatchers {
		done.Go(func() {
			failed <- follow(ctx, s, path, watching.Done)
		})
	}
	watching.Wait()
	for i := range customEvents {
		patch := fmt.Appendf(nil, `{"spec":{"part00":{"count":%d}}}`, i+1_000_000)
		s.want(b, http.StatusOK, http.MethodPatch, d.path()+"/"+customName(i), "application/merge-patch+json", patch)
	}
	done.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			b.Fatal(err)
		}
	}
	return customEvents * customWatchers
}

// follow reads a watch until all events have come.
func follow(ctx context.Context, s *server, url string, begun func()) error {
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
	for seen := 0; seen < customEvents; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("after %d events: %w", seen, err)
		}
		if !bytes.Contains(line, []byte(`"MODIFIED"`)) {
			return fmt.Errorf("event %d: %.200s", seen, line)
		}
		seen++
	}
	return nil
}
