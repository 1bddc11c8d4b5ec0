package bench_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var definitions = flag.Int("definitions", 2000, "CustomResourceDefinitions to install")

const (
	definitionsPath  = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	definitionSize   = 10 << 10
	definitionGroups = 200 // that definitions are spread over
	installers       = 8
	latecomers       = 20  // definitions that are installed on top, one by one
	usedKinds        = 100 // kinds that are used
)

// definition is a CustomResourceDefinition of its own shape, 10 KiB long.
type definition struct{ group, plural, kind string }

func newDefinition(i int) definition {
	return definition{fmt.Sprintf("g%03d.example.org", i%definitionGroups), fmt.Sprintf("widget%05ds", i), fmt.Sprintf("Widget%05d", i)}
}

func (d definition) name() string { return d.plural + "." + d.group }
func (d definition) path() string { return "/apis/" + d.group + "/v1/namespaces/default/" + d.plural }

func (d definition) json(b *testing.B) []byte {
	b.Helper()
	type object = map[string]any
	field := func(about, kind string) object { return object{"type": kind, "description": about} }
	spec := object{}
	crd := object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": d.name()},
		"spec": object{
			"group": d.group, "scope": "Namespaced",
			"names": object{"plural": d.plural, "singular": strings.ToLower(d.kind), "kind": d.kind, "listKind": d.kind + "List"},
			"versions": []object{{
				"name": "v1", "served": true, "storage": true, "subresources": object{"status": object{}},
				"schema": object{"openAPIV3Schema": object{"type": "object", "properties": object{
					"apiVersion": field("The version.", "string"), "kind": field("The kind.", "string"), "metadata": object{"type": "object"},
					"spec":   object{"type": "object", "properties": spec},
					"status": object{"type": "object", "properties": object{"phase": field("How far it is.", "string")}},
				}}},
			}},
		},
	}
	for i := 0; ; i++ {
		body, err := json.Marshal(crd)
		if err != nil {
			b.Fatal(err)
		}
		if len(body) >= definitionSize {
			return body
		}
		about := fmt.Sprintf("Part %d of a %s: what is wanted of it, and by when.", i, d.kind)
		spec[fmt.Sprintf("part%02d", i)] = object{"type": "object", "description": about, "required": []string{"name"}, "properties": object{
			"name": field("Its name.", "string"), "count": object{"type": "integer", "minimum": 0, "default": 1},
			"ready": field("Whether it is ready.", "boolean"),
			"ports": object{"type": "array", "items": object{"type": "object", "properties": object{
				"port": field("The number.", "integer"), "protocol": object{"type": "string", "enum": []string{"TCP", "UDP"}},
			}}},
			"labels": object{"type": "object", "additionalProperties": object{"type": "string"}},
		}}
	}
}

func (d definition) object() []byte {
	return fmt.Appendf(nil, `{"apiVersion":"%s/v1","kind":%q,"metadata":{"name":"one"},"spec":{"part00":{"name":"a","ports":[{"port":80,"protocol":"TCP"}]}}}`, d.group, d.kind)
}

// installed is what definitions cost a server.
type installed struct {
	wall, cpu  time.Duration // of installing all of them
	rss, heap  float64       // KiB for each, before it is used
	cold, warm time.Duration // of `kubectl get` with an empty cache: the first, and later ones
	coldCPU    time.Duration // of the server for the first
	served     time.Duration // from the answer to a create until the kind is served
	firstUse   time.Duration // of a create and a list of a kind that was never used
	usedHeap   float64       // KiB more for each kind that is used
}

// BenchmarkDefinitions measures what thousands of CustomResourceDefinitions
// cost, beside kube-apiserver and etcd when these are given.
func BenchmarkDefinitions(b *testing.B) {
	binary := buildSetpoint(b)
	ours := installDefinitions(b, setpointServer(b, binary), binary)
	b.ReportMetric(0, "ns/op")
	ours.report(b, "")
	if !hasPeer() {
		b.Log("no peer: give -kube-apiserver and -etcd to measure beside them")
		return
	}
	theirs := installDefinitions(b, peerServer(b), binary)
	theirs.report(b, "peer-")
}

func (i installed) report(b *testing.B, who string) {
	b.Helper()
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(i.wall), who+"install-ms")
	b.ReportMetric(ms(i.cpu), who+"install-cpu-ms")
	b.ReportMetric(i.rss, who+"rss-KiB/crd")
	b.ReportMetric(i.heap, who+"heap-KiB/crd")
	b.ReportMetric(ms(i.cold), who+"cold-get-ms")
	b.ReportMetric(ms(i.coldCPU), who+"cold-get-cpu-ms")
	b.ReportMetric(ms(i.warm), who+"next-cold-get-ms")
	b.ReportMetric(ms(i.served), who+"until-served-ms")
	b.ReportMetric(ms(i.firstUse), who+"first-use-ms")
	b.ReportMetric(i.usedHeap, who+"used-KiB/crd")
}

