package e2e_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"setpoint.dev/setpoint/test/e2e"
)

var (
	bin    = flag.String("bin", "", "a folder with e2e.test and kubectl; built when empty")
	binary = flag.String("setpoint", "", "the setpoint to judge; built when empty")
	lists  = flag.String("specs", "no-node,fake-node,need-api,need-controllers", "the lists in specs/ to run")
	group  = flag.String("group", "need-node", "the lists in specs/ to run on a node with containers; none when empty")
	work   = flag.String("work", "", "a folder for what the images are made of, to be used again")
	only   = flag.String("only", "", "run only specs whose name matches")
	except = flag.String("except", "", "run no specs whose name matches")
	out    = flag.String("out", "", "a folder to keep logs and reports in; none are kept when empty")
	procs  = flag.Int("procs", 3, "how many e2e.test run at once")
	batch  = flag.Int("batch", 8, "how many specs one e2e.test is given")
	bound  = flag.Duration("bound", 9*time.Minute, "the time that a spec has")
)

// node is shown so that specs that only count or pick nodes find one. Nothing
// runs behind it but somebody who renews its lease.
const node = `
apiVersion: v1
kind: Node
metadata:
  name: shown
  labels: {kubernetes.io/hostname: shown, kubernetes.io/os: linux}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: shown
  namespace: kube-node-lease
spec: {holderIdentity: shown, leaseDurationSeconds: 40}
`

// advertised is what the kubernetes service leads to. Nobody goes there: the
// server is for this machine alone, and no address of that may be advertised.
const advertised = "192.0.2.1"

// beat is how often the lease is renewed, as kubelets do.
const beat = 10 * time.Second

// ready is its status.
const ready = `{"status": {
  "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}, "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
  "conditions": [{"type": "Ready", "status": "True", "reason": "Shown", "message": "shown"}],
  "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": "shown"}]
}}`

func TestSpecsThatNeedNoNodePass(t *testing.T) {
	specs := chosen(t, *lists)
	tools := built(t)
	// The node that is shown runs nothing, so nothing must be put on it.
	kubeconfig := serve(t, "server", "--scheduler=false")
	show(t, filepath.Join(tools, "kubectl"), kubeconfig)
	keep(t, filepath.Join(tools, "kubectl"), kubeconfig)
	judge(t, tools, kubeconfig, specs, "--allowed-not-ready-nodes=-1", "--minStartupPods=0", "--num-nodes=0")
}

func TestSpecsThatNeedANodePass(t *testing.T) {
	specs := chosen(t, *group)
	if os.Geteuid() != 0 {
		t.Skip("a node with containerd needs root")
	}
	tools := built(t)
	runtime := containerd(t, tools)
	// With the runtime's, so that it goes with it, whatever is still mounted there.
	node := filepath.Join(filepath.Dir(runtime), "node")
	kubeconfig := serve(t, "up", "--runtime", "unix://"+runtime, "--node-dir", node, "--image-gc-high-threshold", "100",
		"--eviction-hard", "memory.available<100Mi", "--allow-privileged") // however full the disk of this machine is
	judge(t, tools, kubeconfig, specs, "--minStartupPods=0")
}

// chosen are the specs of lists that are to be run; the test is skipped when
// there are none.
func chosen(t *testing.T, lists string) []string {
	t.Helper()
	if lists == "" {
		t.Skip("no lists were given")
	}
	files := strings.Split(lists, ",")
	for i, name := range files {
		files[i] = filepath.Join("specs", name+".txt")
	}
	specs, err := e2e.Read(files...)
	if err != nil {
		t.Fatal(err)
	}
	matches, left := regexp.MustCompile(*only), regexp.MustCompile(*except)
	kept := specs[:0]
	for _, s := range specs {
		if matches.MatchString(s) && (*except == "" || !left.MatchString(s)) {
			kept = append(kept, s)
		}
	}
	if len(kept) == 0 {
		t.Skip("no spec was chosen")
	}
	return kept
}

