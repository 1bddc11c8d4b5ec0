package bench_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	setpointBinary = flag.String("setpoint", "", "setpoint to measure; built when none is given")
	kubeAPIServer  = flag.String("kube-apiserver", "", "kube-apiserver to measure beside Setpoint")
	etcdServer     = flag.String("etcd", "", "etcd for it")
)

func hasPeer() bool { return *kubeAPIServer != "" && *etcdServer != "" }

// token is the admin's on both servers.
const token = "bench-token"

// server is an API server and what it needs, as processes of their own.
type server struct {
	dir       string
	port      int
	processes []*exec.Cmd // the API server is the last
	client    *http.Client
	begun     time.Time     // when what is measured began
	used      time.Duration // and what the processes had used then
	token     string        // of who asks
}

// as is the server as somebody else sees it.
func (s *server) as(token string) *server {
	other := *s
	other.token = token
	return &other
}

func buildSetpoint(b *testing.B) string {
	b.Helper()
	if *setpointBinary != "" {
		return *setpointBinary
	}
	binary := filepath.Join(b.TempDir(), "setpoint")
	build := exec.CommandContext(b.Context(), "go", "build", "-C", "../..", "-ldflags", "-s -w", "-o", binary, "./cmd/setpoint")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build: %v: %s", err, out)
	}
	return binary
}

func newServer(b *testing.B) (s *server, tokens string) {
	b.Helper()
	s = &server{dir: b.TempDir(), port: freePort(b), token: token, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // on loopback, among processes of our own
		ForceAttemptHTTP2: true,
	}}}
	tokens = filepath.Join(s.dir, "tokens")
	if err := os.WriteFile(tokens, []byte(token+",bench,bench,system:masters\n"+otherTokens), 0o600); err != nil {
		b.Fatal(err)
	}
	return s, tokens
}

// setpointServer runs no controllers, as the peer has none: they are processes
// of their own there, and would be counted on one side alone.
func setpointServer(b *testing.B, binary string) *server {
	b.Helper()
	s, tokens := newServer(b)
	s.processes = []*exec.Cmd{exec.CommandContext(b.Context(), binary, "server", "--data", filepath.Join(s.dir, "data"),
		"--listen", fmt.Sprintf("127.0.0.1:%d", s.port), "--kubeconfig", filepath.Join(s.dir, "kubeconfig"), "--token-auth-file", tokens, "--controllers=")}
	return s
}

func peerServer(b *testing.B) *server {
	b.Helper()
	s, tokens := newServer(b)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		b.Fatal(err)
	}
	signing := filepath.Join(s.dir, "sa.key")
	if err := os.WriteFile(signing, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		b.Fatal(err)
	}
	client, peer := freePort(b), freePort(b)
	url := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
	s.processes = []*exec.Cmd{
		exec.CommandContext(b.Context(), *etcdServer, "--data-dir", filepath.Join(s.dir, "etcd"), "--log-level", "error",
			"--listen-client-urls", url(client), "--advertise-client-urls", url(client), "--listen-peer-urls", url(peer),
			"--initial-advertise-peer-urls", url(peer), "--initial-cluster", "default="+url(peer)),
		exec.CommandContext(b.Context(), *kubeAPIServer, "--etcd-servers", url(client), "--cert-dir", filepath.Join(s.dir, "certs"),
			"--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(s.port), "--authorization-mode", "Node,RBAC",
			"--service-cluster-ip-range", "10.0.0.0/24", "--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file", signing, "--service-account-signing-key-file", signing, "--token-auth-file", tokens),
	}
	return s
}

// start starts the processes and waits until /readyz answers.
func (s *server) start(b *testing.B) {
	b.Helper()
	for _, p := range s.processes {
		if err := p.Start(); err != nil {
			b.Fatal(err)
		}
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(2 * time.Millisecond) {
		if code, _, err := s.do(b.Context(), http.MethodGet, "/readyz", "", nil); err == nil && code == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			s.stop()
			b.Fatal("not ready after two minutes")
		}
	}
}

func (s *server) stop() {
	s.client.CloseIdleConnections()
	for _, p := range s.processes {
		if p.Process != nil {
			_ = p.Process.Kill()
			_ = p.Wait() // it was killed
		}
	}
}

// do sends a request and returns the answer's code and body.
func (s *server) do(ctx context.Context, method, path, media string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("https://127.0.0.1:%d%s", s.port, path), bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	answer, err := s.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	all, err := io.ReadAll(answer.Body)
	return answer.StatusCode, all, err
}

// expect sends a request that has to be answered with code.
func (s *server) expect(ctx context.Context, code int, method, path, media string, body []byte) error {
	got, answer, err := s.do(ctx, method, path, media, body)
	if err != nil || got != code {
		return fmt.Errorf("%s %s: %d, %w: %.500s", method, path, got, err, answer)
	}
	return nil
}

// skim reads an answer without keeping it, and returns its code and size. An
// encoding that is asked for is not undone.
func (s *server) skim(ctx context.Context, path, accept, encoding string) (code int, size int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", s.port, path), http.NoBody)
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	req.Header.Set("Accept", accept)
	if encoding != "" {
		req.Header.Set("Accept-Encoding", encoding)
	}
	answer, err := s.client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	size, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, size, err
}

// want sends a request that has to be answered with code.
func (s *server) want(b *testing.B, code int, method, path, media string, body []byte) []byte {
	b.Helper()
	got, answer, err := s.do(b.Context(), method, path, media, body)
	if err != nil || got != code {
		b.Fatalf("%s %s: %d, %v: %.500s", method, path, got, err, answer)
	}
	return answer
}

// cpu is the processor time that all processes have used.
func (s *server) cpu(b *testing.B) time.Duration {
	b.Helper()
	var sum time.Duration
	for _, p := range s.processes {
		sum += processCPU(b, p.Process.Pid)
	}
	return sum
}

// memory is that of all processes in KiB.
func (s *server) memory(b *testing.B, what string) int {
	b.Helper()
	sum := 0
	for _, p := range s.processes {
		sum += memory(b, p.Process.Pid, what)
	}
	return sum
}

// heap is what the API server's heap holds after a collection, in bytes.
func (s *server) heap(b *testing.B) int {
	b.Helper()
	s.want(b, http.StatusOK, http.MethodGet, "/debug/pprof/heap?gc=1", "", nil)
	profile := s.want(b, http.StatusOK, http.MethodGet, "/debug/pprof/heap?gc=1&debug=1", "", nil)
	for line := range strings.SplitSeq(string(profile), "\n") {
		if rest, ok := strings.CutPrefix(line, "# HeapAlloc = "); ok {
			n, err := strconv.Atoi(rest)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatal("the heap's profile does not tell its size")
	return 0
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

// processCPU is the processor time that a process has used.
func processCPU(b *testing.B, pid int) time.Duration {
	b.Helper()
	const whole = 2 // the clock of all threads, by the scheduler's count
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|whole), &at); err != nil { //nolint:gosec // process ids are small
		b.Fatal(err)
	}
	return time.Duration(at.Nano())
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
