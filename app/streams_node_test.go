package app_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// Addresses that lead to the machines of a test. They are nobody's.
const (
	nodeIP = "192.0.2.10"
	podIP  = "192.0.2.20"
	// serviceIP is one of the control plane's own.
	serviceIP = "10.0.0.1"
)

// site is a control plane with a node and a pod behind it, which are servers of
// the test: the addresses in their objects lead there.
type site struct {
	*apptest.Plane
	client kubernetes.Interface
	// said is what the node's log says while it is followed.
	said chan string
	// counted is how often the node was asked what is used.
	counted atomic.Int64

	node, pod, podTLS *httptest.Server
}

// startSite starts a control plane that reaches a node and pods. Pods in it have
// containers a and b, one is called web.
func startSite(t *testing.T) *site {
	t.Helper()
	s := &site{said: make(chan string)}
	s.Plane = apptest.StartOn(t, app.Config{Data: app.Memory, NodeAccess: app.NodeAccess{Dial: s.dial}, MetricsAPI: true})
	cert, err := s.Authority.IssueServing("system:node:n1", []string{"system:nodes"}, []string{nodeIP, "n1"})
	if err != nil {
		t.Fatal(err)
	}
	s.node = httptest.NewUnstartedServer(s.nodeHandler())
	s.node.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.Authority.ClientPool()}
	s.node.EnableHTTP2 = true
	s.node.StartTLS()
	s.pod = httptest.NewServer(http.HandlerFunc(page))
	s.podTLS = httptest.NewTLSServer(http.HandlerFunc(page))
	for _, server := range []*httptest.Server{s.node, s.pod, s.podTLS} {
		t.Cleanup(server.Close)
	}
	s.Config.WarningHandler = rest.NoWarnings{} // of Endpoints
	if s.client, err = kubernetes.NewForConfig(s.Config); err != nil {
		t.Fatal(err)
	}
	s.fill(t)
	return s
}

// dial leads to the test's servers by port.
func (s *site) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if address == serviceIP+":10250" {
		return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(s.URL, "https://"))
	}
	to := map[string]*httptest.Server{nodeIP + ":10250": s.node, podIP + ":8080": s.pod, podIP + ":8443": s.podTLS}[address]
	if to == nil {
		return nil, fmt.Errorf("nobody is at %s", address)
	}
	return (&net.Dialer{}).DialContext(ctx, network, to.Listener.Addr().String())
}

// fill makes the objects of the site.
func (s *site) fill(t *testing.T) {
	t.Helper()
	ctx, core := t.Context(), s.client.CoreV1()
	node, err := core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: nodeIP}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	if _, err := core.Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	containers := []corev1.Container{{Name: "a", Image: "a", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}, {Name: "b", Image: "b"}}
	for name, on := range map[string]string{"web": "n1", "single": "n1", "waiting": "", "lost": "gone"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: on, Containers: containers}}
		if name != "web" {
			pod.Spec.Containers = containers[:1]
		}
		if pod, err = core.Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if on == "n1" {
			pod.Status.PodIP, pod.Status.PodIPs = podIP, []corev1.PodIP{{IP: podIP}}
			if _, err := core.Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.fillService(t)
}

// fillService makes a service of the pod web, with one endpoint that is no pod.
func (s *site) fillService(t *testing.T) {
	t.Helper()
	ctx, core := t.Context(), s.client.CoreV1()
	ports := []corev1.ServicePort{{Name: "plain", Port: 80}, {Name: "safe", Port: 443}}
	for _, name := range []string{"web", "nowhere", "idle"} {
		if _, err := core.Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: ports}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, subsets := range map[string][]corev1.EndpointSubset{ //nolint:staticcheck // upstream goes by them
		"idle": nil,
		"web": {{
			Addresses: []corev1.EndpointAddress{
				{IP: podIP, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"}},
				{IP: "192.0.2.66"},
			},
			Ports: []corev1.EndpointPort{{Name: "plain", Port: 8080}, {Name: "safe", Port: 8443}},
		}},
	} {
		endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name}, Subsets: subsets} //nolint:staticcheck // as above
		if _, err := core.Endpoints("default").Create(ctx, endpoints, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// page is what is served by pods, and by nodes where nothing else is: what was
// asked, a link, and an upgrade that echoes.
func page(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Upgrade") == "echo":
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	case strings.HasSuffix(r.URL.Path, "/page.html"):
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<html><body><a href="/other">there</a></body></html>`)
	case strings.HasSuffix(r.URL.Path, "/moved"):
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	case strings.HasSuffix(r.URL.Path, "/teapot"):
		http.Error(w, "short and stout", http.StatusTeapot)
	default:
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s by %q: %s", r.Method, r.URL.RequestURI(), r.Header.Get("Impersonate-User"), body)
	}
}

// nodeHandler is what a node answers.
func (s *site) nodeHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", s.nodeLogs)
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		opts, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, r, shell{}, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"], opts, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		opts, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeAttach(w, r, shell{}, r.PathValue("pod"), "", r.PathValue("container"), opts, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		opts, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, shell{}, r.PathValue("pod"), "", opts, time.Minute, time.Minute, portforward.SupportedProtocols)
	})
	mux.HandleFunc("/stats/summary", s.nodeStats)
	mux.HandleFunc("/", page)
	return mux
}

// nodeLogs says what was asked, and then what the test says.
func (s *site) nodeLogs(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("pod") == "single" {
		http.Error(w, `container "a" in pod "single" is waiting to start: ContainerCreating`, http.StatusBadRequest)
		return
	}
	_, _ = fmt.Fprintf(w, "%s by %s\n", r.URL.RequestURI(), r.TLS.PeerCertificates[0].Subject.CommonName)
	if r.URL.Query().Get("follow") == "" {
		return
	}
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case text := <-s.said:
			if text == "" {
				return
			}
			_, _ = io.WriteString(w, text)
		}
	}
}

// shell runs the few commands that tests need.
type shell struct{}

// ExecInContainer implements remotecommand.Executor.
func (shell) ExecInContainer(_ context.Context, pod, _, container string, cmd []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	switch cmd[0] {
	case "cat":
		_, err := io.Copy(out, in)
		return err
	case "where":
		_, err := fmt.Fprintf(out, "%s/%s tty=%t", pod, container, tty)
		return err
	case "size":
		size := <-resize
		_, err := fmt.Fprintf(out, "%dx%d", size.Width, size.Height)
		return err
	case "wait":
		_, err := io.Copy(io.Discard, in)
		return err
	default:
		_, _ = io.WriteString(errs, "no such command")
		return utilexec.CodeExitError{Err: fmt.Errorf("exit 3"), Code: 3}
	}
}

// AttachContainer implements remotecommand.Attacher.
func (shell) AttachContainer(_ context.Context, _, _, container string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s heard %s", container, line)
	return err
}

// PortForward implements portforward.PortForwarder.
func (shell) PortForward(_ context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	defer func() { _ = stream.Close() }()
	line, err := bufio.NewReader(stream).ReadString('\n')
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stream, "%s:%d heard %s", pod, port, line)
	return err
}
