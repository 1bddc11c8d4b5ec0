package differential_test

import (
	"crypto/tls"
	"encoding/base64"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/admission"
	"setpoint.dev/setpoint/admission/webhook/webhooktest"
	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/test/differential"
)

var (
	kubeServer = flag.String("kube-apiserver", "", "path of the kube-apiserver to compare with; built when not given")
	etcdServer = flag.String("etcd", "", "path of the etcd that it is to use; built when not given")
	only       = flag.String("only", "", "show only differences of requests whose name matches")
	files      = flag.String("files", "*", "send only the requests of files whose name matches")
	all        = flag.Bool("all", false, "show accepted differences, too")
)

// off are plugins that neither server runs. Nobody makes service accounts here,
// and ServiceAccount would refuse every pod.
var off = []string{"ServiceAccount"}

// TestAnswersAreKubeAPIServers sends the requests in testdata to both servers
// and fails on differences that are not accepted.
func TestAnswersAreKubeAPIServers(t *testing.T) {
	requests, err := differential.Read("testdata", *files)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := start(t)
	hook := webhooktest.Start(t)
	for _, s := range []*differential.Server{ours, theirs} {
		s.Know("hook", hook.URL)
		s.Know("ca", base64.StdEncoding.EncodeToString(hook.CABundle))
	}
	shown := regexp.MustCompile(*only)
	equal, accepted, unexplained := 0, 0, 0
	named := map[string]bool{}
	for _, r := range requests {
		if named[r.Name] {
			t.Errorf("two requests are called %s", r.Name)
		}
		named[r.Name] = true
		var want differential.Answer
		asked := make(chan error, 1)
		go func() {
			var err error
			want, err = theirs.Do(t.Context(), r)
			asked <- err
		}()
		got, err := ours.Do(t.Context(), r)
		if err := <-asked; err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			unexplained++
			continue
		}
		reason, known := differential.Accepted[r.Name]
		switch diff := cmp.Diff(strings.Split(want.Text, "\n"), strings.Split(got.Text, "\n")); {
		case diff == "" && known:
			t.Errorf("%s: no longer differs, and yet it is accepted that it does", r.Name)
			equal++
		case diff == "":
			equal++
		case known:
			accepted++
			if *all {
				t.Logf("%s: accepted (%s)\n%s", r.Name, reason, diff)
			}
		default:
			unexplained++
			if shown.MatchString(r.Name) {
				t.Errorf("%s: %s %s\nkube-apiserver (-), Setpoint (+):\n%s", r.Name, r.Method, r.Path, diff)
			}
		}
	}
	for name := range differential.Accepted {
		if !named[name] && *files == "*" {
			t.Errorf("an accepted difference names no request: %s", name)
		}
	}
	fmt.Printf("requests %d, equal %d, accepted differences %d, unexplained differences %d\n", len(requests), equal, accepted, unexplained)
	if unexplained > 0 {
		t.Fail()
	}
}

// start runs both servers until the test ends. They trust the same clients.
func start(t *testing.T) (ours, theirs *differential.Server) {
	t.Helper()
	kube, etcd := binaries(t)
	plane := apptest.StartOn(t, app.Config{Data: app.Memory, Admission: admission.Options{Disable: off}})
	certificate, err := tls.X509KeyPair(plane.Config.CertData, plane.Config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, plane.Config.CAData, 0o600); err != nil {
		t.Fatal(err)
	}
	key := serviceAccountKey(t, dir)
	client, peer, port := freePort(t), freePort(t), freePort(t)
	url := func(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }
	run(t, filepath.Join(dir, "etcd.log"), etcd, "--data-dir", filepath.Join(dir, "etcd"),
		"--listen-client-urls", url("http", client), "--advertise-client-urls", url("http", client),
		"--listen-peer-urls", url("http", peer), "--initial-advertise-peer-urls", url("http", peer),
		"--initial-cluster", "default="+url("http", peer), "--unsafe-no-fsync")
	run(t, filepath.Join(dir, "kube-apiserver.log"), kube, "--etcd-servers="+url("http", client),
		"--cert-dir="+filepath.Join(dir, "certs"), "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--advertise-address=192.0.2.10", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--client-ca-file="+ca,
		"--authorization-mode=Node,RBAC", "--feature-gates=CBORServingAndStorage=true,StorageVersionMigrator=true", "--runtime-config=storagemigration.k8s.io/v1beta1=true", "--disable-admission-plugins="+strings.Join(off, ","))
	theirs = differential.NewServer(url("https", port), certificate)
	ready := differential.Request{Name: "ready", Method: http.MethodGet, Path: "/readyz"}
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if a, err := theirs.Do(t.Context(), ready); err == nil && a.Code == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(dir, "kube-apiserver.log")) // whatever there is
			t.Fatalf("kube-apiserver did not become ready:\n%s", log)
		}
	}
	return differential.NewServer(plane.URL, certificate), theirs
}

// binaries finds the servers to compare with, or builds them once.
func binaries(t *testing.T) (kube, etcd string) {
	t.Helper()
	if *kubeServer != "" && *etcdServer != "" {
		return *kubeServer, *etcdServer
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "setpoint", "peers")
	cmd := exec.CommandContext(t.Context(), "./build.sh", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build.sh: %v\n%s", err, out)
	}
	return filepath.Join(dir, "kube-apiserver"), filepath.Join(dir, "etcd")
}

// run runs a program until the test ends.
func run(t *testing.T, log, name string, args ...string) {
	t.Helper()
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, args...) //nolint:noctx // it is told to end below
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(3*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // it was told to end
		timer.Stop()
		_ = out.Close()
	})
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the port is free again
	return l.Addr().(*net.TCPAddr).Port
}
