// Package server is the door: it listens, asks who a request is from and what
// it wants, whether they may, and hands it to whoever answers.
//
// chain.go has the steps of a request in order. Requests for resources end in
// rest, or at another server that is behind this one; discovery, OpenAPI, health, version, metrics and the documents about
// service account tokens have handlers of their own.
package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"setpoint.dev/setpoint/metrics"
	"setpoint.dev/setpoint/server/audit"
	"setpoint.dev/setpoint/server/authn"
	"setpoint.dev/setpoint/server/discovery"
	"setpoint.dev/setpoint/server/fair"
	"setpoint.dev/setpoint/server/h2"
	"setpoint.dev/setpoint/server/openapi"
	"setpoint.dev/setpoint/server/planes"
	"setpoint.dev/setpoint/server/rest"
)

// Config is what a server is made of.
type Config struct {
	REST      *rest.Handler
	Discovery *discovery.Server
	OpenAPI   *openapi.Server
	// Elsewhere finds who serves a path that another server serves; it returns
	// nil for all others.
	Elsewhere func(path string) http.Handler
	// Placements says why pods are where they are, or nowhere.
	Placements http.Handler
	// Planes serves other planes and the past; nil serves none.
	Planes *planes.Server
	Authn  authenticator.Request
	Authz  authorizer.Authorizer
	Issuer *authn.Issuer
	Logger *slog.Logger
	// Fair lets requests in when it is their turn; nil lets all in at once.
	Fair *fair.Gate
	// Audit writes down what is asked; nil writes nothing.
	Audit *audit.Log
	// Metrics count what is asked; nil counts nothing and serves no /metrics.
	Metrics *metrics.Metrics
	// RequestTimeout is how long a request may take that is not meant to last,
	// such as a watch is; 0 means a minute.
	RequestTimeout time.Duration
	// WriteTimeout is how long a client may take no byte of its answer before
	// it is cut off; 0 means 30 seconds.
	WriteTimeout time.Duration
	// PingAfter is how long nothing may come in on a connection of several
	// streams before it is asked whether it is still there, and PingWithin how
	// long it has to answer before it is closed; 0 means 30 and 15 seconds.
	PingAfter, PingWithin time.Duration
	// Certificate is the server's; ClientCAs are who may vouch for clients.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	ClientCAs   *x509.CertPool
	// Self says that a certificate is what this server shows to nodes, and nobody
	// else; nil is for servers that reach none. Requests with it are refused: they
	// come from this server by way of a Node that gives its address as the node's,
	// and would have this server's rights.
	Self func(*x509.Certificate) bool
	// EndAtOnce closes connections as soon as no request is under way once the
	// server is told to end. Otherwise clients of several streams are given a
	// second to see that it goes.
	EndAtOnce bool
	// Drained is closed by Run once the server has begun to end.
	Drained chan struct{}
}

// Server serves the API.
type Server struct {
	Config
	mux      *http.ServeMux
	chain    []step
	draining atomic.Bool
	underWay atomic.Int64 // requests
}

// Bounds of connections. A request's line and headers together are at most
// maxHeaderBytes, else it is answered with 431.
const (
	headerTimeout  = 32 * time.Second
	idleTimeout    = 90 * time.Second
	writeTimeout   = 30 * time.Second
	requestTimeout = time.Minute
	pingAfter      = 30 * time.Second
	pingWithin     = 15 * time.Second
	shutdownWithin = 30 * time.Second
	askAgainAfter  = 250 * time.Millisecond
	lookAgainAfter = 10 * time.Millisecond
	maxHeaderBytes = 1 << 20
)

// New returns a server that does not listen yet.
func New(cfg Config) *Server {
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = writeTimeout
	}
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = requestTimeout
	}
	if cfg.PingAfter <= 0 {
		cfg.PingAfter = pingAfter
	}
	if cfg.PingWithin <= 0 {
		cfg.PingWithin = pingWithin
	}
	s := &Server{Config: cfg, mux: http.NewServeMux()}
	if s.Metrics != nil {
		s.mux.Handle("/metrics", s.Metrics.Handler())
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		s.mux.HandleFunc(path, s.health)
		s.mux.HandleFunc(path+"/", s.health)
	}
	for _, path := range []string{"/api", "/api/", "/apis", "/apis/"} {
		s.mux.Handle(path, s.Discovery)
	}
	for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/"} {
		s.mux.Handle(path, s.OpenAPI)
	}
	s.mux.HandleFunc("/version", serveVersion)
	s.mux.HandleFunc("/version/", serveVersion)
	s.mux.HandleFunc("/.well-known/openid-configuration", s.document(s.Issuer.OpenIDConfig, "application/json"))
	s.mux.HandleFunc("/openid/v1/jwks", s.document(s.Issuer.JWKS, "application/jwk-set+json"))
	if s.Placements != nil {
		s.mux.Handle("/debug/scheduler/{namespace}/{name}", s.Placements)
	}
	if s.Fair != nil {
		s.mux.Handle("/debug/api_priority_and_fairness/", s.Fair)
	}
	s.mux.HandleFunc("/debug/pprof/", pprof.Index)
	s.mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	s.mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	s.mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	s.mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	s.mux.HandleFunc("/{$}", s.index)
	s.chain = s.steps()
	return s
}

// Run serves on a listener until ctx ends, then lets requests under way finish
// and watches end, and returns. readyz fails from the moment that ctx ends.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	h := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, GetCertificate: s.Certificate, NextProtos: []string{"h2", "http/1.1"},
			ClientAuth: tls.RequestClientCert, ClientCAs: s.ClientCAs,
			// Small records are for pages that a browser shows while they come. Here
			// they would be several writes for one object.
			DynamicRecordSizingDisabled: true,
		},
	}
	h2.New(h2.Config{
		MaxHeaderBytes: maxHeaderBytes, IdleTimeout: idleTimeout, PingAfter: s.PingAfter, PingWithin: s.PingWithin, WriteTimeout: s.WriteTimeout, Logger: s.Logger,
	}).Attach(h)
	served := make(chan error, 1)
	go func() { served <- h.ServeTLS(h2.Gather(listener), "", "") }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	s.draining.Store(true)
	close(s.Drained)
	err := s.shutdown(context.WithoutCancel(ctx), h)
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

// shutdown ends a server when its requests have ended, and after shutdownWithin
// at the latest. It looks again and again whether they have.
func (s *Server) shutdown(ctx context.Context, h *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownWithin)
	defer cancel()
	again := askAgainAfter
	if s.EndAtOnce {
		again = lookAgainAfter
	}
	for {
		asked, done := context.WithTimeout(ctx, again)
		err := h.Shutdown(asked)
		done()
		switch {
		case !errors.Is(err, context.DeadlineExceeded):
			return err
		case ctx.Err() != nil:
			return errors.Join(err, h.Close())
		case s.EndAtOnce && s.underWay.Load() == 0:
			return h.Close()
		}
	}
}

// document serves a document that an issuer makes.
func (s *Server) document(get func() ([]byte, int), media string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		body, maxAge := get()
		if body == nil {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", media)
		w.Header().Set("Cache-Control", cacheFor(maxAge))
		_, _ = w.Write(body) // the client has gone
	}
}
