package app_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	gwebsocket "github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clientforward "k8s.io/client-go/tools/portforward"
	clientcommand "k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// podPath is where something of a pod of the site is served.
func podPath(name, sub string) string { return "/api/v1/namespaces/default/pods/" + name + "/" + sub }

func TestLogs(t *testing.T) {
	s := startSite(t)
	for _, c := range []struct {
		name, path string
		code       int
		want       string
	}{
		{"a container", podPath("web", "log?container=b"), 200, "/containerLogs/default/web/b by kube-apiserver-kubelet-client\n"},
		{"the only container", podPath("single", "log"), 400, `container \"a\" in pod \"single\" is waiting to start: ContainerCreating`},
		{
			"all options", podPath("web", "log?container=a&previous=true&timestamps=true&tailLines=3&limitBytes=7&sinceSeconds=9"), 200,
			"/containerLogs/default/web/a?limitBytes=7&previous=true&sinceSeconds=9&tailLines=3&timestamps=true by kube-apiserver-kubelet-client\n",
		},
		{"a time", podPath("web", "log?container=a&sinceTime=2026-01-02T03:04:05Z"), 200, "sinceTime=2026-01-02T03%3A04%3A05Z"},
		{"without asking who it is", podPath("web", "log?container=a&insecureSkipTLSVerifyBackend=true"), 200, "/containerLogs/default/web/a by"},
		{"two containers", podPath("web", "log"), 400, "a container name must be specified for pod web, choose one of: [a b]"},
		{"no such container", podPath("web", "log?container=x"), 400, "container x is not valid for pod web"},
		{"no such pod", podPath("x", "log"), 404, `pods \"x\" not found`},
		{"no node yet", podPath("waiting", "log"), 204, ""},
		{"a node that is gone", podPath("lost", "log"), 404, `pods \"gone\" not found`},
		{"both times", podPath("web", "log?sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z"), 422, "at most one of `sinceTime` or `sinceSeconds` may be specified"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, body := ask(t, s.Config, http.MethodGet, c.path); code != c.code || !strings.Contains(body, c.want) {
				t.Errorf("%d %s, want %d %s", code, body, c.code, c.want)
			}
		})
	}
}

