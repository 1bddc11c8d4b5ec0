package bench_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	kubeAPIServer = flag.String("kube-apiserver", "", "kube-apiserver to measure beside Setpoint")
	etcdServer    = flag.String("etcd", "", "etcd for it")
)

// settled is how long after it is ready a server's memory is looked at.
const settled = 5 * time.Second

// started is what a start cost: all processes of a server added up.
type started struct {
	wall, cpu time.Duration
	rss, anon int // KiB
}

// BenchmarkStart measures from exec to a /readyz that answers 200 on an empty
// folder, and memory a while later, beside kube-apiserver and etcd when these
// are given.
func BenchmarkStart(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "setpoint")
	build := exec.CommandContext(b.Context(), "go", "build", "-C", "../..", "-ldflags", "-s -w", "-o", binary, "./cmd/setpoint")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build: %v: %s", err, out)
	}
	var ours, theirs []started
	for range rounds {
		ours = append(ours, startSetpoint(b, binary))
		if *kubeAPIServer != "" && *etcdServer != "" {
			theirs = append(theirs, startPeer(b))
		}
	}
	b.ReportMetric(0, "ns/op")
	report(b, "", ours)
	if len(theirs) == 0 {
		b.Log("no peer: give -kube-apiserver and -etcd to measure beside them")
		return
	}
	report(b, "peer-", theirs)
}

func report(b *testing.B, who string, all []started) {
	b.Helper()
	pick := func(of func(started) float64) float64 {
		var values []float64
		for _, s := range all {
			values = append(values, of(s))
		}
		return median(values)
	}
	b.ReportMetric(pick(func(s started) float64 { return float64(s.wall.Milliseconds()) }), who+"ready-ms")
	b.ReportMetric(pick(func(s started) float64 { return float64(s.cpu.Milliseconds()) }), who+"ready-cpu-ms")
	b.ReportMetric(pick(func(s started) float64 { return float64(s.rss) / 1024 }), who+"idle-MiB")
	b.ReportMetric(pick(func(s started) float64 { return float64(s.anon) / 1024 }), who+"idle-anon-MiB")
}

func freePort(b *testing.B) int {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // only its port was wanted
	return l.Addr().(*net.TCPAddr).Port
}

func startSetpoint(b *testing.B, binary string) started {
	b.Helper()
	dir := b.TempDir()
	port := freePort(b)
	return measure(b, port, exec.CommandContext(b.Context(), binary, "server", "--data", filepath.Join(dir, "data"),
		"--listen", fmt.Sprintf("127.0.0.1:%d", port), "--kubeconfig", filepath.Join(dir, "kubeconfig")))
}

func startPeer(b *testing.B) started {
	b.Helper()
	dir := b.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		b.Fatal(err)
	}
	signing := filepath.Join(dir, "sa.key")
	if err := os.WriteFile(signing, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		b.Fatal(err)
	}
	client, peer, port := freePort(b), freePort(b), freePort(b)
	url := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
	return measure(b, port,
		exec.CommandContext(b.Context(), *etcdServer, "--data-dir", filepath.Join(dir, "etcd"), "--log-level", "error",
			"--listen-client-urls", url(client), "--advertise-client-urls", url(client), "--listen-peer-urls", url(peer),
			"--initial-advertise-peer-urls", url(peer), "--initial-cluster", "default="+url(peer)),
		exec.CommandContext(b.Context(), *kubeAPIServer, "--etcd-servers", url(client), "--cert-dir", filepath.Join(dir, "certs"),
			"--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port), "--authorization-mode", "Node,RBAC",
			"--service-cluster-ip-range", "10.0.0.0/24", "--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file", signing, "--service-account-signing-key-file", signing))
}

// measure starts processes, waits until /readyz answers, and ends them.
func measure(b *testing.B, port int, processes ...*exec.Cmd) started {
	b.Helper()
	begun := time.Now()
	for _, p := range processes {
		if err := p.Start(); err != nil {
			b.Fatal(err)
		}
		defer func() {
			_ = p.Process.Kill()
			_ = p.Wait() // it was killed
		}()
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // on loopback, to see whether it answers
	defer client.CloseIdleConnections()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(2 * time.Millisecond) {
		answer, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d/readyz", port)) //nolint:noctx // bounded by the deadline
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(deadline) {
			b.Fatal("not ready after two minutes")
		}
	}
	s := started{wall: time.Since(begun)}
	for _, p := range processes {
		s.cpu += processCPU(b, p.Process.Pid)
	}
	time.Sleep(settled)
	for _, p := range processes {
		s.rss += memory(b, p.Process.Pid, "VmRSS:")
		s.anon += memory(b, p.Process.Pid, "RssAnon:")
	}
	return s
}

// processCPU is the processor time that a process has used.
func processCPU(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		b.Fatal(err)
	}
	system, err := strconv.Atoi(fields[12])
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

func memory(b *testing.B, pid int, what string) int {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, what); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatalf("process %d does not tell its %s", pid, what)
	return 0
}
