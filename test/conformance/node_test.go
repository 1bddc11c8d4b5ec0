package conformance

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/node/nodetest"
	"setpoint.dev/setpoint/node/server"
	"setpoint.dev/setpoint/node/stats"
)

// nodeIP is the address that the node's object has. It is nobody's.
const nodeIP = "192.0.2.10"

// script is what the container of the pod does: it serves a page, says a line,
// and repeats what it hears.
const script = `mkdir /www; echo "it works" > /www/index.html; httpd -p 8080 -h /www; echo started
while read line; do echo "heard $line"; test "$line" = quit && exit 3; done; sleep 100000`

// TestKubectlOnANode has kubectl read logs, run commands, copy files, reach ports
// and see what is used, of a pod in a real containerd. The node's server is real,
// too; what a node agent would write, the test writes.
func TestKubectlOnANode(t *testing.T) {
	on := nodetest.Containerd(t)
	runtime, err := remote.NewRemoteRuntimeService(t.Context(), "unix://"+on.Socket, time.Minute, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	images, err := remote.NewRemoteImageService(t.Context(), "unix://"+on.Socket, time.Minute, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	pod := runPod(t, runtime, on.Dir)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	plane := apptest.StartOn(t, app.Config{Data: app.Memory, MetricsAPI: true, NodeAccess: app.NodeAccess{Dial: dialTo(listener.Addr().String())}})
	client, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	declare(t, client, pod)
	collector := stats.New(stats.Config{Node: "n1", Runtime: runtime, Images: images})
	cert, err := plane.Authority.IssueServing("system:node:n1", []string{"system:nodes"}, []string{nodeIP})
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(server.Config{
		Name: "n1", Pods: one{pod}, Runtime: runtime, Stats: collector, Client: client, ClientCAs: plane.Authority.ClientPool(), Logger: slog.New(slog.DiscardHandler),
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	judge(t, func(t *testing.T, command []string) {
		k := &kubectl{command, plane.Kubeconfig, t.TempDir()}
		k.day(t, nodeDay)
		t.Run("copying", k.copying)
		t.Run("ports", k.ports)
		t.Run("used", k.used)
	})
}

// nodeDay are the commands that only look.
var nodeDay = []step{
	{run: "logs web", want: []string{"started\n"}},
	{run: "logs web -c web --tail=1 --timestamps", want: []string{"Z started\n"}},
	{run: "logs web --limit-bytes=4", want: []string{"star"}, not: []string{"started"}},
	{run: "logs web -c x", err: "container x is not valid for pod web"},
	{run: "logs web --previous", err: `previous terminated container "web" in pod "web" not found`},
	{run: "logs absent", err: `pods "absent" not found`},
	{run: "exec web -- echo hello there", want: []string{"hello there\n"}},
	{run: "exec -i web -- cat", stdin: "what comes in\n", want: []string{"what comes in\n"}},
	{run: "exec web -- sh -c 'exit 7'", err: "command terminated with exit code 7", code: 7},
	{run: "exec web -- absent", err: "executable file not found"},
	{run: "exec web -c x -- true", err: "container x is not valid for pod web"},
	{run: "get --raw /api/v1/nodes/n1/proxy/healthz", want: []string{"ok"}},
	{run: "get --raw /api/v1/nodes/n1/proxy/pods", want: []string{`"name":"web"`}},
	{run: "get --raw /api/v1/namespaces/default/pods/web:8080/proxy/", want: []string{"it works"}},
	{run: "get --raw /api/v1/namespaces/default/pods/web:8080/proxy/absent", err: "the server could not find the requested resource"},
}

// one is a pod that the node has.
type one struct{ pod *corev1.Pod }

func (o one) Pods() []*corev1.Pod { return []*corev1.Pod{o.pod} }

func (o one) Pod(namespace, name string) (*corev1.Pod, bool) {
	return o.pod, namespace == o.pod.Namespace && name == o.pod.Name
}

// dialTo leads to the node's server, and to pods by the network of this machine.
func dialTo(node string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == nodeIP+":10250" {
			address = node
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}

// runPod runs the pod, and says of it what a node agent would.
func runPod(t *testing.T, r internalapi.RuntimeService, dir string) *corev1.Pod {
	t.Helper()
	labels := map[string]string{"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "u", "io.kubernetes.container.name": "web"}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u"}, Labels: labels, LogDirectory: filepath.Join(dir, "logs"),
		Linux: &runtimeapi.LinuxPodSandboxConfig{},
	}
	in, err := r.RunPodSandbox(t.Context(), sandbox, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.StopPodSandbox(context.Background(), in), r.RemovePodSandbox(context.Background(), in)); err != nil {
			t.Error(err)
		}
	})
	id, err := r.CreateContainer(t.Context(), in, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "web"}, Image: &runtimeapi.ImageSpec{Image: nodetest.BusyboxImage}, Command: []string{"sh", "-c", script},
		Labels: labels, LogPath: "web.log", Stdin: true, Linux: &runtimeapi.LinuxContainerConfig{},
	}, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	is, err := r.PodSandboxStatus(t.Context(), in, false)
	if err != nil {
		t.Fatal(err)
	}
	address := is.GetStatus().GetNetwork().GetIp()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "web", Image: nodetest.BusyboxImage, Stdin: true}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "web", ContainerID: "containerd://" + id, Image: nodetest.BusyboxImage, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}},
		},
	}
}

