package contract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

func logs(t *testing.T, b *bench) {
	p := b.pod(t)
	const long = 40000
	config := p.shell(fmt.Sprintf("echo one; echo two >&2; echo; head -c %d /dev/zero | tr '\\0' x; echo; printf unended", long))
	before := time.Now()
	if s := b.ended(t, p.start(t, config)); s.GetExitCode() != 0 {
		t.Fatalf("%v", s)
	}
	got := map[string][]string{}
	partial := map[string]bool{}
	for _, l := range p.log(t, config) {
		if l.at.Before(before.Add(-time.Second)) || l.at.After(time.Now().Add(time.Second)) {
			t.Errorf("time of a line: %v", l.at)
		}
		if n := len(got[l.stream]); partial[l.stream] {
			got[l.stream][n-1] += l.text
		} else {
			got[l.stream] = append(got[l.stream], l.text)
		}
		if partial[l.stream] = l.tag == "P"; !partial[l.stream] && l.tag != "F" {
			t.Errorf("tag %s of %.20q", l.tag, l.text)
		}
	}
	want := map[string][]string{"stdout": {"one", "", strings.Repeat("x", long), "unended"}, "stderr": {"two"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func logRotation(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
	id := p.start(t, config)
	path := filepath.Join(p.config.GetLogDirectory(), config.GetLogPath())
	b.until(t, "there are lines", func() bool { return logged(p, config, "5") })
	must(t, os.Rename(path, path+".old"))
	must(t, b.client.Runtime.ReopenContainerLog(b.ctx, id))
	b.until(t, "there are lines in the new file", func() bool { return len(p.log(t, config)) > 5 })
	must(t, b.client.Runtime.StopContainer(b.ctx, id, 0))
	for i, l := range append(readLog(t, path+".old"), p.log(t, config)...) {
		if l.text != strconv.Itoa(i+1) {
			t.Fatalf("line %d is %q", i+1, l.text)
		}
	}
	if err := b.client.Runtime.ReopenContainerLog(b.ctx, id); err == nil {
		t.Error("the log of a container that has ended was reopened")
	}
}

func execSync(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("sleep 1000")
	config.Envs = []*runtimeapi.KeyValue{{Key: "OF", Value: []byte("the container")}}
	id := p.start(t, config)
	r := b.client.Runtime
	stdout, stderr, err := r.ExecSync(b.ctx, id, []string{"sh", "-c", "echo $OF; echo err >&2"}, patience)
	if string(stdout) != "the container\n" || string(stderr) != "err\n" || err != nil {
		t.Errorf("%q %q %v", stdout, stderr, err)
	}
	stdout, _, err = r.ExecSync(b.ctx, id, []string{"sh", "-c", "echo out; exit 3"}, patience)
	if exit, ok := errors.AsType[utilexec.CodeExitError](err); !ok || exit.Code != 3 || string(stdout) != "out\n" {
		t.Errorf("exit 3: %q %v", stdout, err)
	}
	mark := fmt.Sprintf("1%d%d", os.Getpid(), count.Add(1)) // seconds
	began := time.Now()
	_, _, err = r.ExecSync(b.ctx, id, []string{"sleep", mark}, time.Second)
	if status.Code(err) != codes.DeadlineExceeded && !strings.Contains(fmt.Sprint(err), "timed out") {
		t.Errorf("timeout: %v", err)
	}
	if passed := time.Since(began); passed < time.Second {
		t.Errorf("a timeout of a second came after %v", passed)
	}
	b.until(t, "the program is gone", func() bool { return len(processes(mark)) == 0 })
	_, _, err = r.ExecSync(b.ctx, id, []string{"no-such-program"}, patience)
	if err == nil || !strings.Contains(err.Error(), `exec: "no-such-program": executable file not found in $PATH`) {
		t.Errorf("a program that is not there: %v", err)
	}
	out := b.sh(t, id, "head -c 200000 /dev/zero | tr '\\0' y")
	if out != strings.Repeat("y", 200000) {
		t.Errorf("much output: %d bytes", len(out))
	}
	must(t, r.StopContainer(b.ctx, id, 0))
	if _, _, err = r.ExecSync(b.ctx, id, []string{"true"}, patience); err == nil {
		t.Error("a program was run in a container that has ended")
	}
}

// execTree: a program that takes too long goes with what it started.
func execTree(t *testing.T, b *bench) {
	p := b.pod(t)
	id := p.start(t, p.shell("sleep 1000"))
	mark := unique("mark")
	_, _, err := b.client.Runtime.ExecSync(b.ctx, id, []string{"sh", "-c", "sh -c 'sleep 1000; : " + mark + "' & sleep 1000; : " + mark}, time.Second)
	if err == nil {
		t.Error("no timeout")
	}
	b.until(t, "the programs are gone", func() bool { return len(processes(mark)) == 0 })
}

// executors are the ways to the streams of an address.
func executors(t *testing.T, address string) map[string]func() remotecommand.Executor {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	return map[string]func() remotecommand.Executor{
		"SPDY": func() remotecommand.Executor {
			e, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: u.Host}, http.MethodPost, u)
			must(t, err)
			return e
		},
		"WebSocket": func() remotecommand.Executor {
			// Runtimes speak the protocol before the newest, in which no input ends.
			e, err := remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{Host: u.Host}, http.MethodGet, address, "v4.channel.k8s.io")
			must(t, err)
			return e
		},
	}
}

