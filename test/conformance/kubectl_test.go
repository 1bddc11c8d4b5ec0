// Package conformance lets other people's programs judge the control plane:
// stock kubectl over a normal day, and client-go the way controllers use it.
package conformance

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"setpoint.dev/setpoint/app/apptest"
)

var anyKubectl = flag.String("kubectl", os.Getenv("SETPOINT_KUBECTL"), "another kubectl to run the same day with")

// stock are the kubectls that test/kubectl/build.sh makes: of the release that
// is served, and the oldest that may talk to it.
var stock = []string{"kubectl-1.36", "kubectl-1.35"}

// patience bounds every wait for the server.
const patience = 2 * time.Minute

// kubectl is one kubectl and the control plane that it talks to.
type kubectl struct {
	command    []string
	kubeconfig string
	home       string
}

type answer struct {
	out, err string
	code     int
}

func (k *kubectl) run(t *testing.T, env []string, stdin string, args ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.command[0], append(k.command[1:len(k.command):len(k.command)], args...)...) //nolint:gosec // ours or the caller's
	cmd.Env = append([]string{"KUBECONFIG=" + k.kubeconfig, "HOME=" + k.home, "PATH=" + os.Getenv("PATH")}, env...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit, is := errors.AsType[*exec.ExitError](err); err != nil && (!is || exit.ExitCode() < 0) {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return answer{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// step is one command of the day.
type step struct {
	run   string // the command, with blanks between quotes kept
	stdin string
	env   []string
	want  []string // what stdout contains
	not   []string // what it does not
	err   string   // what stderr contains; the command fails, unless code says 0
	code  int
}

func (k *kubectl) day(t *testing.T, steps []step) {
	t.Helper()
	for _, s := range steps {
		a := k.run(t, s.env, s.stdin, words(s.run)...)
		code := s.code
		if s.err != "" && code == 0 {
			code = 1
		}
		if a.code != max(code, 0) || !strings.Contains(a.err, s.err) {
			t.Fatalf("kubectl %s: exit code %d, want %d and stderr with %q\nstdout: %s\nstderr: %s", s.run, a.code, code, s.err, a.out, a.err)
		}
		for _, w := range s.want {
			if !strings.Contains(a.out, w) {
				t.Errorf("kubectl %s: no %q in\n%s%s", s.run, w, a.out, a.err)
			}
		}
		for _, w := range s.not {
			if strings.Contains(a.out, w) {
				t.Errorf("kubectl %s: there is %q in\n%s", s.run, w, a.out)
			}
		}
	}
}

// words cuts a command at blanks outside single quotes.
func words(line string) []string {
	quoted := false
	return strings.FieldsFunc(line, func(r rune) bool {
		if r == '\'' {
			quoted = !quoted
			return true
		}
		return r == ' ' && !quoted
	})
}

// build makes the binary that users get.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "setpoint")
	const flags = "-X k8s.io/component-base/version.gitVersion=v1.36.3" // as make build has it
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags", flags, "-o", path, "../../cmd/setpoint").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// judge runs a test with each kubectl. A short run, which is after the server and
// not after its clients, makes do with the one that is always there.
func judge(t *testing.T, run func(t *testing.T, command []string)) {
	t.Helper()
	judges := map[string][]string{"built-in": {build(t), "kubectl"}}
	others := stock
	if testing.Short() {
		others = nil
	}
	for _, name := range others {
		judges[name] = []string{filepath.Join("..", "..", "bin", name)}
	}
	if *anyKubectl != "" {
		judges["given"] = []string{*anyKubectl}
	}
	for name, command := range judges {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(command[0]); err != nil && slices.Contains(stock, name) {
				t.Skipf("%v; make kubectls builds it", err)
			}
			t.Parallel()
			run(t, command)
		})
	}
}

func TestKubectl(t *testing.T) {
	judge(t, func(t *testing.T, command []string) {
		k := &kubectl{command, apptest.Start(t).Kubeconfig, t.TempDir()}
		for _, part := range day {
			if !t.Run(part.name, func(t *testing.T) { k.day(t, part.steps) }) {
				return
			}
		}
		t.Run("watching", k.watching)
		t.Run("custom kinds", func(t *testing.T) { k.day(t, customDay) })
	})
}

// watching follows a deployment while somebody else changes it.
func (k *kubectl) watching(t *testing.T) {
	type result struct{ answer }
	done := make(chan result, 1)
	go func() {
		done <- result{k.run(t, nil, "", "wait", "--for=jsonpath={.spec.replicas}=6", "deployment/nginx", "--timeout=110s")}
	}()
	k.day(t, []step{{run: "scale deployment nginx --replicas=6", want: []string{"deployment.apps/nginx scaled"}}})
	if a := (<-done).answer; a.code != 0 || !strings.Contains(a.out, "condition met") {
		t.Errorf("wait: %+v", a)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.command[0], append(k.command[1:len(k.command):len(k.command)], "get", "deployments", "-w", "--no-headers")...) //nolint:gosec // ours or the caller's
	cmd.Env = []string{"KUBECONFIG=" + k.kubeconfig, "HOME=" + k.home}
	out := &lines{want: "0/7", seen: make(chan struct{})}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	k.day(t, []step{{run: "scale deployment nginx --replicas=7"}})
	select {
	case <-out.seen:
	case <-ctx.Done():
		t.Error("get -w does not show the change")
	}
	cancel()
	if err := cmd.Wait(); err == nil {
		t.Error("get -w ended by itself")
	}
}

// lines tells when its text contains what is wanted.
type lines struct {
	text bytes.Buffer
	want string
	seen chan struct{}
	told bool
}

// Write is for the command's output.
func (l *lines) Write(p []byte) (int, error) {
	l.text.Write(p)
	if !l.told && strings.Contains(l.text.String(), l.want) {
		l.told = true
		close(l.seen)
	}
	return len(p), nil
}
