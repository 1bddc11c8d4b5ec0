package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gwebsocket "github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"setpoint.dev/setpoint/node/log"
	"setpoint.dev/setpoint/node/nodetest"
	"setpoint.dev/setpoint/node/server"
	"setpoint.dev/setpoint/node/stats"
)

// labels are those that node agents give containers and sandboxes.
func labels(container string) map[string]string {
	all := map[string]string{"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "u"}
	if container != "" {
		all["io.kubernetes.container.name"] = container
	}
	return all
}

// runPod runs a pod of one container in a containerd, and returns it with its id.
func runPod(t *testing.T, r internalapi.RuntimeService, dir, script string) (*corev1.Pod, string) {
	t.Helper()
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"}, Labels: labels(""), LogDirectory: filepath.Join(dir, "logs"),
		Linux: &runtimeapi.LinuxPodSandboxConfig{},
	}
	pod, err := r.RunPodSandbox(t.Context(), sandbox, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(r.StopPodSandbox(ctx, pod), r.RemovePodSandbox(ctx, pod)); err != nil {
			t.Error(err)
		}
	})
	id, err := r.CreateContainer(t.Context(), pod, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: nodetest.BusyboxImage}, Command: []string{"sh", "-c", script},
		Labels: labels("c"), LogPath: "c.log", Stdin: true, Linux: &runtimeapi.LinuxContainerConfig{},
	}, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "c", ContainerID: "containerd://" + id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}},
	}, id
}

