package h2

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Gather wraps a listener below TLS. Connections that turn out to speak HTTP/2
// gather the records of one turn of their writer into one write; others are
// left as they are.
func Gather(l net.Listener) net.Listener { return gatherer{l} }

type gatherer struct{ net.Listener }

// Accept implements net.Listener.
func (g gatherer) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gathered{Conn: c}, nil
}

// gathered is a connection that can hold back what is written until it is told
// to pass it on.
type gathered struct {
	net.Conn
	mu      sync.Mutex
	on      bool
	turn    bool          // the writer is at it, and will pass on what it has written
	patient time.Duration // how long the client may take nothing; 0 is forever
	held    []byte
}

// mostHeld is how much is held back at most: the records of a chunk.
const mostHeld = bufferSize

// hold begins to hold back what is written.
func (g *gathered) hold(patient time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.on, g.patient = true, patient
}

// release passes on what is held back, and holds back no more.
func (g *gathered) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.pass() // the connection ends
	g.on = false
}

// begin says that several writes come, and then a flush.
func (g *gathered) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turn = true
}

// flush passes on what is held back.
func (g *gathered) flush() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turn = false
	return g.pass()
}

// Write implements net.Conn.
func (g *gathered) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.on {
		return g.Conn.Write(p)
	}
	if len(g.held)+len(p) > mostHeld {
		if err := g.pass(); err != nil {
			return 0, err
		}
	}
	if g.held == nil {
		g.held = buffer()
	}
	g.held = append(g.held, p...)
	return len(p), nil
}

// Read implements net.Conn. TLS may have answered a message of its own in the
// course of reading; nobody else would pass that on.
func (g *gathered) Read(p []byte) (int, error) {
	if g.mu.TryLock() { // otherwise somebody is writing, and passes it on
		if !g.turn {
			_ = g.pass() // the next write says it again
		}
		g.mu.Unlock()
	}
	return g.Conn.Read(p)
}

// pass writes what is held back. A client that takes some of it in time may
// take its time for the rest. The caller holds the lock.
func (g *gathered) pass() error {
	if len(g.held) == 0 {
		return nil
	}
	rest := g.held
	var failed error
	for len(rest) > 0 && failed == nil {
		if g.patient > 0 {
			failed = g.SetWriteDeadline(time.Now().Add(g.patient))
		}
		if failed == nil {
			var n int
			n, failed = g.Conn.Write(rest)
			rest = rest[n:]
			if n > 0 && errors.Is(failed, os.ErrDeadlineExceeded) {
				failed = nil
			}
		}
	}
	put(g.held)
	g.held = nil
	return failed
}

// chunkSize is how much is encrypted at a time, a few records; a buffer has room
// for a chunk and for what the records of one add. What is larger would not stay
// in the processor's cache from one copy to the next.
const (
	chunkSize  = 64 << 10
	bufferSize = chunkSize + 1<<10
)

// buffers are kept for whoever writes next, so that a connection on which
// nothing happens holds nothing.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// buffer returns an empty one.
func buffer() []byte { return buffers.Get().(*[bufferSize]byte)[:0] }

// put gives a buffer back.
func put(b []byte) { buffers.Put((*[bufferSize]byte)(b[:bufferSize])) }