// follow begins to follow the log of the site's pod, and returns its lines.
func (s *site) follow(t *testing.T) *bufio.Reader {
	t.Helper()
	stream, err := s.client.CoreV1().Pods("default").GetLogs("web", &corev1.PodLogOptions{Container: "a", Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	lines := bufio.NewReader(stream)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestLogsAreFollowed(t *testing.T) {
	s := startSite(t)
	lines := s.follow(t)
	for i := range 3 {
		s.said <- fmt.Sprintf("line %d\n", i)
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
	}
	s.said <- ""
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
}

// TestStreamsEndWithTheServer follows a log and runs a command while the server
// ends: the log ends in good order, the command does not hold the server.
func TestStreamsEndWithTheServer(t *testing.T) {
	s := startSite(t)
	lines := s.follow(t)
	in, _ := io.Pipe()
	ran := make(chan error, 2)
	for _, e := range s.executors(t, s.Config, "exec", &corev1.PodExecOptions{Container: "a", Command: []string{"wait"}, Stdin: true, Stdout: true}) {
		go func() {
			ran <- e.StreamWithContext(t.Context(), clientcommand.StreamOptions{Stdin: in, Stdout: io.Discard})
		}()
	}
	time.Sleep(100 * time.Millisecond) // they are most likely under way; if not the test is easier
	begun := time.Now()
	s.Stop()
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("the server took %s to end", took)
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("the end of the log: %q, %v", rest, err)
	}
	_ = in.CloseWithError(io.EOF)
	for range 2 {
		<-ran // what it says is the client's to know
	}
}

func TestLogsByWebSocket(t *testing.T) {
	s := startSite(t)
	tlsConfig, err := rest.TLSConfigFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	dialer := gwebsocket.Dialer{TLSClientConfig: tlsConfig, Subprotocols: []string{"binary.k8s.io"}}
	conn, response, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(s.URL, "https")+podPath("web", "log?container=a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = response.Body.Close() // it has none
	var text []byte
	for !bytes.HasSuffix(text, []byte("\n")) {
		_, more, err := conn.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, more...)
	}
	if !strings.HasPrefix(string(text), "/containerLogs/default/web/a by") {
		t.Errorf("%q", text)
	}
}

// executors are those of both protocols, for the pod web.
func (s *site) executors(t *testing.T, cfg *rest.Config, sub string, options *corev1.PodExecOptions) map[string]clientcommand.Executor {
	t.Helper()
	at := s.client.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("web").SubResource(sub).VersionedParams(options, scheme.ParameterCodec).URL()
	bySPDY, err := clientcommand.NewSPDYExecutor(cfg, http.MethodPost, at)
	if err != nil {
		t.Fatal(err)
	}
	byWebSocket, err := clientcommand.NewWebSocketExecutor(cfg, http.MethodGet, at.String())
	if err != nil {
		t.Fatal(err)
	}
	return map[string]clientcommand.Executor{"SPDY": bySPDY, "WebSocket": byWebSocket}
}

// sizes is a terminal of one size.
type sizes chan clientcommand.TerminalSize

// Next implements remotecommand.TerminalSizeQueue.
func (s sizes) Next() *clientcommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

func TestExec(t *testing.T) {
	s := startSite(t)
	for _, c := range []struct {
		name       string
		options    corev1.PodExecOptions
		in         string
		want, errs string
		fails      string
	}{
		{"output", corev1.PodExecOptions{Container: "b", Command: []string{"where"}, Stdout: true, Stderr: true}, "", "web/b tty=false", "", ""},
		{"input", corev1.PodExecOptions{Container: "a", Command: []string{"cat"}, Stdin: true, Stdout: true}, strings.Repeat("hello\n", 100_000), strings.Repeat("hello\n", 100_000), "", ""},
		{"a terminal", corev1.PodExecOptions{Container: "a", Command: []string{"size"}, Stdin: true, Stdout: true, TTY: true}, "", "80x24", "", ""},
		{"an exit code", corev1.PodExecOptions{Container: "a", Command: []string{"x"}, Stdout: true, Stderr: true}, "", "", "no such command", "command terminated with exit code 3"},
	} {
		for protocol, e := range s.executors(t, s.Config, "exec", &c.options) {
			t.Run(c.name+" by "+protocol, func(t *testing.T) {
				var out, errs bytes.Buffer
				opts := clientcommand.StreamOptions{Stdout: &out, Tty: c.options.TTY}
				if c.options.Stdin {
					opts.Stdin = strings.NewReader(c.in)
				}
				if c.options.Stderr {
					opts.Stderr = &errs
				}
				if c.options.TTY {
					queue := make(sizes, 1)
					queue <- clientcommand.TerminalSize{Width: 80, Height: 24}
					defer close(queue)
					opts.TerminalSizeQueue = queue
				}
				err := e.StreamWithContext(t.Context(), opts)
				if failed := errors.As(err, new(exec.CodeExitError)); failed != (c.fails != "") || err != nil && err.Error() != c.fails {
					t.Fatalf("got error %v, want %q", err, c.fails)
				}
				if out.String() != c.want || errs.String() != c.errs {
					t.Errorf("got %d bytes %.80q and %q, want %d bytes %.80q and %q", out.Len(), out.String(), errs.String(), len(c.want), c.want, c.errs)
				}
			})
		}
	}
}

func TestAttach(t *testing.T) {
	s := startSite(t)
	for protocol, e := range s.executors(t, s.Config, "attach", &corev1.PodExecOptions{Container: "a", Stdin: true, Stdout: true}) {
		var out bytes.Buffer
		if err := e.StreamWithContext(t.Context(), clientcommand.StreamOptions{Stdin: strings.NewReader("hello\n"), Stdout: &out}); err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		if out.String() != "a heard hello\n" {
			t.Errorf("%s: %q", protocol, out.String())
		}
	}
}

func TestPortForward(t *testing.T) {
	s := startSite(t)
	at, err := url.Parse(s.URL + podPath("web", "portforward"))
	if err != nil {
		t.Fatal(err)
	}
	through, upgrader, err := spdy.RoundTripperFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	bySPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: through}, http.MethodPost, at)
	byWebSocket, err := clientforward.NewSPDYOverWebsocketDialerForStreaming(at, s.Config)
	if err != nil {
		t.Fatal(err)
	}
	for protocol, dialer := range map[string]httpstream.Dialer{"SPDY": bySPDY, "WebSocket": byWebSocket} {
		t.Run(protocol, func(t *testing.T) {
			stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			f, err := clientforward.NewForStreaming(dialer, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
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
			for i := range 3 {
				conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
				if err != nil {
					t.Fatal(err)
				}
				_, _ = fmt.Fprintf(conn, "hello %d\n", i)
				if text, err := io.ReadAll(conn); err != nil || string(text) != fmt.Sprintf("web:8080 heard hello %d\n", i) {
					t.Errorf("%q, %v", text, err)
				}
				_ = conn.Close()
			}
			close(stop)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestProxies(t *testing.T) {
	s := startSite(t)
	const services = "/api/v1/namespaces/default/services/"
	for _, c := range []struct {
		name, method, path string
		code               int
		want               string
	}{
		{"a pod", "GET", podPath("web", "proxy/a/b?c=d"), 200, `GET /a/b?c=d by "": `},
		{"a pod's port", "GET", podPath("web:8080", "proxy/"), 200, `GET / by "": `},
		{"by TLS", "GET", podPath("https:web:8443", "proxy/x/"), 200, `GET /x/ by "": `},
		{"other methods", "PUT", podPath("web", "proxy/a"), 200, `PUT /a by "": `},
		{"deletes", "DELETE", podPath("web", "proxy/a"), 200, `DELETE /a by "": `},
		{"options", "OPTIONS", podPath("web", "proxy/a"), 200, `OPTIONS /a by "": `},
		{"heads", "HEAD", podPath("web", "proxy/a"), 200, ""},
		{"errors", "GET", podPath("web", "proxy/teapot"), 418, "short and stout"},
		{"links", "GET", podPath("web", "proxy/page.html"), 200, `<a href="/api/v1/namespaces/default/pods/web/proxy/other">there</a>`},
		{"a port that nobody has", "GET", podPath("web:99", "proxy/"), 503, "error trying to reach service: nobody is at 192.0.2.20:99"},
		{"a pod without an address", "GET", podPath("waiting", "proxy/"), 400, "address not allowed"},
		{"what is no name", "GET", podPath("a:b:c:d", "proxy/"), 400, `invalid pod request \"a:b:c:d\"`},
		{"no such pod", "GET", podPath("x", "proxy/"), 404, `pods \"x\" not found`},
		{"a service's port by name", "GET", services + "web:plain/proxy/a", 200, `GET /a by "": `},
		{"a service's port by number", "GET", services + "web:80/proxy/a", 200, `GET /a by "": `},
		{"a service by TLS", "GET", services + "https:web:safe/proxy/a", 200, `GET /a by "": `},
		{"a service has no such port", "GET", services + "web:99/proxy/a", 503, `no service port 99 found for service \"web\"`},
		{"a service has no port of that name", "GET", services + "web:x/proxy/a", 503, `no endpoints available for service \"web:x\"`},
		{"a service that nothing serves", "GET", services + "idle:plain/proxy/a", 503, `no endpoints available for service \"idle\"`},
		{"a service without endpoints", "GET", services + "nowhere:plain/proxy/a", 404, `services \"nowhere\" not found`},
		{"no such service", "GET", services + "x:80/proxy/a", 404, `services \"x\" not found`},
		{"a node", "GET", "/api/v1/nodes/n1/proxy/pods?a=b", 200, `GET /pods?a=b by "": `},
		{"a node's port", "GET", "/api/v1/nodes/n1:10250/proxy/configz", 200, `GET /configz by "": `},
		{"no such node", "GET", "/api/v1/nodes/x/proxy/pods", 404, `nodes \"x\" not found`},
		{"a dry run", "GET", podPath("web", "proxy/a?dryRun=All"), 400, "dryRun is not supported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, body := ask(t, s.Config, c.method, c.path); code != c.code || !strings.Contains(body, c.want) {
				t.Errorf("%d %s, want %d %s", code, body, c.code, c.want)
			}
		})
	}
}

// TestProxiesPassOn looks at what cannot be seen in a body.
func TestProxiesPassOn(t *testing.T) {
	s := startSite(t)
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, c := range []struct{ name, path, want string }{
		{"redirects lead back here", podPath("web", "proxy/moved"), podPath("web", "proxy/elsewhere")},
		{"the root has a slash", podPath("web", "proxy"), podPath("web", "proxy/")},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close() // only the header counts
		if got := response.Header.Get("Location"); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %d to %q, want %q", c.name, response.StatusCode, got, c.want)
		}
	}
}

func TestProxiesUpgrade(t *testing.T) {
	s := startSite(t)
	cfg, err := rest.TLSConfigFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.URL, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", podPath("web", "proxy/"))
	buffered := bufio.NewReader(conn)
	response, err := http.ReadResponse(buffered, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", response, err)
	}
	_ = response.Body.Close() // it has none
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := buffered.ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// TestWhoMayOpenStreams asks by GET with the right to get alone. Compat: as with
// POST, the right to create is needed.
func TestWhoMayOpenStreams(t *testing.T) {
	s := startSite(t)
	jane := rest.CopyConfig(s.Config)
	jane.Impersonate.UserName = "jane"
	rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/exec", "pods/proxy"}, Verbs: []string{"get"}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{rule}}
	if _, err := s.client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bind(t, s.client, "reader", "jane")
	e := s.executors(t, jane, "exec", &corev1.PodExecOptions{Container: "a", Command: []string{"where"}, Stdout: true})
	for _, protocol := range []string{"SPDY", "WebSocket"} {
		if err := e[protocol].StreamWithContext(t.Context(), clientcommand.StreamOptions{Stdout: io.Discard}); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%s: %v", protocol, err)
		}
	}
	if code, body := ask(t, jane, http.MethodGet, podPath("web", "proxy/a")); code != 200 || body != `GET /a by "": ` {
		t.Errorf("as somebody else: %d %s", code, body)
	}
	role.Rules[0].Verbs = []string{"get", "create"}
	if _, err := s.client.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for protocol, e := range s.executors(t, jane, "exec", &corev1.PodExecOptions{Container: "a", Command: []string{"where"}, Stdout: true}) {
		if err := e.StreamWithContext(t.Context(), clientcommand.StreamOptions{Stdout: io.Discard}); err != nil {
			t.Errorf("%s: %v", protocol, err)
		}
	}
}

// TestStreamErrors are those that clients read instead of a stream.
func TestStreamErrors(t *testing.T) {
	s := startSite(t)
	for _, c := range []struct {
		name, method, path string
		code               int
		want               string
	}{
		{"no upgrade", "POST", podPath("web", "exec?container=a&command=where&stdout=true"), 400, "Upgrade request required"},
		{"no such container", "POST", podPath("web", "exec?container=x&command=where&stdout=true"), 400, "container x is not valid for pod web"},
		{"two containers", "POST", podPath("web", "attach?stdout=true"), 400, "a container name must be specified for pod web, choose one of: [a b]"},
		{"no node yet", "GET", podPath("waiting", "exec?command=where&stdout=true"), 400, "pod waiting does not have a host assigned"},
		{"no node yet", "POST", podPath("waiting", "portforward"), 400, "pod waiting does not have a host assigned"},
		{"no such pod", "POST", podPath("x", "portforward"), 404, `pods \"x\" not found`},
		{"other methods", "PUT", podPath("web", "exec?container=a"), 405, ""},
	} {
		if code, body := ask(t, s.Config, c.method, c.path); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.name, code, body, c.code, c.want)
		}
	}
}