// TestContainerd asks a node for everything that a containerd gives it.
func TestContainerd(t *testing.T) {
	on := nodetest.Containerd(t)
	r, err := remote.NewRemoteRuntimeService(t.Context(), "unix://"+on.Socket, time.Minute, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	images, err := remote.NewRemoteImageService(t.Context(), "unix://"+on.Socket, time.Minute, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	const script = `echo started; httpd -p 8080 -h /etc
(while true; do rm /touched 2>/dev/null && echo touched; sleep 0.1; done) &
while read line; do echo "heard $line"; done; wait`
	pod, id := runPod(t, r, on.Dir, script)
	collector := stats.New(stats.Config{Node: "n1", Runtime: r, Images: images})
	n := start(t, server.Config{Pods: pods{pod}, Runtime: r, Stats: collector})
	clients := n.restConfig(t)

	t.Run("exec", func(t *testing.T) { n.testExec(t, clients) })
	t.Run("exec by WebSocket", n.testWebSocket)
	t.Run("run", func(t *testing.T) {
		if code, body := n.ask(t, n.client(n.admin), http.MethodPost, "/run/ns/p/c?cmd=echo+hello+there", ""); code != 200 || body != "hello there\n" {
			t.Errorf("%d %s", code, body)
		}
	})
	t.Run("attach and logs", func(t *testing.T) { n.testAttach(t, clients) })
	t.Run("rotated logs", func(t *testing.T) { n.testRotation(t, r) })
	t.Run("ports", func(t *testing.T) { n.testPorts(t, clients) })
	t.Run("stats", func(t *testing.T) { n.testStats(t) })
	t.Run("running pods", func(t *testing.T) {
		if code, body := n.ask(t, n.client(n.admin), http.MethodGet, "/runningpods/", ""); code != 200 || !strings.Contains(body, `"name":"p","namespace":"ns","uid":"u"`) {
			t.Errorf("%d %s", code, body)
		}
	})
	t.Run("what has ended", func(t *testing.T) {
		if err := r.StopContainer(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		if code, body := n.ask(t, n.client(n.admin), http.MethodGet, "/containerLogs/ns/p/c?follow=true&tailLines=1", ""); code != 200 || body != "touched\n" {
			t.Errorf("%d %s", code, body)
		}
		if code, body := n.ask(t, n.client(n.admin), http.MethodPost, "/exec/ns/p/c?command=x&output=1", ""); code != 500 || body != "container not found (\"c\")\n" {
			t.Errorf("%d %s", code, body)
		}
	})
}

// restConfig is for clients of the node with all rights.
func (n *node) restConfig(t *testing.T) *rest.Config {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(n.admin.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	return &rest.Config{Host: n.url, TLSClientConfig: rest.TLSClientConfig{
		CAData: block("CERTIFICATE", n.ca.cert.Raw), CertData: block("CERTIFICATE", n.admin.Certificate[0]), KeyData: block("PRIVATE KEY", key),
	}}
}

// command is an executor for a path of the node.
func (n *node) command(t *testing.T, cfg *rest.Config, path string) remotecommand.Executor {
	t.Helper()
	at, err := url.Parse(n.url + path)
	if err != nil {
		t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(cfg, http.MethodPost, at)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (n *node) testExec(t *testing.T, cfg *rest.Config) {
	for _, path := range []string{"/exec/ns/p/c", "/exec/ns/p/u/c"} {
		var out, errs bytes.Buffer
		e := n.command(t, cfg, path+"?command=sh&command=-c&command=cat%3B+echo+bad+%3E%262%3B+exit+7&input=1&output=1&error=1")
		err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Stderr: &errs})
		code, is := errors.AsType[exec.CodeExitError](err)
		if !is || code.Code != 7 || out.String() != "hello" || errs.String() != "bad\n" {
			t.Errorf("%s: %q, %q, %v", path, out.String(), errs.String(), err)
		}
	}
	e := n.command(t, cfg, "/exec/ns/p/other/c?command=true&output=1")
	if err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}); err == nil || !strings.Contains(err.Error(), "pod not found") {
		t.Errorf("a pod of another uid: %v", err)
	}
	if code, body := n.ask(t, n.client(n.admin), http.MethodPost, "/exec/ns/p/c?command=true", ""); code != 400 || !strings.Contains(body, "you must specify at least 1 of stdin, stdout, stderr") {
		t.Errorf("no streams: %d %s", code, body)
	}
}

// testWebSocket runs a command as clients do that do not close streams one by one,
// and are not translated on their way here.
func (n *node) testWebSocket(t *testing.T) {
	dialer := gwebsocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: n.ca.pool(), Certificates: []tls.Certificate{n.admin}}, Subprotocols: []string{"v4.channel.k8s.io"}}
	conn, answer, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(n.url, "https")+"/exec/ns/p/c?command=echo&command=remote&output=1&error=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = answer.Body.Close() // it has none
	out := ""
	for {
		_, message, err := conn.ReadMessage()
		if err != nil {
			break // the command has ended
		}
		if len(message) > 1 && message[0] == 1 {
			out += string(message[1:])
		}
	}
	if out != "remote\n" {
		t.Errorf("%q", out)
	}
}

func (n *node) testAttach(t *testing.T, cfg *rest.Config) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.url+"/containerLogs/ns/p/c?follow=true", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := n.client(n.admin).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	lines := bufio.NewReader(answer.Body)
	expect := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); err != nil || line != want {
			t.Fatalf("%q, %v, want %q", line, err, want)
		}
	}
	expect("started\n")
	in, write := io.Pipe()
	read, out := io.Pipe()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		e := n.command(t, cfg, "/attach/ns/p/c?input=1&output=1")
		done <- e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out})
	}()
	_, _ = io.WriteString(write, "hello\n")
	if line, err := bufio.NewReader(read).ReadString('\n'); err != nil || line != "heard hello\n" {
		t.Errorf("%q, %v", line, err)
	}
	expect("heard hello\n")
	_, _ = io.WriteString(write, "again\n")
	expect("heard again\n")
	cancel()
	_ = in.Close()
	_ = read.Close()
	<-done // it was cut off
}

