package bench_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"setpoint.dev/setpoint/test/bench"
)

var (
	growth = flag.String("growth", "1000,10000", "numbers of objects at which it is measured what things cost; figures are of 1000,10000,100000,500000")
	plots  = flag.String("plots", "", "folder for plots")
)

// growthTimes is how often each thing is done at a size; half as often as there
// are objects where these are few.
const growthTimes = 2_000

// grown is what things cost with so many objects, in microseconds of the server's
// processors.
type grown struct {
	objects                                   int
	create, get, patch, event, heap, resident float64 // the last two in bytes for each object
}

// BenchmarkGrowth measures what a create, a get, a patch, and an event to one of
// 100 watchers cost a server that has ever more ConfigMaps of 1 KiB, and how much memory it has
// for each.
func BenchmarkGrowth(b *testing.B) {
	s := setpointServer(b, buildSetpoint(b))
	s.start(b)
	b.Cleanup(s.stop)
	s.want(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces", "application/json", []byte(`{"metadata":{"name":"bench"}}`))
	k := configMaps
	emptyHeap, emptyResident := s.heap(b), s.memory(b, "RssAnon:")
	var table []grown
	made := 0
	for text := range strings.SplitSeq(*growth, ",") {
		size, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		times := min(growthTimes, size/2)
		s.fill(b, k, made, size-times)
		at := grown{objects: size}
		at.create = s.cpuOf(b, times, func() { s.fill(b, k, size-times, size) })
		made = size
		spread := func(i int) string { return k.of(0, i*(made/times)) }
		at.get = s.cpuOf(b, times, func() {
			together(b, times, func(i int) error {
				return s.expect(b.Context(), http.StatusOK, http.MethodGet, spread(i), "", nil)
			})
		})
		at.patch = s.cpuOf(b, times, func() {
			together(b, times, func(i int) error {
				return s.expect(b.Context(), http.StatusOK, http.MethodPatch, spread(i), "application/merge-patch+json", fmt.Appendf(nil, `{"data":{"size":"%d"}}`, size))
			})
		})
		at.event = s.events(b, k, spread, size)
		at.heap = float64(s.heap(b)-emptyHeap) / float64(made)
		time.Sleep(returned)
		at.resident = float64(s.memory(b, "RssAnon:")-emptyResident) * 1024 / float64(made)
		fmt.Printf("growth: %+v\n", at)
		table = append(table, at)
	}
	b.ReportMetric(0, "ns/op")
	tellGrowth(b, table)
}

// fill makes objects from one number to another.
func (s *server) fill(b *testing.B, k builtin, from, to int) {
	b.Helper()
	together(b, to-from, func(i int) error {
		return s.expect(b.Context(), http.StatusCreated, http.MethodPost, k.path(), "application/json", k.manifest(k.name(0, from+i), "growth"))
	})
}

// cpuOf is what the server's processors take for one of n things.
func (s *server) cpuOf(b *testing.B, n int, do func()) float64 {
	b.Helper()
	s.mark(b)
	do()
	return micros(s.cpu(b)-s.used) / float64(n)
}

// events is what an event to one of 100 watchers costs, the patch that causes them
// included.
func (s *server) events(b *testing.B, k builtin, spread func(int) string, size int) float64 {
	b.Helper()
	const watchers, changes = 100, 50
	followed(watchers, changes, k.path(), func(_, i int) string { return spread(i) }, "application/merge-patch+json",
		func(_, i int) []byte { return fmt.Appendf(nil, `{"data":{"event":"%d-%d"}}`, size, i) }).run(b, s, 0, watchers*changes)
	return micros(s.cpu(b)-s.used) / (watchers * changes)
}

// tellGrowth writes the table, and the plot if there is a folder for it.
func tellGrowth(b *testing.B, table []grown) {
	b.Helper()
	fmt.Printf("\n%s\n\n| objects | create µs | get µs | patch µs | event to one of 100 µs | heap bytes for each | resident bytes for each |\n|---|---|---|---|---|---|---|\n", b.Name())
	plot := bench.Plot{Title: "What things cost with ever more ConfigMaps of 1 KiB", Along: "objects", Lines: []bench.Line{
		{Name: "create", Unit: "µs of processor"},
		{Name: "get", Unit: "µs of processor"},
		{Name: "patch", Unit: "µs of processor"},
		{Name: "event to one of 100", Unit: "µs"},
		{Name: "memory of an object", Unit: "10 bytes of heap"},
	}}
	for _, at := range table {
		fmt.Printf("| %d | %.0f | %.0f | %.0f | %.1f | %.0f | %.0f |\n", at.objects, at.create, at.get, at.patch, at.event, at.heap, at.resident)
		plot.At = append(plot.At, float64(at.objects))
		for i, value := range []float64{at.create, at.get, at.patch, at.event, at.heap / 10} {
			plot.Lines[i].Of = append(plot.Lines[i].Of, value)
		}
		b.ReportMetric(at.create, fmt.Sprintf("create-%d-µs", at.objects))
	}
	if *plots == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(*plots, "growth.svg"), []byte(plot.SVG()), 0o644); err != nil { //nolint:gosec // a picture for all to see
		b.Fatal(err)
	}
}
