// Package setpointtest gives tests a control plane: a real Kubernetes API that is
// up before they notice, and a fork of it for every subtest.
//
// It depends on nothing but the standard library, so that a test takes whatever
// client it likes, of whatever release. Start finds the program, or builds it,
// starts it and returns a kubeconfig; the control plane ends with the test, and
// also when the test is killed.
//
//	func TestOperator(t *testing.T) {
//		plane := setpointtest.Start(t)
//		install(t, plane.Kubeconfig) // definitions, roles: once
//		t.Run("case", func(t *testing.T) {
//			fork := plane.Fork(t) // what has been installed, and nothing of other cases
//			...
//		})
//	}
package setpointtest

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// ProgramEnv names the program, if it is not to be looked for.
const ProgramEnv = "SETPOINT"

// module is what is built where the program is not found.
const module = "setpoint.dev/setpoint/cmd/setpoint"

// Plane is a control plane, or a fork of one.
type Plane struct {
	// Name is that of the plane: main, or the fork's.
	Name string
	// URL is where clients reach it. A fork's has a path.
	URL string
	// Kubeconfig is a file with the URL and the admin's credentials.
	Kubeconfig string

	root *root
}

// root is what a control plane and its forks have in common.
type root struct {
	url    string // of main
	client *http.Client
	forks  atomic.Int64
	// config is the kubeconfig of main.
	config string
}

// Option says how a control plane is to be.
type Option func(*[]string)

// Controllers has controllers run: garbage collection, the end of namespaces,
// deployments and all others. Without it nothing happens that the test does not
// do.
func Controllers() Option {
	return func(args *[]string) { *args = append(*args, "--controllers=*") }
}

// Flag gives the server a flag, such as "--authorization-mode=RBAC".
func Flag(flag string) Option { return func(args *[]string) { *args = append(*args, flag) } }

// ready is what the program says when it is ready.
type ready struct{ URL, Kubeconfig string }

// Start runs a control plane that keeps nothing and ends with the test.
func Start(t testing.TB, options ...Option) *Plane {
	t.Helper()
	program, err := Program(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"server", "--data=memory", "--listen=127.0.0.1:0", "--output=json", "--exit-with-parent", "--controllers="}
	for _, o := range options {
		o(&args)
	}
	cmd := exec.Command(program, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	said := &tail{}
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(cmd); err != nil {
			t.Errorf("setpoint ended with %v\n%s", err, said)
		}
	})
	var is ready
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&is); err != nil {
		t.Fatalf("setpoint does not start: %v\n%s", err, said)
	}
	config, err := os.ReadFile(is.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientOf(string(config))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return &Plane{Name: "main", URL: is.URL, Kubeconfig: is.Kubeconfig, root: &root{url: is.URL, client: client, config: string(config)}}
}

// stopWithin is how long a control plane may take to end.
const stopWithin = 20 * time.Second

// stop ends the program and waits until it has.
func stop(cmd *exec.Cmd) error {
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	late := time.AfterFunc(stopWithin, func() { _ = cmd.Process.Kill() }) // it may have ended by now
	defer late.Stop()
	return cmd.Wait()
}

// Fork returns a plane that has all that this one has now, and goes with the
// test. What is written to it is seen in no other.
func (p *Plane) Fork(t testing.TB) *Plane {
	t.Helper()
	name := fmt.Sprintf("test-%d", p.root.forks.Add(1))
	if err := p.root.ask(http.MethodPost, "/planes/"+name+"?from="+url.QueryEscape(p.Name)); err != nil {
		t.Fatalf("fork: %v", err)
	}
	t.Cleanup(func() {
		if err := p.root.ask(http.MethodDelete, "/planes/"+name); err != nil {
			t.Errorf("drop: %v", err)
		}
	})
	f := &Plane{Name: name, URL: p.root.url + "/planes/" + name, Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), root: p.root}
	if err := os.WriteFile(f.Kubeconfig, []byte(strings.ReplaceAll(p.root.config, p.root.url, f.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

// Client is an HTTP client with the admin's credentials, for the URL.
func (p *Plane) Client() *http.Client { return p.root.client }

// ask sends a request about planes.
func (r *root) ask(method, path string) error {
	req, err := http.NewRequestWithContext(context.Background(), method, r.url+path, nil)
	if err != nil {
		return err
	}
	response, err := r.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	if response.StatusCode < http.StatusMultipleChoices {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	return errors.Join(fmt.Errorf("%s: %s", response.Status, body), err)
}

// field finds a value of a kubeconfig that the program has written. It is one
// cluster and one user, so that no more of YAML need be known.
func field(config, name string) ([]byte, error) {
	found := regexp.MustCompile(`(?m)^\s*` + name + `: *(\S+)$`).FindStringSubmatch(config)
	if found == nil {
		return nil, fmt.Errorf("the kubeconfig has no %s", name)
	}
	return base64.StdEncoding.DecodeString(found[1])
}

// clientOf is a client with the credentials of a kubeconfig.
func clientOf(config string) (*http.Client, error) {
	ca, err1 := field(config, "certificate-authority-data")
	cert, err2 := field(config, "client-certificate-data")
	key, err3 := field(config, "client-key-data")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}}, ForceAttemptHTTP2: true,
	}}, nil
}

// building lets one test of a process build the program.
var building sync.Mutex

// Program finds the program: what SETPOINT names, or the setpoint of the PATH, or
// one that is built from the module in whose workspace or requirements it is, into
// the user's cache.
func Program(ctx context.Context) (string, error) {
	if path := os.Getenv(ProgramEnv); path != "" {
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath("setpoint"); err == nil {
		return path, nil
	}
	building.Lock()
	defer building.Unlock()
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "setpoint", "bin", "setpoint")
	// The build cache makes it cheap when nothing has changed.
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", path, module).CombinedOutput(); err != nil {
		return "", fmt.Errorf("no %s, no setpoint in the PATH, and it cannot be built: %w\n%s", ProgramEnv, err, out)
	}
	return path, nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

// maxTail is how much of it is kept.
const maxTail = 8 << 10

// Write implements io.Writer.
func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	if over := len(l.text) - maxTail; over > 0 {
		l.text = l.text[over:]
	}
	return len(b), nil
}

// String is what is kept.
func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}
