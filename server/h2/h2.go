// Package h2 serves HTTP/2 on connections that carry many streams, most of
// which wait. In come connections whose TLS is done and who chose "h2"; out go
// requests to a handler and its answers to the client.
//
// It differs from net/http's server in how bytes leave. There, every frame
// passes through two goroutines and is a write of its own. Here a handler
// puts its frames into the connection's queue and goes on; one writer per
// connection takes all that has gathered, once everybody who could run has
// run, and writes it at once. An event that 200 watchers of one connection get
// is then a few writes, not 200.
//
//	reader: frames -> requests, bodies, windows      (one goroutine per connection)
//	handler: answer -> frames -> queue               (one per stream that is open)
//	writer: queue -> records -> one write            (one per connection)
//
// What always holds: a queue is bounded, and who would overfill it waits in
// line; flow control is kept in both directions; a client cannot have more
// handlers run than it may have streams, however fast it resets them; frames
// are read and checked by x/net's framer, headers by its hpack.
package h2

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Config says how connections are served. The zero value of a field means its
// default.
type Config struct {
	// MaxStreams is how many streams a client may have open on a connection.
	MaxStreams uint32
	// MaxHeaderBytes is how large the headers of a request may be.
	MaxHeaderBytes uint32
	// IdleTimeout ends a connection that has had no stream for so long; 0 never does.
	IdleTimeout time.Duration
	// PingAfter is how long a client may be silent before it is asked whether it
	// is there, and PingWithin how long it may take to answer; 0 never asks.
	PingAfter, PingWithin time.Duration
	// WriteTimeout ends a connection that takes not a byte for so long; 0 never does.
	WriteTimeout time.Duration
	// Logger gets what ends connections and handlers that should not end.
	Logger *slog.Logger
}

// The defaults. Compat: as many streams as net/http allows.
const (
	defaultStreams = 250
	defaultHeader  = 1 << 20
)

// Server serves HTTP/2 connections.
type Server struct {
	Config
	workers workers

	mu      sync.Mutex
	conns   map[*conn]struct{}
	closing bool
}

// New makes a server that serves nothing yet.
func New(cfg Config) *Server {
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = defaultStreams
	}
	if cfg.MaxHeaderBytes == 0 {
		cfg.MaxHeaderBytes = defaultHeader
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{Config: cfg, workers: newWorkers(), conns: map[*conn]struct{}{}}
}

// Attach has a server of net/http pass connections that chose "h2" on to this
// one, and tell them when it shuts down. Its listener has to be wrapped by
// Gather, and its TLS has to offer "h2".
func (s *Server) Attach(h *http.Server) {
	h.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(_ *http.Server, c *tls.Conn, handler http.Handler) { s.serve(c, handler) },
	}
	h.RegisterOnShutdown(s.shutdown)
}

// serve serves a connection until it ends.
func (s *Server) serve(t *tls.Conn, handler http.Handler) {
	ctx := context.Background()
	if based, is := handler.(interface{ BaseContext() context.Context }); is {
		ctx = based.BaseContext()
	}
	c := newConn(s, t, handler)
	c.mu.Lock()
	c.settings() // before anybody can tell it to go
	c.mu.Unlock()
	s.mu.Lock()
	s.conns[c] = struct{}{}
	closing := s.closing
	s.mu.Unlock()
	if closing {
		c.leave()
	}
	c.serve(ctx)
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// shutdown asks all clients to go elsewhere; a connection ends with its last
// stream.
func (s *Server) shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for c := range s.conns {
		go c.leave() // it waits for nobody, but for the connection's lock
	}
}

// workers are goroutines that have carried out a request and wait for
// another: their stacks have grown already.
type workers struct {
	jobs chan *stream
	idle chan struct{} // a place for each that may wait
}

// maxIdle is how many of them wait at most.
const maxIdle = 32

func newWorkers() workers { return workers{make(chan *stream), make(chan struct{}, maxIdle)} }

// run has a worker carry out a request.
func (w workers) run(st *stream) {
	select {
	case w.jobs <- st:
	default:
		go w.work(st)
	}
}

func (w workers) work(st *stream) {
	for {
		st.handle()
		select {
		case w.idle <- struct{}{}:
		default:
			return
		}
		st = <-w.jobs
		<-w.idle
	}
}
