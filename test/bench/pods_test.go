package bench_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"setpoint.dev/setpoint/node/nodetest"
)

var (
	podRounds = flag.Int("pod-rounds", 15, "how often a pod is started on each side")
	manyPods  = flag.Int("pods", 50, "pods that run while memory is looked at")
	podsAlone = flag.Duration("pods-settle", 30*time.Second, "how long they are left alone before")
)

// fewPods are how many are started at once.
const fewPods = 10

// podSpec is one container whose image is there and that ends when it is told to.
var podSpec = object{"containers": []object{{
	"name": "c", "image": nodetest.BusyboxImage, "imagePullPolicy": "IfNotPresent", "command": []string{"sh", "-c", `trap "exit 0" TERM; sleep 100000 & wait`},
}}}

// BenchmarkPodStart runs a pod whose image is there, again and again and then some
// at once, beside kubelet with kube-apiserver, etcd, kube-controller-manager and
// kube-scheduler. A start is from the create to the watch that says Ready of all;
// an end from the delete to the moment when the last is gone. Processor time is by
// pod and of all processes of a side, without the runtime's.
func BenchmarkPodStart(b *testing.B) {
	all := newMachines(b)
	table := &strings.Builder{}
	fmt.Fprintln(table, "| | ms | of rounds | peer | of rounds | ratio | CPU ms a pod | peer | ratio |\n|---|---|---|---|---|---|---|---|---|")
	for _, n := range []int{1, fewPods} {
		starts, ends := make([][]cost, len(all)), make([][]cost, len(all))
		for round := range *podRounds + 1 {
			for who, s := range all {
				start, end := s.runPods(b, fmt.Sprintf("pod-%d-%d", n, round), n)
				if round > 0 { // the first is not like the others
					starts[who], ends[who] = append(starts[who], start), append(ends[who], end)
				}
			}
		}
		fmt.Fprintln(table, podRow(b, fmt.Sprintf("start-%d", n), starts))
		fmt.Fprintln(table, podRow(b, fmt.Sprintf("end-%d", n), ends))
	}
	b.ReportMetric(0, "ns/op")
	fmt.Printf("\n%s\n\n%s\n", b.Name(), table) // a benchmark's log is cut off
}

// runPods runs n pods and ends them. Costs are in milliseconds: on the clock of
// all, of processors of each.
func (s *server) runPods(b *testing.B, prefix string, n int) (start, end cost) {
	b.Helper()
	since := func() cost {
		return cost{wall: micros(time.Since(s.begun)) / 1000, cpu: micros(s.cpu(b)-s.used) / 1000 / float64(n)}
	}
	changes := s.watchPods(b)
	defer changes.close()
	s.mark(b)
	ready := changes.await(n, isReady)
	s.makePods(b, prefix, n)
	ready(b)
	start = since()
	time.Sleep(afterStart)
	s.mark(b)
	gone := changes.await(n, isGone)
	s.want(b, http.StatusOK, http.MethodDelete, scheduledPods, "", nil)
	gone(b)
	end = since()
	time.Sleep(afterStart)
	return start, end
}

// afterStart is how long what follows a start or an end is waited for, so that it
// is not counted with the next.
const afterStart = time.Second

func (s *server) makePods(b *testing.B, prefix string, n int) {
	b.Helper()
	together(b, n, func(i int) error {
		return s.expect(b.Context(), http.StatusCreated, http.MethodPost, scheduledPods, "application/json",
			encode(b, object{"metadata": object{"name": fmt.Sprintf("%s-%d", prefix, i)}, "spec": podSpec}))
	})
}

// podRow reports the medians of costs in milliseconds and returns their row of the
// table.
func podRow(b *testing.B, name string, by [][]cost) string {
	b.Helper()
	values := func(of []cost, value func(cost) float64) (all []float64) {
		for _, c := range of {
			all = append(all, value(c))
		}
		return all
	}
	wall, cpu := func(c cost) float64 { return c.wall }, func(c cost) float64 { return c.cpu }
	ours, theirs := values(by[0], wall), values(by[1], wall)
	row := []float64{median(ours), median(theirs), median(values(by[0], cpu)), median(values(by[1], cpu))}
	for i, what := range []string{name + "-ms", "peer-" + name + "-ms", name + "-cpu-ms", "peer-" + name + "-cpu-ms"} {
		b.ReportMetric(row[i], what)
	}
	return fmt.Sprintf("| %s | %.0f | %.0f - %.0f | %.0f | %.0f - %.0f | %.1f | %.1f | %.1f | %.1f |", name,
		row[0], ours[0], ours[len(ours)-1], row[1], theirs[0], theirs[len(theirs)-1], row[1]/row[0], row[2], row[3], row[3]/row[2])
}