// safe is a buffer for several.
type safe struct {
	mu sync.Mutex // guards the field below
	b  bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func exec(t *testing.T, b *bench) {
	p := b.pod(t)
	id := p.start(t, p.shell("sleep 1000"))
	for _, way := range []string{"SPDY", "WebSocket"} {
		t.Run(way, func(t *testing.T) {
			if why := b.Lacks["exec "+way]; why != "" {
				t.Skip(why)
			}
			resp, err := b.client.Runtime.Exec(b.ctx, &runtimeapi.ExecRequest{
				ContainerId: id, Cmd: []string{"sh", "-c", "echo err >&2; read x; echo $x; exit 4"}, Stdin: true, Stdout: true, Stderr: true,
			})
			must(t, err)
			var stdout, stderr safe
			err = executors(t, resp.GetUrl())[way]().StreamWithContext(b.ctx, remotecommand.StreamOptions{
				Stdin: strings.NewReader("through and through\n"), Stdout: &stdout, Stderr: &stderr,
			})
			if exit, ok := errors.AsType[clientexec.CodeExitError](err); !ok || exit.Code != 4 {
				t.Errorf("exit: %v", err)
			}
			if stdout.String() != "through and through\n" || stderr.String() != "err\n" {
				t.Errorf("%q %q", stdout.String(), stderr.String())
			}
		})
	}
}

// sizes is a terminal that has one size.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

func execTerminal(t *testing.T, b *bench) {
	p := b.pod(t)
	id := p.start(t, p.shell("sleep 1000"))
	resp, err := b.client.Runtime.Exec(b.ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sh"}, Stdin: true, Stdout: true, Tty: true})
	must(t, err)
	in, keys := io.Pipe()
	var screen safe
	size := make(sizes, 1)
	size <- remotecommand.TerminalSize{Width: 93, Height: 37}
	done := make(chan error, 1)
	go func() {
		done <- executors(t, resp.GetUrl())["SPDY"]().StreamWithContext(b.ctx, remotecommand.StreamOptions{Stdin: in, Stdout: &screen, Tty: true, TerminalSizeQueue: size})
	}()
	types(t, keys, "until stty size | grep '37 93'; do sleep 0.05; done; test -t 0 && echo ter''minal\n")
	b.until(t, "the terminal has its size", func() bool {
		return strings.Contains(screen.String(), "37 93") && strings.Contains(screen.String(), "terminal")
	})
	types(t, keys, "exit 0\n")
	must(t, <-done)
	close(size)
	_ = keys.Close()
}

func types(t *testing.T, to io.Writer, text string) {
	t.Helper()
	_, err := io.WriteString(to, text)
	must(t, err)
}

func attach(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("while read x; do echo got $x; echo err $x >&2; done; echo end")
	config.Stdin, config.StdinOnce = true, true
	id := p.start(t, config)
	resp, err := b.client.Runtime.Attach(b.ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
	must(t, err)
	in, keys := io.Pipe()
	var stdout, stderr safe
	done := make(chan error, 1)
	go func() {
		done <- executors(t, resp.GetUrl())["SPDY"]().StreamWithContext(b.ctx, remotecommand.StreamOptions{Stdin: in, Stdout: &stdout, Stderr: &stderr})
	}()
	types(t, keys, "a\n")
	b.until(t, "it answers", func() bool { return stdout.String() == "got a\n" && stderr.String() == "err a\n" })
	types(t, keys, "b\n")
	must(t, keys.Close()) // which ends the input, since it is for one who attaches
	must(t, <-done)
	if s := b.ended(t, id); s.GetExitCode() != 0 {
		t.Errorf("%v", s)
	}
	if stdout.String() != "got a\ngot b\nend\n" || stderr.String() != "err a\nerr b\n" {
		t.Errorf("%q %q", stdout.String(), stderr.String())
	}
	if !logged(p, config, "got b") {
		t.Error("what was attached to is not in the log")
	}
}

func attachTerminal(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("")
	config.Command, config.Args = []string{"sh"}, nil
	config.Stdin, config.Tty = true, true
	id := p.start(t, config)
	resp, err := b.client.Runtime.Attach(b.ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Tty: true})
	must(t, err)
	in, keys := io.Pipe()
	var screen safe
	size := make(sizes, 1)
	size <- remotecommand.TerminalSize{Width: 81, Height: 33}
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- executors(t, resp.GetUrl())["SPDY"]().StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: &screen, Tty: true, TerminalSizeQueue: size})
	}()
	types(t, keys, "until stty size | grep '33 81'; do sleep 0.05; done\n")
	b.until(t, "the terminal has its size", func() bool { return strings.Contains(screen.String(), "33 81") })
	cancel() // leaving does not end it
	<-done
	close(size)
	if s := b.status(t, id); s.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after leaving: %v", s)
	}
	_ = keys.Close()
}