// declare writes the objects of the node and its pod.
func declare(t *testing.T, client kubernetes.Interface, pod *corev1.Pod) {
	t.Helper()
	core := client.CoreV1()
	node, err := core.Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeIP}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	node.Status.Allocatable = corev1.ResourceList{}
	if _, err := core.Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := core.Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status = pod.Status
	if _, err := core.Pods("default").UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// copying copies a folder there and back.
func (k *kubectl) copying(t *testing.T) {
	dir := t.TempDir()
	there, back, remote := filepath.Join(dir, "there"), filepath.Join(dir, "back"), "/"+filepath.Base(dir)+strings.ReplaceAll(t.Name(), "/", "-")
	if err := os.MkdirAll(filepath.Join(there, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("a line of a file\n", 50_000)
	if err := os.WriteFile(filepath.Join(there, "in", "file"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	k.day(t, []step{
		{run: "cp " + there + " web:" + remote},
		{run: "exec web -- wc -c " + remote + "/in/file", want: []string{fmt.Sprint(len(text))}},
		{run: "cp web:" + remote + " " + back},
	})
	if got, err := os.ReadFile(filepath.Join(back, "in", "file")); err != nil || string(got) != text {
		t.Errorf("%d bytes came back of %d: %v", len(got), len(text), err)
	}
}

// forwards is what kubectl says when a port leads somewhere.
var forwards = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)

// ports reads the pod's page through a port of this machine.
func (k *kubectl) ports(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.command[0], append(k.command[1:len(k.command):len(k.command)], "port-forward", "web", ":8080")...) //nolint:gosec // ours or the caller's
	cmd.Env = []string{"KUBECONFIG=" + k.kubeconfig, "HOME=" + k.home}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	address := ""
	for lines := bufio.NewScanner(out); address == "" && lines.Scan(); {
		if found := forwards.FindStringSubmatch(lines.Text()); found != nil {
			address = found[1]
		}
	}
	for range 3 {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "it works\n" {
			t.Errorf("%q, %v", body, err)
		}
		_ = answer.Body.Close() // it was read
	}
}

// used waits until it is known what the node and the pod use: that takes two
// looks.
func (k *kubectl) used(t *testing.T) {
	for _, command := range []string{"top pod web --containers --no-headers", "top node --no-headers --show-capacity"} {
		for begun := time.Now(); ; time.Sleep(time.Second) {
			a := k.run(t, nil, "", words(command)...)
			if a.code == 0 && regexp.MustCompile(`\b\d+m\s.*\d+Mi`).MatchString(a.out) {
				break
			}
			if time.Since(begun) > patience {
				t.Fatalf("kubectl %s: %+v", command, a)
			}
		}
	}
}