// podChanges are those of pods that a watch tells.
type podChanges struct {
	decoder *json.Decoder
	close   func()
}

// watchPods follows pods from now on.
func (s *server) watchPods(b *testing.B) *podChanges {
	b.Helper()
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(s.want(b, http.StatusOK, http.MethodGet, scheduledPods+"?limit=1", "", nil), &list); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	url := fmt.Sprintf("https://127.0.0.1:%d%s?watch=1&timeoutSeconds=3600&resourceVersion=%s", s.port, scheduledPods, list.Metadata.ResourceVersion)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	answer, err := s.client.Do(req) //nolint:bodyclose // close does
	if err != nil || answer.StatusCode != http.StatusOK {
		b.Fatalf("watch pods: %v, %v", answer, err)
	}
	return &podChanges{decoder: json.NewDecoder(bufio.NewReaderSize(answer.Body, 1<<16)), close: func() {
		cancel()
		_ = answer.Body.Close() // the watch is over
	}}
}

// await reads until something was true of n pods. What it returns waits for that.
func (p *podChanges) await(n int, is func(*told) bool) func(*testing.B) {
	done := make(chan error, 1)
	go func() {
		seen := map[string]bool{}
		for len(seen) < n {
			var change told
			if err := p.decoder.Decode(&change); err != nil {
				done <- fmt.Errorf("watch pods: %d of %d: %w", len(seen), n, err)
				return
			}
			if is(&change) {
				seen[change.Object.Metadata.Name] = true
			}
		}
		done <- nil
	}()
	return func(b *testing.B) {
		b.Helper()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}

func isReady(c *told) bool { return conditions(c.Object.Status.Conditions).ready() }

func isGone(c *told) bool { return c.Type == "DELETED" }

// BenchmarkFiftyPods looks at the memory of both sides while 50 pods run and
// nothing happens, and at the processor time that they use in a minute of it.
func BenchmarkFiftyPods(b *testing.B) {
	all := newMachines(b)
	changes := make([]*podChanges, len(all))
	for who, s := range all {
		changes[who] = s.watchPods(b)
		defer changes[who].close()
		ready := changes[who].await(*manyPods, isReady)
		s.makePods(b, "many", *manyPods)
		ready(b)
	}
	time.Sleep(*podsAlone)
	for _, s := range all {
		s.mark(b)
	}
	time.Sleep(time.Minute)
	var rows [][]float64
	for _, s := range all {
		rows = append(rows, []float64{float64(s.memory(b, "VmRSS:")) / 1024, float64(s.pss(b)) / 1024, float64(s.memory(b, "RssAnon:")) / 1024, micros(s.cpu(b)-s.used) / 1000 / time.Since(s.begun).Minutes()})
	}
	b.ReportMetric(0, "ns/op")
	table := &strings.Builder{}
	fmt.Fprintln(table, "| | Setpoint | peer | ratio |\n|---|---|---|---|")
	for i, what := range []string{"rss-MiB", "pss-MiB", "anon-MiB", "cpu-ms/minute"} {
		b.ReportMetric(rows[0][i], what)
		b.ReportMetric(rows[1][i], "peer-"+what)
		fmt.Fprintf(table, "| %s | %.0f | %.0f | %.1f |\n", what, rows[0][i], rows[1][i], rows[1][i]/rows[0][i])
	}
	fmt.Printf("\n%s\n\n%s\n%s\n", b.Name(), table, all[1].shares(b)) // a benchmark's log is cut off
	for who, s := range all {
		gone := changes[who].await(*manyPods, isGone)
		s.want(b, http.StatusOK, http.MethodDelete, scheduledPods, "", nil)
		gone(b)
	}
}

// shares says what each process of a side has.
func (s *server) shares(b *testing.B) string {
	b.Helper()
	var all []string
	for _, p := range s.processes {
		path := strings.Split(p.Path, "/")
		all = append(all, fmt.Sprintf("%s %d MiB", path[len(path)-1], memory(b, p.Process.Pid, "VmRSS:")/1024))
	}
	return strings.Join(all, ", ")
}

// pss is the memory of all processes in KiB, where what they share is counted once.
func (s *server) pss(b *testing.B) (sum int) {
	b.Helper()
	for _, p := range s.processes {
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.Process.Pid))
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.SplitSeq(string(rollup), "\n") {
			rest, ok := strings.CutPrefix(line, "Pss:")
			if !ok {
				continue
			}
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				b.Fatal(err)
			}
			sum += kib
		}
	}
	return sum
}
