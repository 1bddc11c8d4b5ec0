package h2

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn is a connection. mu guards all that has no other guard said beside it.
type conn struct {
	server  *Server
	tls     *tls.Conn
	below   *gathered // nil when the listener is not ours
	handler http.Handler
	state   tls.ConnectionState
	remote  string
	ctx     context.Context
	cancel  context.CancelFunc

	// Of the reader alone.
	framer *http2.Framer
	first  bool         // nothing has come yet
	heard  atomic.Int64 // when something came last, in nanoseconds; for all

	mu      sync.Mutex
	streams map[uint32]*stream
	highest uint32    // the last stream that the client has begun
	running int       // handlers that have begun and not ended
	waiting []*stream // requests that wait for a handler
	leaving bool      // the client has been told to go elsewhere
	heeded  uint32    // the last stream that is carried out when leaving
	closed  error     // why the connection has ended

	out     [][]byte // frames that nobody has written yet, in chunks
	queued  int      // bytes in out
	pace    Pace     // of an answer that is in out; nil when none has one
	encoder *hpack.Encoder
	fields  []byte        // header fields as the encoder made them
	writing bool          // the writer is at it, and will look again
	wake    chan struct{} // tells it that there is something
	line    []*stream     // who waits for room in out or in the window, in order

	window   int64  // bytes that the client takes on this connection
	initial  int64  // and on a new stream
	maxFrame uint32 // and in a frame
	received int64  // bytes that came and were not given back to the client yet
	room     int64  // bytes that the client may still send on this connection

	idle *time.Timer
	ping *time.Timer
}

// What we tell clients that they may send.
const (
	streamRoom = 256 << 10 // of a body before a handler reads it
	connRoom   = 4 << 20
	maxRead    = 16 << 10 // a frame
	maxWindow  = 1<<31 - 1
)

// mostQueued is how much waits to be written. What is told in passing may go
// beyond, up to mostPassing, and answers to the client's own frames, up to
// mostAnswers.
const (
	mostQueued  = 512 << 10
	mostPassing = 4 << 20
	mostAnswers = mostPassing + 1<<20
)

func newConn(s *Server, t *tls.Conn, handler http.Handler) *conn {
	c := &conn{
		server: s, tls: t, handler: handler, state: t.ConnectionState(), remote: t.RemoteAddr().String(),
		streams: map[uint32]*stream{}, wake: make(chan struct{}, 1), first: true,
		window: 65535, initial: 65535, maxFrame: 16 << 10, room: connRoom,
	}
	c.below, _ = t.NetConn().(*gathered)
	c.encoder = hpack.NewEncoder((*fieldWriter)(c))
	c.framer = http2.NewFramer(io.Discard, bufio.NewReaderSize(t, 4<<10))
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(maxRead)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	c.framer.MaxHeaderListSize = s.MaxHeaderBytes
	return c
}

// fieldWriter takes what the encoder makes.
type fieldWriter conn

// Write implements io.Writer.
func (w *fieldWriter) Write(p []byte) (int, error) {
	w.fields = append(w.fields, p...)
	return len(p), nil
}

// errGone is why streams end when their connection does.
var errGone = errors.New("the connection has ended")

// serve serves the connection until it ends. Its handlers may still run then;
// their contexts have ended.
func (c *conn) serve(ctx context.Context) {
	c.ctx, c.cancel = context.WithCancel(ctx)
	if c.below != nil {
		c.below.hold(c.server.WriteTimeout)
	}
	var writer sync.WaitGroup
	writer.Go(c.write)
	c.heard.Store(time.Now().UnixNano())
	c.mu.Lock()
	c.watchIdle()
	c.watchSilence()
	c.mu.Unlock()
	err := c.read()
	if ours, is := errors.AsType[http2.ConnectionError](err); is {
		c.server.Logger.Debug("an HTTP/2 connection is given up", "client", c.remote, "error", err, "detail", c.framer.ErrorDetail())
		c.mu.Lock()
		c.goAway(http2.ErrCode(ours))
		c.mu.Unlock()
		c.linger(writer.Wait)
	}
	c.end(err)
	c.cancel()
	writer.Wait()
	if c.below != nil {
		c.below.release()
	}
	_ = c.tls.Close() // nothing is left to say
}