func installDefinitions(b *testing.B, s *server, kubectl string) installed {
	b.Helper()
	s.start(b)
	defer s.stop()
	time.Sleep(settled)
	var at installed
	bodies := make([][]byte, *definitions)
	for i := range bodies {
		bodies[i] = newDefinition(i).json(b)
	}
	heap := s.heap(b)
	rss := s.settledMemory(b)

	begun, cpu := time.Now(), s.cpu(b)
	s.install(b, bodies)
	at.wall, at.cpu = time.Since(begun), s.cpu(b)-cpu
	at.heap = float64(s.heap(b)-heap) / 1024 / float64(len(bodies))
	at.rss = float64(s.settledMemory(b)-rss) / float64(len(bodies))

	cpu = s.cpu(b)
	at.cold = s.kubectlGet(b, kubectl, newDefinition(0))
	at.coldCPU = s.cpu(b) - cpu
	var again []float64
	for range rounds {
		again = append(again, float64(s.kubectlGet(b, kubectl, newDefinition(0))))
	}
	at.warm = time.Duration(median(again))

	var waits, uses []float64
	for i := range latecomers {
		d := newDefinition(*definitions + i)
		s.want(b, http.StatusCreated, http.MethodPost, definitionsPath, "application/json", d.json(b))
		begun := time.Now()
		s.waitServed(b, d)
		waits = append(waits, float64(time.Since(begun)))
	}
	at.served = time.Duration(median(waits))

	heap = s.heap(b)
	used := min(usedKinds, *definitions)
	for i := range used {
		d := newDefinition(i)
		begun := time.Now()
		s.want(b, http.StatusCreated, http.MethodPost, d.path(), "application/json", d.object())
		s.waitServed(b, d) // the peer says 429 until its cache is there
		uses = append(uses, float64(time.Since(begun)))
	}
	at.firstUse = time.Duration(median(uses))
	at.usedHeap = float64(s.heap(b)-heap) / 1024 / float64(used)
	return at
}

// settledMemory is the resident memory some time after a collection.
func (s *server) settledMemory(b *testing.B) int {
	b.Helper()
	s.heap(b)
	time.Sleep(settled)
	return s.memory(b, "VmRSS:")
}

// install creates definitions and waits until all are established.
func (s *server) install(b *testing.B, bodies [][]byte) {
	b.Helper()
	var next atomic.Int64
	var wait sync.WaitGroup
	failed := make(chan error, installers)
	for range installers {
		wait.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(bodies)); i = next.Add(1) - 1 {
				code, answer, err := s.do(b.Context(), http.MethodPost, definitionsPath, "application/json", bodies[i])
				if err != nil || code != http.StatusCreated {
					failed <- fmt.Errorf("definition %d: %d, %w: %.500s", i, code, err, answer)
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
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		all := s.want(b, http.StatusOK, http.MethodGet, definitionsPath, "", nil)
		if bytes.Count(all, []byte(`"reason":"InitialNamesAccepted"`)) >= len(bodies) {
			return
		}
		if time.Now().After(deadline) {
			b.Fatal("not all definitions are established")
		}
	}
}

// waitServed asks for a kind's objects until they are served.
func (s *server) waitServed(b *testing.B, d definition) {
	b.Helper()
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(time.Millisecond) {
		code, answer, err := s.do(b.Context(), http.MethodGet, d.path(), "", nil)
		if err == nil && code == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s is not served: %d, %v: %.500s", d.name(), code, err, answer)
		}
	}
}

// kubectlGet is how long `kubectl get` takes with nothing in its cache.
func (s *server) kubectlGet(b *testing.B, kubectl string, d definition) time.Duration {
	b.Helper()
	home := b.TempDir()
	get := exec.CommandContext(b.Context(), kubectl, "kubectl", "get", d.name(), "--server", fmt.Sprintf("https://127.0.0.1:%d", s.port),
		"--token", token, "--insecure-skip-tls-verify", "--cache-dir", filepath.Join(home, "cache"))
	get.Env = []string{"HOME=" + home, "KUBECONFIG=" + filepath.Join(home, "none")}
	begun := time.Now()
	if out, err := get.CombinedOutput(); err != nil {
		b.Fatalf("kubectl get: %v: %s", err, out)
	}
	return time.Since(begun)
}
