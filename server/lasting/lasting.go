// Package lasting ends what has no end of its own once the server ends.
//
// In come answers and connections that are passed on between a client and
// somebody else for as long as both like; out come the same, bound to a context
// that is done when the server begins to end. An answer then ends in good
// order, as if it had been all; a connection that was given away is closed.
package lasting

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
)

// Until returns a context that is done when a channel is closed.
func Until(closed <-chan struct{}) context.Context {
	return until{context.Background(), closed}
}

type until struct {
	context.Context
	closed <-chan struct{}
}

// Done implements context.Context.
func (u until) Done() <-chan struct{} { return u.closed }

// Err implements context.Context.
func (u until) Err() error {
	select {
	case <-u.closed:
		return context.Canceled
	default:
		return nil
	}
}

// Request binds a request to ending as well as to its client. Whoever handles
// it calls done at the end.
func Request(ending context.Context, r *http.Request) (bound *http.Request, done func()) {
	ctx, cancel := context.WithCancel(r.Context())
	forget := context.AfterFunc(ending, cancel)
	return r.WithContext(ctx), func() {
		forget()
		cancel()
	}
}

// Transport lets the answers that come through a transport end in good order
// once ending is done.
func Transport(ending context.Context, through http.RoundTripper) http.RoundTripper {
	return transport{through, ending}
}

type transport struct {
	http.RoundTripper
	ending context.Context
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = body{answer.Body, t.ending}
	}
	return answer, err
}

// WrappedRoundTripper is how upgrades find the transport.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

type body struct {
	io.ReadCloser
	ending context.Context
}

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.ending.Err() != nil {
		err = io.EOF
	}
	return n, err
}

// Writer closes the connection of an answer that somebody takes over once
// ending is done.
func Writer(ending context.Context, w http.ResponseWriter) http.ResponseWriter {
	return &writer{w, ending}
}

type writer struct {
	http.ResponseWriter
	ending context.Context
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements http.Flusher.
func (w *writer) Flush() {
	_ = http.NewResponseController(w.ResponseWriter).Flush() // the client has gone
}

// Hijack implements http.Hijacker.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	given := &givenAway{Conn: conn}
	given.forget = context.AfterFunc(w.ending, func() { _ = conn.Close() }) // it may be closed already
	return given, buffered, nil
}

// givenAway is a connection that is closed by whoever has it, or by writer.
type givenAway struct {
	net.Conn
	forget func() bool
}

// Close implements net.Conn.
func (g *givenAway) Close() error {
	g.forget()
	return g.Conn.Close()
}