// lingerFor is how long a client has to read why its connection ends. Until
// then what it sends is thrown away: closing a connection with unread bytes
// may take the last words from the client, too.
const lingerFor = 250 * time.Millisecond

func (c *conn) linger(written func()) {
	over := time.AfterFunc(2*lingerFor, func() { _ = c.tls.NetConn().Close() }) // whatever is going on
	defer over.Stop()
	c.end(errGone)
	written()
	_ = c.tls.SetReadDeadline(time.Now().Add(lingerFor)) // then the read below ends at once
	_, _ = io.Copy(io.Discard, c.tls)                    // whatever it is
}

// end ends all streams. The writer writes what is in the queue and ends.
func (c *conn) end(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shut(why)
}

// shut is end for those who hold the lock.
func (c *conn) shut(why error) {
	if c.closed != nil {
		return
	}
	if why == nil {
		why = errGone
	}
	c.closed = why
	for _, st := range c.streams {
		st.fail(errGone)
	}
	clear(c.streams)
	c.waiting, c.line = nil, nil
	for _, t := range []*time.Timer{c.idle, c.ping} {
		if t != nil {
			t.Stop()
		}
	}
	c.wakeWriter()
}

// leave tells the client to go elsewhere with new requests. The connection ends
// with its last stream.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.goAway(http2.ErrCodeNo)
	c.leaveWhenDone()
}

// leaveWhenDone ends a connection that is to end and has no more streams. The
// caller holds the lock.
func (c *conn) leaveWhenDone() {
	if c.leaving && len(c.streams) == 0 {
		c.shut(errGone) // the writer writes the rest, and then ends the reader
	}
}

// watchIdle ends a connection on which nothing happens. The caller holds the
// lock, and there is no stream.
func (c *conn) watchIdle() {
	switch {
	case c.server.IdleTimeout <= 0:
	case c.idle == nil:
		c.idle = time.AfterFunc(c.server.IdleTimeout, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.streams) == 0 {
				c.goAway(http2.ErrCodeNo)
				c.leaveWhenDone()
			}
		})
	default:
		c.idle.Reset(c.server.IdleTimeout)
	}
}

// watchSilence asks a client that says nothing whether it is there, and gives
// the connection up when it says nothing to that. The caller holds the lock.
func (c *conn) watchSilence() {
	if c.server.PingAfter <= 0 {
		return
	}
	asked := int64(0) // when; 0 when there is no question
	c.ping = time.AfterFunc(c.server.PingAfter, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed != nil {
			return
		}
		now, heard := time.Now(), c.heard.Load()
		silent := now.Sub(time.Unix(0, heard))
		switch {
		case asked != 0 && heard < asked:
			c.server.Logger.Debug("an HTTP/2 client has gone", "client", c.remote, "silent", silent)
			_ = c.tls.NetConn().Close() // the reader finds out
		case silent >= c.server.PingAfter:
			asked = now.UnixNano()
			c.frame(http2.FramePing, 0, 0, make([]byte, 8))
			c.wakeWriter()
			c.ping.Reset(c.server.PingWithin)
		default:
			asked = 0
			c.ping.Reset(c.server.PingAfter - silent)
		}
	})
}

// finished is called by a handler that has ended, and begins one that waited.
func (c *conn) finished() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	for len(c.waiting) > 0 {
		st := c.waiting[0]
		c.waiting = c.waiting[1:]
		if c.streams[st.id] == st { // it has not been given up meanwhile
			c.running++
			c.server.workers.run(st)
			return
		}
	}
}

// begin has a request carried out, as soon as there are not too many. The
// caller holds the lock.
func (c *conn) begin(st *stream) error {
	if c.running < int(c.server.MaxStreams) {
		c.running++
		c.server.workers.run(st)
		return nil
	}
	if len(c.waiting) >= 4*int(c.server.MaxStreams) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.waiting = append(c.waiting, st)
	return nil
}

// drop takes a stream off the connection. The caller holds the lock.
func (c *conn) drop(st *stream) {
	if c.streams[st.id] != st {
		return
	}
	delete(c.streams, st.id)
	if len(c.streams) == 0 {
		c.watchIdle()
	}
	c.leaveWhenDone()
}
