// Package server is the HTTPS server of a node: what others may ask of it, and
// who they are.
//
// In come requests of the API server, of people and of monitoring, with paths
// that are kubelet's; out go logs, streams, lists of pods, and what is used. Who
// asks is known by a client certificate or a token, and whether they may is asked
// of the API: every path is a subresource of the node. Strangers are refused.
//
//	containerLogs  -> status of the pod -> CRI: where the log is -> node/log
//	exec, attach, portForward -> CRI: the runtime's own streaming server -> both sides, as they are
//	stats, metrics -> node/stats
//
// Streams end with either side, and when Run ends.
package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Config is what the server works with. Name, Pods, Runtime, Stats, Client,
// Certificate and ClientCAs are needed.
type Config struct {
	// Name is that of the node.
	Name string
	// Pods are those of the node.
	Pods Pods
	// Runtime has their containers.
	Runtime Runtime
	// Stats says what is used.
	Stats Stats
	// Client is the node's own: it asks who tokens are of, and what users may.
	Client kubernetes.Interface
	// Certificate is what clients are shown, and ClientCAs are who may vouch for
	// theirs.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	ClientCAs   *x509.CertPool
	// Healthy says what is wrong with the node's agent; nil means nothing ever is.
	Healthy func() error
	// Metrics and Probes are what the agent counts; nil counts nothing.
	Metrics, Probes prometheus.Gatherer
	// Settings are what the agent was told, for those who want to read it; nil is
	// nothing.
	Settings any
	// LogDir is a folder of logs of the machine; "" means /var/log.
	LogDir string
	// Logger hears what goes wrong; nil means slog.Default.
	Logger *slog.Logger
}

// Pods are the pods of the node with their newest status. They are not changed.
type Pods interface {
	Pods() []*corev1.Pod
	Pod(namespace, name string) (*corev1.Pod, bool)
}

// Runtime is what is asked of a container runtime.
type Runtime interface {
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error)
	Exec(ctx context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error)
	Attach(ctx context.Context, request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error)
	PortForward(ctx context.Context, request *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error)
}

// Stats says what the node and its pods use; brief leaves out all but processor
// and memory.
type Stats interface {
	Summary(ctx context.Context, brief bool) (*statsapi.Summary, error)
}

// Server serves one node.
type Server struct {
	Config
	mux    *http.ServeMux
	access *access
	ending context.Context
	end    context.CancelFunc
}

// Bounds of connections.
const (
	headerTimeout  = 32 * time.Second
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 1 << 20
	shutdownWithin = 5 * time.Second
)

// New returns a server that does not listen yet.
func New(cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.LogDir == "" {
		cfg.LogDir = "/var/log"
	}
	if cfg.Settings == nil {
		cfg.Settings = struct{}{}
	}
	if cfg.Healthy == nil {
		cfg.Healthy = func() error { return nil }
	}
	s := &Server{Config: cfg, mux: http.NewServeMux(), access: newAccess(cfg)}
	s.ending, s.end = context.WithCancel(context.Background())
	s.routes()
	return s
}

// routes are all paths there are.
func (s *Server) routes() {
	for path, h := range map[string]http.HandlerFunc{
		"/healthz":          s.health,
		"/healthz/ping":     s.health,
		"/healthz/syncloop": s.health,
		"GET /pods":         s.pods,
		"GET /runningpods/": s.runningPods,
		"GET /configz":      s.configz,

		"GET /containerLogs/{namespace}/{pod}/{container}": s.containerLogs,
		"/exec/{namespace}/{pod}/{container}":              s.exec,
		"/exec/{namespace}/{pod}/{uid}/{container}":        s.exec,
		"/attach/{namespace}/{pod}/{container}":            s.attach,
		"/attach/{namespace}/{pod}/{uid}/{container}":      s.attach,
		"/portForward/{namespace}/{pod}":                   s.portForward,
		"/portForward/{namespace}/{pod}/{uid}":             s.portForward,
		"POST /run/{namespace}/{pod}/{container}":          s.run,
		"POST /run/{namespace}/{pod}/{uid}/{container}":    s.run,

		"/stats/summary":    s.summary,
		"/metrics/resource": s.resourceMetrics,
		"/metrics/cadvisor": s.containerMetrics,
		"/metrics":          gathered(s.Metrics),
		"/metrics/probes":   gathered(s.Probes),

		"/debug/pprof/":        pprof.Index,
		"/debug/pprof/cmdline": pprof.Cmdline,
		"/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol":  pprof.Symbol,
		"/debug/pprof/trace":   pprof.Trace,
	} {
		s.mux.HandleFunc(path, h)
	}
	s.mux.Handle("GET /logs/", http.StripPrefix("/logs/", http.FileServer(http.Dir(s.LogDir))))
}

func gathered(from prometheus.Gatherer) http.HandlerFunc {
	if from == nil {
		from = prometheus.NewRegistry()
	}
	return promhttp.HandlerFor(from, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP
}

// ServeHTTP lets those in who may.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if refusal := s.access.check(r); refusal != nil {
		http.Error(w, refusal.text, refusal.code)
		return
	}
	r.Header.Del("Authorization") // not to be seen by anyone further on
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	s.mux.ServeHTTP(w, r.WithContext(ctx))
}

// Run serves on a listener until ctx ends.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	h := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:  slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.Certificate, ClientAuth: tls.RequestClientCert, ClientCAs: s.ClientCAs},
	}
	served := make(chan error, 1)
	open := &connections{Listener: listener, all: map[net.Conn]bool{}}
	defer open.end() // of those that are streams now, and nobody else's to close
	go func() { served <- h.ServeTLS(open, "", "") }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	s.end()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownWithin)
	defer cancel()
	err := h.Shutdown(end)
	if errors.Is(err, context.DeadlineExceeded) {
		err = h.Close()
	}
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if err := s.Healthy(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok")) // the client has gone
}

// pods are those that the node is to run.
func (s *Server) pods(w http.ResponseWriter, _ *http.Request) { writePods(w, s.Pods.Pods()) }

// writePods answers with a list of pods.
func writePods(w http.ResponseWriter, pods []*corev1.Pod) {
	list := &corev1.PodList{}
	list.APIVersion, list.Kind = "v1", "PodList"
	list.Items = []corev1.Pod{}
	for _, p := range pods {
		list.Items = append(list.Items, *p)
	}
	writeJSON(w, list)
}

// configz is what the agent was told. Compat: under the name of kubelet's
// configuration.
func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{"kubeletconfig": s.Settings})
}

func writeJSON(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // the client has gone
}
