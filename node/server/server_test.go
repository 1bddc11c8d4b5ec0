package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"setpoint.dev/setpoint/node/server"
)

// authority signs certificates of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "ca"}}
	a := &authority{}
	made := a.sign(t, template)
	a.cert, a.key = made.Leaf, made.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// sign fills a certificate in and signs it, by itself while there is no authority.
func (a *authority) sign(t *testing.T, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// user is a client certificate.
func (a *authority) user(t *testing.T, name string, groups ...string) tls.Certificate {
	return a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// pods are those of a node.
type pods []*corev1.Pod

func (p pods) Pods() []*corev1.Pod { return p }

func (p pods) Pod(namespace, name string) (*corev1.Pod, bool) {
	for _, pod := range p {
		if pod.Namespace == namespace && pod.Name == name {
			return pod, true
		}
	}
	return nil, false
}

// node is a server of a test.
type node struct {
	url    string
	ca     *authority
	asked  atomic.Int64 // questions to the API
	client func(certs ...tls.Certificate) *http.Client
	admin  tls.Certificate
	stop   func()
}

// start starts a server whose API knows the token "good" as of user tom, and lets
// members of admins do everything, tom read stats and amy read pods.
func start(t *testing.T, cfg server.Config) *node {
	t.Helper()
	n := &node{ca: newAuthority(t)}
	api := fake.NewClientset()
	api.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		n.asked.Add(1)
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if review.Spec.Token == "broken" {
			return true, nil, errors.New("the API is down")
		}
		review.Status.Authenticated, review.Status.User.Username = review.Spec.Token == "good", "tom"
		return true, review, nil
	})
	api.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		n.asked.Add(1)
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		about := review.Spec.ResourceAttributes
		if review.Spec.User == "nobody-knows" {
			return true, nil, errors.New("the API is down")
		}
		of := about.Verb + " " + about.Resource + "/" + about.Subresource + " " + about.Name
		review.Status.Allowed = slices.Contains(review.Spec.Groups, "admins") || review.Spec.User == "tom" && of == "get nodes/stats n1" || review.Spec.User == "amy" && of == "get nodes/pods n1"
		return true, review, nil
	})
	cert := n.ca.sign(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	cfg.Name, cfg.Client, cfg.ClientCAs, cfg.Logger = "n1", api, n.ca.pool(), slog.New(slog.DiscardHandler)
	cfg.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.url = "https://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.New(cfg).Run(ctx, listener) }()
	var once atomic.Bool
	n.stop = func() {
		if !once.CompareAndSwap(false, true) {
			return
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	}
	t.Cleanup(n.stop)
	n.client = func(certs ...tls.Certificate) *http.Client {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: n.ca.pool(), Certificates: certs}}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	n.admin = n.ca.user(t, "root", "admins")
	return n
}

