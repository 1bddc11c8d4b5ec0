package bench_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The load of a neighbour: so many requests at once for all of so many objects. The
// polite client has made enough after so many creates, or so long.
const (
	neighbourRequests = 1_000
	neighbourObjects  = 2_000
	politeCreates     = 20_000
	politeFor         = time.Minute
)

// Users that have no more rights than they need: those of admins never wait.
const (
	noisyToken  = "noisy-token"
	politeToken = "polite-token"
	otherTokens = noisyToken + ",noisy,noisy\n" + politeToken + ",polite,polite\n"
)

// computes is for a neighbour that asks for nothing, and only computes.
const computes = "computes"

var (
	neighbour        = flag.String("neighbour", "", "be a noisy neighbour of the server at this URL until standard input ends; \""+computes+"\" for one that asks for nothing")
	neighbourAccepts = flag.String("neighbour-accepts", "gzip", "the encoding of what the neighbour is told")
)

// noise is what a neighbour does.
type noise struct{ name, query, accepts string }

// noises are lists in gzip, as clients ask for them, and in plain, and watches that
// begin with what is there.
var noises = []noise{{"lists", "", "gzip"}, {"plain-lists", "", "identity"}, {"watches", "&watch=true", "gzip"}}

// TestNeighbour is the noisy neighbour, in a process of its own.
func TestNeighbour(t *testing.T) {
	if *neighbour == "" {
		t.Skip("only where BenchmarkNeighbour asks for it")
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that counts
		cancel()
	}()
	if *neighbour == computes {
		compute(ctx)
		return
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // on loopback, among processes of our own
		ForceAttemptHTTP2: true,
	}}
	var answered, refused atomic.Int64
	var all sync.WaitGroup
	for range neighbourRequests {
		all.Go(func() {
			for ctx.Err() == nil {
				code, err := consume(ctx, client, *neighbour)
				switch {
				case err == nil && code == http.StatusOK:
					answered.Add(1)
				case err == nil && code == http.StatusTooManyRequests:
					refused.Add(1)
					select {
					case <-ctx.Done():
					case <-time.After(time.Second): // as Retry-After says
					}
				case ctx.Err() == nil:
					t.Errorf("%d, %v", code, err)
					return
				}
			}
		})
	}
	all.Wait()
	fmt.Printf("neighbour: %d answered, %d refused\n", answered.Load(), refused.Load())
}

// compute keeps all processors busy.
func compute(ctx context.Context) {
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = sha256.Sum256(make([]byte, 4096))
			}
		})
	}
	all.Wait()
}

// consume reads all of an answer, as it comes: it is not unpacked.
func consume(ctx context.Context, client *http.Client, url string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+noisyToken)
	req.Header.Set("Accept-Encoding", *neighbourAccepts)
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, errors.Join(err, resp.Body.Close())
}

// BenchmarkNeighbour measures how long a polite client's creates take, one after
// the other, alone and beside a neighbour of another name with a thousand lists,
// or a thousand watches, at once. The neighbour has no machine of its own here, so
// servers and the polite client come before it wherever it computes: what is measured
// is what it makes the server do. Creates beside a neighbour that asks the server for
// nothing show whether that is so.
func BenchmarkNeighbour(b *testing.B) {
	comeFirst(b)
	all := newSides(b)
	b.ReportMetric(0, "ns/op")
	for who, s := range all {
		name := []string{"", "peer-"}[who]
		s.prepare(b)
		alone := s.polite(b, name+"alone")
		stop := makeNoise(b, computes, "")
		computing := s.polite(b, name+"computing")
		stop()
		fmt.Printf("%salone: %v; beside one that computes: %v\n", name, alone, computing)
		b.ReportMetric(times(computing, alone), name+"computing-p99-times")
		for _, n := range noises {
			stop := makeNoise(b, fmt.Sprintf("https://127.0.0.1:%d/api/v1/namespaces/bench/configmaps?resourceVersion=0%s", s.port, n.query), n.accepts)
			beside := s.polite(b, name+n.name)
			said := stop()
			fmt.Printf("%sbeside %s: %v, %.1f times that alone, %.1f times that beside one that computes; %s\n",
				name, n.name, beside, times(beside, alone), times(beside, computing), said)
			b.ReportMetric(times(beside, alone), name+n.name+"-p99-times")
			b.ReportMetric(times(beside, computing), name+n.name+"-p99-times-computing")
		}
	}
}

// comeFirst has this process, and those that it starts, run before all that have no
// real-time priority, for as long as the benchmark lasts.
func comeFirst(b *testing.B) {
	b.Helper()
	prioritize := func(policy, priority string) error {
		said, err := exec.CommandContext(context.WithoutCancel(b.Context()), "chrt", policy, "--all-tasks", "--pid", priority, strconv.Itoa(os.Getpid())).CombinedOutput()
		if err != nil {
			return fmt.Errorf("chrt: %w: %s", err, said)
		}
		return nil
	}
	if err := prioritize("--rr", "10"); err != nil {
		b.Logf("no real-time priority, so what the neighbour computes counts, too: %v", err)
		return
	}
	b.Cleanup(func() {
		if err := prioritize("--other", "0"); err != nil {
			b.Error(err)
		}
	})
}