// TestNobodyVouchesForANode has a node with a certificate of somebody else.
func TestNobodyVouchesForANode(t *testing.T) {
	s := startSite(t)
	s.node = s.podTLS
	if code, body := ask(t, s.Config, http.MethodGet, podPath("web", "log?container=a")); code != 500 || !strings.Contains(body, "x509: ") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := ask(t, s.Config, http.MethodGet, podPath("web", "log?container=a&insecureSkipTLSVerifyBackend=true")); code != 200 {
		t.Errorf("where it does not matter: %d %s", code, body)
	}
}

// TestTheServerDoesNotAskItself has a node at an address of the server, which shows
// nodes a certificate that may do everything.
func TestTheServerDoesNotAskItself(t *testing.T) {
	s := startSite(t)
	node, err := s.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: serviceIP}}
	if _, err := s.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, body := ask(t, s.Config, http.MethodGet, "/api/v1/nodes/n1/proxy/api/v1/secrets"); code != 401 {
		t.Errorf("%d %s", code, body)
	}
}

// TestNothingRunsInForks: their nodes are main's, where other rules hold.
func TestNothingRunsInForks(t *testing.T) {
	s := startSite(t)
	forkOf(t, s.Plane, "a", "")
	for _, path := range []string{podPath("web", "log?container=a"), podPath("web", "proxy/"), "/api/v1/nodes/n1/proxy/", "/api/v1/namespaces/default/services/web:plain/proxy/"} {
		if code, body := ask(t, s.Config, http.MethodGet, "/planes/a"+path); code != 503 || !strings.Contains(body, "nothing runs in plane a") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := ask(t, s.Config, http.MethodGet, "/planes/main"+podPath("web", "log?container=a")); code != 200 {
		t.Errorf("main by its name: %d %s", code, body)
	}
}
