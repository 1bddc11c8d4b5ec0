package bench_test

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// clients is how many ask at a time.
const clients = 16

// load is something that is done to a server n times, in a round. The first
// round, 0, is not measured.
type load struct {
	name string
	n    int
	run  func(b *testing.B, s *server, round, n int)
}

var only = flag.String("only", "", "loads to measure beside the creates, by how their names begin; all when none is given")

var profiles = flag.String("profiles", "", "folder for profiles of Setpoint's processor time, one for each load of the last round")

const profileSeconds = 10

// profile begins a profile, if there is a folder for it, and returns what waits
// for its end. A load that lasts longer is seen in part.
func (s *server) profile(b *testing.B, name string) func() {
	b.Helper()
	if *profiles == "" {
		return func() {}
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		code, body, err := s.do(b.Context(), http.MethodGet, fmt.Sprintf("/debug/pprof/profile?seconds=%d", profileSeconds), "", nil)
		if err == nil && code == http.StatusOK {
			err = os.WriteFile(filepath.Join(*profiles, strings.ReplaceAll(b.Name(), "/", "-")+"-"+name+".pprof"), body, 0o600)
		}
		if err != nil || code != http.StatusOK {
			b.Errorf("profile of %s: %d, %v", name, code, err)
		}
	})
	return wait.Wait
}

// wanted says that the load is to be measured. Creates make what the others
// work on.
func (l load) wanted() bool {
	return *only == "" || l.name == "create" || slices.ContainsFunc(strings.Split(*only, ","), func(name string) bool { return strings.HasPrefix(l.name, name) })
}

// cost is what an operation takes, on the clock and of the server's
// processors, in microseconds.
type cost struct{ wall, cpu float64 }

// sides are the servers that are compared: Setpoint, and kube-apiserver with
// etcd when these are given. All are up for the whole run and take turns.
type sides []*server

func newSides(b *testing.B) sides {
	b.Helper()
	all := sides{setpointServer(b, buildSetpoint(b))}
	if hasPeer() {
		all = append(all, peerServer(b))
	} else {
		b.Log("no peer: give -kube-apiserver and -etcd to measure beside them")
	}
	for _, s := range all {
		s.start(b)
		b.Cleanup(s.stop)
	}
	return all
}

// each sends the same request to all servers.
func (all sides) each(b *testing.B, code int, method, path, media string, body []byte) {
	b.Helper()
	for _, s := range all {
		s.want(b, code, method, path, media, body)
	}
}

// mark says that what is measured begins now. A load may say so again, when it
// is ready.
func (s *server) mark(b *testing.B) {
	b.Helper()
	s.begun, s.used = time.Now(), s.cpu(b)
}