// times is how many times as long the slowest of a hundred takes.
func times(a, b quantiles) float64 { return float64(a.p99) / float64(b.p99) }

// prepare makes objects, and lets the two users read and write them.
func (s *server) prepare(b *testing.B) {
	b.Helper()
	s.want(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces", "application/json", []byte(`{"metadata":{"name":"bench"}}`))
	// A role of its own: that of editors has no rules where no controller gathers them.
	s.want(b, http.StatusCreated, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterroles", "application/json",
		[]byte(`{"metadata":{"name":"neighbours"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["*"]}]}`))
	for _, user := range []string{"noisy", "polite"} {
		s.want(b, http.StatusCreated, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "application/json", fmt.Appendf(nil,
			`{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"neighbours"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%q}]}`, user, user))
	}
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		code, _, err := s.as(politeToken).do(b.Context(), http.MethodGet, "/api/v1/namespaces/default/configmaps/none", "", nil)
		if err == nil && code == http.StatusNotFound {
			break // it is known that he may
		}
		if time.Since(begun) > 10*time.Second {
			b.Fatalf("the polite user may not: %d, %v", code, err)
		}
	}
	data := strings.Repeat("x", 1024)
	together(b, neighbourObjects, func(i int) error {
		return s.expect(b.Context(), http.StatusCreated, http.MethodPost, "/api/v1/namespaces/bench/configmaps", "application/json",
			fmt.Appendf(nil, `{"metadata":{"name":"object-%d"},"data":{"a":%q}}`, i, data))
	})
}

// makeNoise starts a neighbour that asks for url. What it returns ends that, and
// returns what it says. The neighbour computes when nobody else does.
func makeNoise(b *testing.B, url, accepts string) func() string {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), "chrt", "--idle", "0", os.Args[0], "-test.run", "^TestNeighbour$", "-test.v", "-neighbour-accepts", accepts, "-neighbour", url)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	time.Sleep(5 * time.Second) // until it is at its noisiest
	return func() string {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			b.Errorf("the neighbour: %v: %s", err, out.String())
		}
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "neighbour: ") {
				return strings.TrimSpace(line)
			}
		}
		return ""
	}
}

// quantiles are those of creates. Stolen is which part of its processors' time the
// machine has not had meanwhile, because others on its host had it: where that is
// more than a little, the slowest creates are the host's.
type quantiles struct {
	p50, p99 time.Duration
	refused  int
	stolen   float64
}

func (q quantiles) String() string {
	return fmt.Sprintf("p50 %v, p99 %v (%d refused, %.0f%% stolen)", q.p50, q.p99, q.refused, 100*q.stolen)
}

// polite makes objects, one after the other, in a namespace that nobody reads. One
// that is refused is tried again after a second, as Retry-After says, which is a part
// of how long it takes.
func (s *server) polite(b *testing.B, prefix string) quantiles {
	b.Helper()
	var q quantiles
	var took []time.Duration
	stolen, all := processorTime(b)
	for i, since := 0, time.Now(); i < politeCreates && time.Since(since) < politeFor; i++ {
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": fmt.Sprintf("%s-%d", prefix, i)}, "data": map[string]string{"a": "b"}})
		if err != nil {
			b.Fatal(err)
		}
		begun := time.Now()
		for {
			code, said, err := s.as(politeToken).do(b.Context(), http.MethodPost, "/api/v1/namespaces/default/configmaps", "application/json", body)
			if err == nil && code == http.StatusCreated {
				break
			}
			if err != nil || code != http.StatusTooManyRequests || time.Since(begun) > politeFor {
				b.Fatalf("create: %d, %v: %s", code, err, said)
			}
			q.refused++
			time.Sleep(time.Second)
		}
		took = append(took, time.Since(begun))
	}
	stolenThen, allThen := processorTime(b)
	q.stolen = (stolenThen - stolen) / max(allThen-all, 1)
	slices.Sort(took)
	q.p50, q.p99 = took[len(took)/2], took[len(took)*99/100]
	return q
}

// processorTime is the time of all processors since the machine was started, and
// what of it the host had for others, in ticks.
func processorTime(b *testing.B) (stolen, all float64) {
	b.Helper()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	first, _, _ := strings.Cut(string(stat), "\n")
	for i, text := range strings.Fields(first)[1:9] { // what guests had is in the first two
		ticks, err := strconv.ParseFloat(text, 64)
		if err != nil {
			b.Fatal(err)
		}
		if i == 7 {
			stolen = ticks
		}
		all += ticks
	}
	return stolen, all
}
