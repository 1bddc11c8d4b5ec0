package bootstrap_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/pki"
)

var (
	peerServer = flag.String("kube-apiserver", "", "path of a kube-apiserver to compare with")
	peerEtcd   = flag.String("etcd", "", "path of the etcd it is to use")
)

// peerPaths are the lists that a new kube-apiserver fills.
var peerPaths = []string{
	"/api/v1/namespaces", "/api/v1/services", "/api/v1/endpoints", "/api/v1/configmaps",
	"/apis/discovery.k8s.io/v1/endpointslices", "/apis/networking.k8s.io/v1/servicecidrs",
	"/apis/networking.k8s.io/v1/ipaddresses",
	"/apis/scheduling.k8s.io/v1/priorityclasses",
	"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
	"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	"/apis/rbac.authorization.k8s.io/v1/roles", "/apis/rbac.authorization.k8s.io/v1/rolebindings",
}

// TestRecordingIsKubeAPIServers starts a kube-apiserver on an empty etcd and
// compares what it makes with the recording that the other tests use.
func TestRecordingIsKubeAPIServers(t *testing.T) {
	if *peerServer == "" || *peerEtcd == "" {
		t.Skip("needs -kube-apiserver and -etcd")
	}
	client := startPeer(t)
	// The kubernetes service and its endpoints come last.
	var lines []string
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		lines = nil
		done := true
		for _, p := range peerPaths {
			found := client.list(t, p)
			done = done && len(found) > 0
			lines = append(lines, found...)
		}
		if done {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server did not make all its objects")
		}
	}
	slices.Sort(lines)
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.FromSlash(golden), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(lines, recorded(t)); diff != "" {
		t.Errorf("kube-apiserver (-) and the recording (+) differ:\n%s", diff)
	}
}

type peer struct {
	url    string
	client *http.Client
}

func startPeer(t *testing.T) peer {
	t.Helper()
	dir := t.TempDir()
	authority, err := pki.Load(filepath.Join(dir, "pki"), nil)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ca := write("ca.crt", authority.CACert)
	serviceAccount := filepath.Join(dir, "pki", "service-account.pem")
	etcd, etcdPeer, port := freePort(t), freePort(t), 16443

	start(t, *peerEtcd, "--data-dir", filepath.Join(dir, "etcd"),
		"--listen-client-urls", url("http", etcd), "--advertise-client-urls", url("http", etcd),
		"--listen-peer-urls", url("http", etcdPeer), "--initial-advertise-peer-urls", url("http", etcdPeer),
		"--initial-cluster", "default="+url("http", etcdPeer))
	start(t, *peerServer, "--etcd-servers="+url("http", etcd), "--cert-dir="+filepath.Join(dir, "certs"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--advertise-address=192.0.2.10",
		"--service-account-key-file="+serviceAccount, "--service-account-signing-key-file="+serviceAccount,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--authorization-mode=Node,RBAC", "--client-ca-file="+ca, "--feature-gates=StorageVersionMigrator=true",
		"--requestheader-client-ca-file="+ca, "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-")

	admin, err := tls.X509KeyPair(authority.AdminCert, authority.AdminKey)
	if err != nil {
		t.Fatal(err)
	}
	p := peer{url("https", port), &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		Certificates:       []tls.Certificate{admin},
		InsecureSkipVerify: true, // it makes its own serving certificate
	}}}}
	t.Cleanup(p.client.CloseIdleConnections)
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if code, _, err := p.get(t.Context(), "/readyz"); err == nil && code == http.StatusOK {
			return p
		}
		if time.Now().After(deadline) {
			t.Fatal("the server did not become ready")
		}
	}
}

// start runs a program until the test ends.
func start(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // it was told to end
		timer.Stop()
		if t.Failed() {
			t.Logf("%s said:\n%s", path.Base(name), output.Bytes()[max(0, output.Len()-4000):])
		}
	})
}

func (p peer) get(ctx context.Context, path string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	body, err = io.ReadAll(resp.Body)
	_ = resp.Body.Close() // read to its end
	return resp.StatusCode, body, err
}

// list returns the normal forms of what lies at a path.
func (p peer) list(t *testing.T, at string) []string {
	t.Helper()
	code, body, err := p.get(t.Context(), at)
	if err != nil || code != http.StatusOK {
		t.Fatalf("%s: %d %v", at, code, err)
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(body, &list); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, item := range list.Items {
		name, line, err := normal(path.Base(at), item)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s", path.Base(at), name, line))
	}
	return lines
}

func url(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}
