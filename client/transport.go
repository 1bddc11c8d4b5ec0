package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"sync"
	"time"
)

// ErrCut is what requests end with while the transport is cut.
var ErrCut = errors.New("the transport is cut")

// Transport is an http.RoundTripper that calls a handler.
//
// RoundTrip returns when the answer has begun or the handler has returned, and
// not before: a write whose request has ended either happened or never will.
// The answer is streamed through a buffer of at most bound bytes. A writer
// waits for its reader; the end of the request's context ends both.
type Transport struct {
	cfg Config

	mu      sync.Mutex // guards the fields below
	cut     bool
	ongoing map[*exchange]struct{}
}

func newTransport(cfg Config) *Transport {
	return &Transport{cfg: cfg, ongoing: map[*exchange]struct{}{}}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(called(req.Context(), t.cfg.User))
	x := &exchange{
		ctx: ctx, cancel: cancel, header: http.Header{},
		begun: make(chan struct{}), readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
	}
	if !t.enter(x) {
		cancel(ErrCut)
		return nil, errors.Join(ErrCut, closeBody(req))
	}
	go func() {
		defer t.leave(x)
		x.serve(t.cfg.Handler, t.inbound(ctx, req))
		_ = closeBody(req) // it has been read
	}()
	<-x.begun
	if err := x.failed(); err != nil {
		cancel(err)
		return nil, err
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", x.code, http.StatusText(x.code)), StatusCode: x.code,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: x.sent, Body: x, ContentLength: -1, Request: req,
	}, nil
}

func closeBody(req *http.Request) error {
	if req.Body == nil {
		return nil
	}
	return req.Body.Close()
}

// inbound is the request as a server gets it.
func (t *Transport) inbound(ctx context.Context, req *http.Request) *http.Request {
	r := req.Clone(ctx)
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
	r.RemoteAddr = "127.0.0.1:0"
	if r.Body == nil {
		r.Body = http.NoBody
	}
	if r.Header.Get("User-Agent") == "" {
		r.Header.Set("User-Agent", t.cfg.UserAgent)
	}
	if r.Method == http.MethodGet && t.cfg.asks(ctx, r.URL.Path) {
		if r.URL.RawQuery != "" {
			r.URL.RawQuery += "&"
		}
		r.URL.RawQuery += "includeUninitialized=true"
	}
	if r.Method == http.MethodPost && slices.Contains(t.cfg.Uninitialized, path.Base(r.URL.Path)) {
		// Who sees objects that wait for initializers need not wait with them.
		query := r.URL.Query()
		query.Set("includeUninitialized", "true")
		r.URL.RawQuery = query.Encode()
	}
	r.RequestURI = r.URL.RequestURI()
	return r
}

func (t *Transport) enter(x *exchange) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.cut {
		t.ongoing[x] = struct{}{}
	}
	return !t.cut
}

func (t *Transport) leave(x *exchange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.ongoing, x)
}

func (t *Transport) setCut(cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cut = cut
	if cut {
		for x := range t.ongoing {
			x.cancel(ErrCut)
		}
	}
}

// bound is how much of an answer may wait for its reader.
const bound = 256 << 10

// keep is how much room an answer that waits for more to come may hold on to.
const keep = 4 << 10

// exchange is one request under way: the handler's http.ResponseWriter, and the
// caller's response body.
type exchange struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	header http.Header

	begun chan struct{} // closed when code and sent are there, or err is
	// Told that something has changed, for those who wait.
	readable, writable chan struct{}

	mu    sync.Mutex // guards the fields below
	begin bool       // begun is closed
	code  int
	sent  http.Header
	buf   []byte
	read  int   // how much of buf has been read
	ended bool  // the handler has returned
	err   error // why there is no more, or no answer at all
	late  error // why nothing more can be written
	timer *time.Timer
}

// serve lets the handler answer.
func (x *exchange) serve(h http.Handler, r *http.Request) {
	defer func() {
		var err error
		if p := recover(); p != nil {
			err = fmt.Errorf("the request was broken off: %v", p)
		}
		x.end(err)
	}()
	h.ServeHTTP(x, r)
}

func (x *exchange) end(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.timer != nil {
		x.timer.Stop()
	}
	if x.code == 0 && err == nil {
		x.err = context.Cause(x.ctx) // who has given up gets no empty answer
		x.headLocked(http.StatusOK)
	}
	x.ended = true
	if x.err == nil {
		x.err = err
	}
	x.beginLocked()
	signal(x.readable)
}

// failed is why there is no answer, if there is none.
func (x *exchange) failed() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended && x.err != nil {
		return x.err
	}
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // told already
	}
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(code int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.headLocked(code)
}

func (x *exchange) headLocked(code int) {
	if x.code == 0 && code >= http.StatusOK {
		x.code, x.sent = code, x.header.Clone()
	}
}

// beginLocked hands out the answer as far as it is there.
func (x *exchange) beginLocked() {
	if !x.begin {
		x.begin = true
		close(x.begun)
	}
}

// Write implements http.ResponseWriter. It waits while bound bytes have not
// been read.
func (x *exchange) Write(p []byte) (int, error) {
	written := 0
	for {
		n, err := x.put(p[written:])
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
		select {
		case <-x.writable:
		case <-x.ctx.Done():
			return written, context.Cause(x.ctx)
		}
	}
}

// put takes as much as there is room for.
func (x *exchange) put(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.headLocked(http.StatusOK)
	if x.late != nil {
		return 0, x.late
	}
	if err := context.Cause(x.ctx); err != nil {
		return 0, err
	}
	n := min(len(p), bound-(len(x.buf)-x.read))
	if x.read > 0 && len(x.buf)+n > cap(x.buf) {
		x.buf, x.read = append(x.buf[:0], x.buf[x.read:]...), 0
	}
	x.buf = append(x.buf, p[:n]...)
	if n < len(p) {
		x.beginLocked() // there is more than fits: somebody has to read
	}
	if x.begin {
		signal(x.readable)
	}
	return n, nil
}

// Flush implements http.Flusher.
func (x *exchange) Flush() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.headLocked(http.StatusOK)
	x.beginLocked()
	signal(x.readable)
}

// SetWriteDeadline is for http.ResponseController: writes fail after t.
func (x *exchange) SetWriteDeadline(t time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.timer != nil {
		x.timer.Stop()
	}
	x.late = nil
	if !t.IsZero() {
		x.timer = time.AfterFunc(time.Until(t), x.expire)
	}
	return nil
}

func (x *exchange) expire() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.late = os.ErrDeadlineExceeded
	signal(x.writable)
}

// Read implements io.Reader for the caller.
func (x *exchange) Read(p []byte) (int, error) {
	for {
		n, err := x.take(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		select {
		case <-x.readable:
		case <-x.ctx.Done():
			return 0, context.Cause(x.ctx)
		}
	}
}

func (x *exchange) take(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.read < len(x.buf) {
		n := copy(p, x.buf[x.read:])
		if x.read += n; x.read == len(x.buf) {
			x.restLocked()
		}
		signal(x.writable)
		return n, nil
	}
	switch {
	case x.err != nil:
		return 0, x.err
	case x.ended:
		return 0, io.EOF
	}
	return 0, nil
}

// restLocked makes room once everything has been read.
func (x *exchange) restLocked() {
	x.buf, x.read = x.buf[:0], 0
	if cap(x.buf) > keep {
		x.buf = nil
	}
}

// Close implements io.Closer for the caller: it ends the request.
func (x *exchange) Close() error {
	x.cancel(context.Canceled)
	return nil
}