func (n *node) testRotation(t *testing.T, r internalapi.RuntimeService) {
	rotator := &log.Rotator{Runtime: r, MaxSize: 1}
	if err := rotator.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, body := n.ask(t, n.client(n.admin), http.MethodGet, "/containerLogs/ns/p/c", ""); code != 200 || body != "" {
		t.Errorf("after a rotation: %d %q", code, body)
	}
	if code, body := n.ask(t, n.client(n.admin), http.MethodPost, "/run/ns/p/c?cmd=touch+/touched", ""); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		code, body := n.ask(t, n.client(n.admin), http.MethodGet, "/containerLogs/ns/p/c", "")
		if code == 200 && body == "touched\n" {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("%d %q", code, body)
		}
	}
}

func (n *node) testPorts(t *testing.T, cfg *rest.Config) {
	at, err := url.Parse(n.url + "/portForward/ns/p")
	if err != nil {
		t.Fatal(err)
	}
	through, upgrader, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	dialer := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: through}, http.MethodPost, at)
	f, err := portforward.NewForStreaming(dialer, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET /hosts HTTP/1.0\r\n\r\n")
	if text, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(text), "HTTP/1.") {
		t.Errorf("%q, %v", text, err)
	}
	_ = conn.Close()
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func (n *node) testStats(t *testing.T) {
	read := func() statsapi.Summary {
		code, body := n.ask(t, n.client(n.admin), http.MethodGet, "/stats/summary", "")
		var s statsapi.Summary
		if err := json.Unmarshal([]byte(body), &s); code != 200 || err != nil {
			t.Fatalf("%d %s: %v", code, body, err)
		}
		return s
	}
	read()
	time.Sleep(1500 * time.Millisecond) // a rate needs two looks, a second apart
	s := read()
	switch {
	case s.Node.CPU == nil || s.Node.CPU.UsageNanoCores == nil || s.Node.Memory == nil || *s.Node.Memory.WorkingSetBytes == 0:
		t.Errorf("of the node: %+v", s.Node)
	case s.Node.Fs == nil || *s.Node.Fs.CapacityBytes == 0 || s.Node.Runtime.ImageFs == nil || s.Node.Rlimit == nil:
		t.Errorf("of its disks: %+v", s.Node)
	case len(s.Pods) != 1 || len(s.Pods[0].Containers) != 1:
		t.Fatalf("pods: %+v", s.Pods)
	}
	p := s.Pods[0]
	if c := p.Containers[0]; c.Name != "c" || c.CPU == nil || c.CPU.UsageNanoCores == nil || c.Memory == nil || *c.Memory.WorkingSetBytes == 0 || c.Rootfs == nil {
		t.Errorf("of the container: %+v", c)
	}
	if p.PodRef != (statsapi.PodReference{Name: "p", Namespace: "ns", UID: "u"}) || p.Network == nil || p.Network.Name != "eth0" || *p.Network.RxBytes == 0 {
		t.Errorf("of the pod: %+v %+v", p.PodRef, p.Network)
	}
}

// TestStreamsEndWithTheNode has a connection that became a stream when the server
// ends.
func TestStreamsEndWithTheNode(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = echo.Close() })
	go func() { // a streaming server that upgrades and says nothing
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		}
	}()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	n := start(t, server.Config{Pods: pods{pod}, Stats: used{}, Runtime: silent{at: "http://" + echo.Addr().String()}})
	cfg := &tls.Config{RootCAs: n.ca.pool(), Certificates: []tls.Certificate{n.admin}}
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", strings.TrimPrefix(n.url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "POST /portForward/ns/p HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", answer, err)
	}
	_ = answer.Body.Close() // it has none
	n.stop()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the stream goes on")
	}
}

// silent is a runtime that has a sandbox whose ports lead to a place.
type silent struct {
	server.Runtime
	at string
}

func (silent) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return []*runtimeapi.PodSandbox{{Id: "s"}}, nil
}

func (s silent) PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return &runtimeapi.PortForwardResponse{Url: s.at}, nil
}