func portForward(t *testing.T, b *bench) {
	p := b.pod(t)
	port := b.server(t, p)
	resp, err := b.client.Runtime.PortForward(b.ctx, &runtimeapi.PortForwardRequest{PodSandboxId: p.id, Port: []int32{int32(port)}})
	must(t, err)
	u, err := url.Parse(resp.GetUrl())
	must(t, err)
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: u.Host})
	must(t, err)
	stop, ready := make(chan struct{}), make(chan struct{})
	var said safe
	f, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u), []string{"127.0.0.1"}, []string{"0:" + strconv.Itoa(port)}, stop, ready, io.Discard, &said)
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	must(t, err)
	for range 2 {
		resp, err := http.Get("http://127.0.0.1:" + strconv.Itoa(int(ports[0].Local)) + "/index.html")
		must(t, err)
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		_ = resp.Body.Close()
		if string(b) != greeting {
			t.Errorf("through the forwarded port: %q (%s)", b, said.String())
		}
	}
	close(stop)
	must(t, <-done)
}

const greeting = "hello from the pod\n"

// server has a pod serve a greeting at a port of its own, from a container if its
// image has a server, else from this process, whose network the pod shares.
func (b *bench) server(t *testing.T, p *pod) int {
	t.Helper()
	if b.Lacks["own network"] == "" {
		const port = 8099
		id := p.start(t, p.shell(fmt.Sprintf("mkdir /tmp/www; echo hello from the pod > /tmp/www/index.html; httpd -f -p %d -h /tmp/www", port)))
		b.until(t, "it listens", func() bool {
			_, _, err := b.client.Runtime.ExecSync(b.ctx, id, []string{"sh", "-c", fmt.Sprintf("netstat -ltn | grep :%d", port)}, patience)
			return err == nil
		})
		return port
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	web := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, greeting)
	})}
	go func() { _ = web.Serve(l) }()
	t.Cleanup(func() { _ = web.Close() })
	return l.Addr().(*net.TCPAddr).Port
}