// containerd runs one that has the images of the specs, and returns its socket.
func containerd(t *testing.T, tools string) string {
	t.Helper()
	folder := *work
	if folder == "" {
		folder = t.TempDir()
	}
	program := filepath.Join(t.TempDir(), "images")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", program, "./test/images")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return started(t, exec.CommandContext(context.Background(), program, "-bin", tools, "-work", folder), ".sock")
}

// judge runs specs and fails the test with those that do not pass.
func judge(t *testing.T, tools, kubeconfig string, specs []string, extra ...string) {
	t.Helper()
	r := &e2e.Runner{
		E2E: filepath.Join(tools, "e2e.test"), Kubectl: filepath.Join(tools, "kubectl"), Kubeconfig: kubeconfig, Out: *out, Extra: extra,
		Procs: *procs, Batch: *batch, Bound: *bound, Progress: os.Stdout,
	}
	if r.Out == "" {
		r.Out = t.TempDir()
	} else if err := os.MkdirAll(r.Out, 0o755); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	passed, failed := 0, 0
	for _, result := range r.Run(t.Context(), specs) {
		if result.State == "passed" {
			passed++
			continue
		}
		failed++
		t.Errorf("%s: %s\n\t%s", result.State, result.Name, result.Why)
	}
	fmt.Printf("%d passed, %d failed, in %v\n", passed, failed, time.Since(begun).Round(time.Second))
}

// built is the folder with e2e.test and kubectl.
func built(t *testing.T) string {
	t.Helper()
	if *bin != "" {
		return *bin
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "./build.sh", dir)
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// serve starts a control plane by a command and returns the path of its
// kubeconfig.
func serve(t *testing.T, command string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	program := *binary
	if program == "" {
		program = filepath.Join(dir, "setpoint")
		build := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", program, "./cmd/setpoint")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build: %v: %s", err, out)
		}
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	args = append([]string{command, "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--advertise-address", advertised, "--kubeconfig", kubeconfig}, args...)
	started(t, exec.CommandContext(context.Background(), program, args...), "ready")
	return kubeconfig
}

// started runs a program until the test ends, and returns the line in which it
// says that it is ready. It does not have the test's context, which would kill
// it: it is asked to end.
func started(t *testing.T, program *exec.Cmd, ready string) string {
	t.Helper()
	said, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	program.Stderr = os.Stderr
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = program.Wait()
	})
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if strings.Contains(lines.Text(), ready) {
			return lines.Text()
		}
	}
	t.Fatalf("%s ended before it was ready", filepath.Base(program.Path))
	return ""
}

// show makes the node that nothing runs behind.
func show(t *testing.T, kubectl, kubeconfig string) {
	t.Helper()
	for _, args := range [][]string{
		{"apply", "--server-side", "-f", "-"},
		{"patch", "node", "shown", "--subresource=status", "--type=merge", "-p", ready},
		{"taint", "node", "shown", "node.kubernetes.io/not-ready-"},
	} {
		c := exec.CommandContext(t.Context(), kubectl, append([]string{"--kubeconfig", kubeconfig}, args...)...)
		c.Stdin = strings.NewReader(node)
		out, err := c.CombinedOutput()
		if err != nil && args[0] != "taint" { // there is no taint where admission adds none
			t.Fatalf("kubectl %v: %v: %s", args, err, out)
		}
	}
}

// keep renews the node's lease until the test ends.
func keep(t *testing.T, kubectl, kubeconfig string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	g.Go(func() {
		for ctx.Err() == nil {
			now := fmt.Sprintf(`{"spec": {"renewTime": %q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
			renew := exec.CommandContext(ctx, kubectl, "--kubeconfig", kubeconfig, "-n", "kube-node-lease", "patch", "lease", "shown", "--type=merge", "-p", now)
			if out, err := renew.CombinedOutput(); err != nil && ctx.Err() == nil {
				t.Errorf("renew the lease: %v: %s", err, out)
			}
			select {
			case <-ctx.Done():
			case <-time.After(beat):
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		g.Wait()
	})
}