// ask sends a request.
func (n *node) ask(t *testing.T, c *http.Client, method, path, token string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, n.url+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func TestWhoMay(t *testing.T) {
	n := start(t, server.Config{Pods: pods{}, Stats: used{}})
	stranger := newAuthority(t).user(t, "root", "admins")
	for _, c := range []struct {
		name, method, path, token string
		certs                     []tls.Certificate
		code                      int
		want                      string
	}{
		{"nobody", "GET", "/healthz", "", nil, 401, "Unauthorized"},
		{"somebody with a certificate of others", "GET", "/healthz", "", []tls.Certificate{stranger}, 401, "Unauthorized"},
		{"a token that is none", "GET", "/pods", "bad", nil, 401, "Unauthorized"},
		{"a token that nobody can judge", "GET", "/pods", "broken", nil, 401, "Unauthorized"},
		{"an admin", "GET", "/healthz", "", []tls.Certificate{n.admin}, 200, "ok"},
		{"an admin, part of health", "GET", "/healthz/syncloop", "", []tls.Certificate{n.admin}, 200, "ok"},
		{"by token", "GET", "/stats/summary", "good", nil, 200, `"nodeName":"n1"`},
		{"by token, something else", "GET", "/pods", "good", nil, 403, "Forbidden (user=tom, verb=get, resource=nodes, subresource(s)=[pods proxy])"},
		{"by token, a stream", "POST", "/exec/a/b/c", "good", nil, 403, "Forbidden (user=tom, verb=create, resource=nodes, subresource(s)=[proxy])"},
		{"fine-grained", "GET", "/pods", "", []tls.Certificate{n.ca.user(t, "amy", "x")}, 200, `"kind":"PodList"`},
		{"fine-grained, something else", "GET", "/logs/", "", []tls.Certificate{n.ca.user(t, "amy", "x")}, 403, "subresource(s)=[log]"},
		{"what the API does not say", "GET", "/metrics", "", []tls.Certificate{n.ca.user(t, "nobody-knows", "x")}, 500, "Authorization error (user=nobody-knows, verb=get, resource=nodes, subresource=metrics)"},
		{"settings", "GET", "/configz", "", []tls.Certificate{n.admin}, 200, `{"kubeletconfig":{}}`},
		{"no such path", "GET", "/x", "", []tls.Certificate{n.admin}, 404, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, body := n.ask(t, n.client(c.certs...), c.method, c.path, c.token); code != c.code || !strings.Contains(body, c.want) {
				t.Errorf("%d %s, want %d %s", code, body, c.code, c.want)
			}
		})
	}
	before := n.asked.Load()
	for range 5 {
		n.ask(t, n.client(), http.MethodGet, "/stats/summary", "good")
	}
	if more := n.asked.Load() - before; more > 0 {
		t.Errorf("%d questions to the API that had been answered", more)
	}
}

// used are stats that do not change.
type used struct{}

func (used) Summary(context.Context, bool) (*statsapi.Summary, error) {
	n := func(v uint64) *uint64 { return &v }
	at := metav1.NewTime(time.Unix(1700000000, 0))
	c := statsapi.ContainerStats{
		Name: "c", StartTime: at, CPU: &statsapi.CPUStats{Time: at, UsageCoreNanoSeconds: n(2_500_000_000)},
		Memory: &statsapi.MemoryStats{Time: at, WorkingSetBytes: n(1024)}, Rootfs: &statsapi.FsStats{Time: at, UsedBytes: n(77)},
	}
	return &statsapi.Summary{
		Node: statsapi.NodeStats{NodeName: "n1", CPU: &statsapi.CPUStats{Time: at, UsageCoreNanoSeconds: n(9_000_000_000)}},
		Pods: []statsapi.PodStats{{
			PodRef: statsapi.PodReference{Name: "p", Namespace: "ns"}, Containers: []statsapi.ContainerStats{c}, CPU: c.CPU, Memory: c.Memory,
			Network: &statsapi.NetworkStats{Time: at, Interfaces: []statsapi.InterfaceStats{{Name: "eth0", RxBytes: n(5), TxBytes: n(6)}}},
		}},
	}, nil
}

func TestMetrics(t *testing.T) {
	n := start(t, server.Config{Pods: pods{}, Stats: used{}})
	for path, want := range map[string][]string{
		"/metrics/resource": {
			"node_cpu_usage_seconds_total 9 1700000000000\n", `container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"} 2.5 1700000000000`,
			`pod_memory_working_set_bytes{namespace="ns",pod="p"} 1024 1700000000000`, "resource_scrape_error 0\n", `container_start_time_seconds{container="c",namespace="ns",pod="p"} 1.7e+09`,
		},
		"/metrics/cadvisor": {
			`container_network_receive_bytes_total{interface="eth0",namespace="ns",pod="p"} 5`, `container_fs_usage_bytes{container="c",namespace="ns",pod="p"} 77`,
		},
		"/metrics": {}, "/metrics/probes": {},
	} {
		code, body := n.ask(t, n.client(n.admin), http.MethodGet, path, "")
		if code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
		for _, text := range want {
			if !strings.Contains(body, text) {
				t.Errorf("%s has no %s:\n%s", path, text, body)
			}
		}
	}
}