// measure puts the loads on the servers, in rounds, and reports what they cost:
// the median of all rounds, and the ratios of the rounds with their spread.
func (all sides) measure(b *testing.B, loads []load) {
	b.Helper()
	costs := make([][][]cost, len(loads)) // by load, server, round
	for i := range loads {
		costs[i] = make([][]cost, len(all))
	}
	for round := range rounds + 1 {
		for i, l := range loads {
			if !l.wanted() {
				continue
			}
			for who, s := range all {
				n := l.n
				if round == 0 {
					n = max(1, n/warming)
				}
				profiled := func() {}
				if round == rounds && who == 0 {
					profiled = s.profile(b, l.name)
				}
				s.mark(b)
				l.run(b, s, round, n)
				if round > 0 {
					costs[i][who] = append(costs[i][who], cost{micros(time.Since(s.begun)) / float64(n), micros(s.cpu(b)-s.used) / float64(n)})
				}
				profiled()
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	table := &strings.Builder{}
	fmt.Fprintln(table, "| | CPU µs | peer | ratio | of rounds | wall µs | peer | ratio |\n|---|---|---|---|---|---|---|---|")
	for i, l := range loads {
		if l.wanted() {
			fmt.Fprintln(table, row(b, l.name, costs[i]))
		}
	}
	fmt.Printf("\n%s\n\n%s\n", b.Name(), table) // a benchmark's log is cut off
}

// warming is by how much the round before the first is smaller.
const warming = 5

// row reports a load's costs and returns its row of the table.
func row(b *testing.B, name string, by [][]cost) string {
	b.Helper()
	pick := func(of []cost, value func(cost) float64) float64 {
		var values []float64
		for _, c := range of {
			values = append(values, value(c))
		}
		return median(values)
	}
	cpu, wall := func(c cost) float64 { return c.cpu }, func(c cost) float64 { return c.wall }
	ours := cost{wall: pick(by[0], wall), cpu: pick(by[0], cpu)}
	b.ReportMetric(ours.wall, name+"-µs")
	b.ReportMetric(ours.cpu, name+"-cpu-µs")
	if len(by) == 1 {
		return fmt.Sprintf("| %s | %.0f | | | | %.0f | | |", name, ours.cpu, ours.wall)
	}
	theirs := cost{wall: pick(by[1], wall), cpu: pick(by[1], cpu)}
	var ratios, walls []float64
	for round, c := range by[0] {
		ratios = append(ratios, by[1][round].cpu/c.cpu)
		walls = append(walls, by[1][round].wall/c.wall)
	}
	ratio, faster := median(ratios), median(walls) // sorted from here on
	b.ReportMetric(theirs.wall, "peer-"+name+"-µs")
	b.ReportMetric(theirs.cpu, "peer-"+name+"-cpu-µs")
	b.ReportMetric(ratio, name+"-cpu-ratio")
	b.ReportMetric(faster, name+"-ratio")
	return fmt.Sprintf("| %s | %.0f | %.0f | %.1f | %.1f - %.1f | %.0f | %.0f | %.1f |", name, ours.cpu, theirs.cpu, ratio, ratios[0], ratios[len(ratios)-1], ours.wall, theirs.wall, faster)
}

// together runs n operations by all clients.
func together(b *testing.B, n int, one func(i int) error) {
	b.Helper()
	var next atomic.Int64
	var wait sync.WaitGroup
	failed := make(chan error, clients)
	for range clients {
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
}

// patches is a load of patches, one for each object.
func patches(name string, n int, media string, path func(round, i int) string, patch func(round, i int) []byte) load {
	return load{name, n, func(b *testing.B, s *server, round, n int) {
		together(b, n, func(i int) error {
			return s.expect(b.Context(), http.StatusOK, http.MethodPatch, path(round, i), media, patch(round, i))
		})
	}}
}

const listTimes = 5

// listing is what a client asks for all of.
type listing struct {
	name, path, accept string
	encoding           string // that the client takes; what Go's takes when it is empty: gzip
}

// load asks for the list several times.
func (l listing) load() load {
	return load{l.name, listTimes, func(b *testing.B, s *server, _, n int) {
		for range n {
			if code, size, err := s.skim(b.Context(), l.path, l.accept, l.encoding); err != nil || code != http.StatusOK {
				b.Fatalf("list: %d, %v after %d bytes", code, err, size)
			}
		}
	}}
}

// pageSize is what kubectl asks for at a time.
const pageSize = 500

// pages is a load of lists that are asked for page by page. Its cost is that of
// a whole list.
func pages(name, path string) load {
	return load{name, listTimes, func(b *testing.B, s *server, _, n int) {
		for range n {
			for next := ""; ; {
				body := s.want(b, http.StatusOK, http.MethodGet, fmt.Sprintf("%s?limit=%d&continue=%s", path, pageSize, url.QueryEscape(next)), "", nil)
				if next = continues(body); next == "" {
					break
				}
			}
		}
	}}
}

// continues is where the next page of a list begins; "" after the last. It looks
// at the head alone: reading all would cost more than the page costs the server.
func continues(page []byte) string {
	_, rest, found := bytes.Cut(page[:min(len(page), 1024)], []byte(`"continue":"`))
	if !found {
		return ""
	}
	token, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(token)
}