// logs is a runtime with one container that has ended, whose log is at path.
type logs struct {
	server.Runtime
	path string
}

func (l logs) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	if id != "0123" {
		return nil, errors.New("no such container")
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: id, LogPath: l.path, State: runtimeapi.ContainerState_CONTAINER_EXITED}}, nil
}

func TestContainerLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	content := "2026-01-02T03:04:05Z stdout F one\n2026-01-02T03:04:06Z stderr F two\n"
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "containerd://0123"}}
	waits := func(why string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why}}
	}
	states := map[string]corev1.ContainerStatus{
		"runs":    {ContainerID: "containerd://0123", State: running},
		"ended":   {State: ended},
		"again":   {State: waits("CrashLoopBackOff"), LastTerminationState: ended},
		"unnamed": {State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
		"begins":  {State: waits("ContainerCreating")},
		"pulls":   {State: waits("ErrImagePull")},
		"backs":   {State: waits("ImagePullBackOff")},
		"empty":   {},
		"lost":    {ContainerID: "containerd://9999", State: running},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	for name, is := range states {
		is.Name = name
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, is)
	}
	pod.Spec.InitContainers = []corev1.Container{{Name: "unknown"}}
	n := start(t, server.Config{Pods: pods{pod}, Stats: used{}, Runtime: logs{path: path}})
	admin := n.client(n.admin)
	for _, c := range []struct {
		name, path string
		code       int
		want       string
	}{
		{"runs", "p/runs", 200, "one\ntwo\n"},
		{"ended", "p/ended", 200, "one\ntwo\n"},
		{"ended and follows", "p/ended?follow=true", 200, "one\ntwo\n"},
		{"options", "p/runs?tailLines=1&timestamps=true&limitBytes=25", 200, "2026-01-02T03:04:06.00000"},
		{"one stream", "p/runs?stream=Stderr", 200, "two\n"},
		{"the last one", "p/again", 200, "one\ntwo\n"},
		{"the one before", "p/again?previous=true", 200, "one\ntwo\n"},
		{"none before", "p/runs?previous=true", 400, `previous terminated container "runs" in pod "p" not found`},
		{"terminated without an id", "p/unnamed", 400, `container "unnamed" in pod "p" is terminated`},
		{"waiting", "p/begins", 400, `container "begins" in pod "p" is waiting to start: ContainerCreating`},
		{"pulling", "p/pulls", 400, `container "pulls" in pod "p" is waiting to start: image can't be pulled`},
		{"pulling again", "p/backs", 400, `container "backs" in pod "p" is waiting to start: trying and failing to pull image`},
		{"nothing yet", "p/empty", 400, `container "empty" in pod "p" is waiting to start - no logs yet`},
		{"no status", "p/unknown", 400, `container "unknown" in pod "p" is not available`},
		{"not in the runtime", "p/lost", 400, "unable to retrieve container logs for 9999"},
		{"no such container", "p/x", 404, `container "x" not found in pod "p"`},
		{"no such pod", "x/runs", 404, `pod "x" does not exist`},
		{"what is no number", "p/runs?tailLines=x", 400, "Unable to decode query."},
		{"less than nothing", "p/runs?tailLines=-1", 422, "Invalid request."},
		{"two times", "p/runs?sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z", 422, "Invalid request."},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, body := n.ask(t, admin, http.MethodGet, "/containerLogs/ns/"+c.path, "")
			if code != c.code || strings.TrimSuffix(body, "\n") != strings.TrimSuffix(c.want, "\n") && !strings.Contains(body, c.want) {
				t.Errorf("%d %q, want %d %q", code, body, c.code, c.want)
			}
		})
	}
}
