package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
)

// stream is a request and its answer. The connection's lock guards what changes.
type stream struct {
	conn   *conn
	id     uint32
	req    *http.Request
	cancel context.CancelFunc
	cut    bool // its headers are too large, and not all there

	failed   error // why it goes on no more
	window   int64 // bytes that the client takes
	turn     sync.Cond
	deadline *time.Timer // of writing

	// The body of the request.
	ended    bool  // the client has sent all
	left     int64 // bytes to come; -1 when it did not say
	got      []byte
	read     int   // of got
	over     error // what a reader gets after got
	came     sync.Cond
	room     int64       // bytes that the client may send before some are read
	unsaid   int64       // bytes that were read, and the client does not know it
	expects  bool        // the client waits to be told to go on
	until    *time.Timer // the deadline of reading
	trailers http.Header // what may come after the body, by canonical name
}

// newStream makes a stream of a request. An error is a StreamError: the request
// is not one.
func (c *conn) newStream(f *http2.MetaHeadersFrame) (*stream, error) {
	wrong := http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	method, path, scheme, authority := f.PseudoValue("method"), f.PseudoValue("path"), f.PseudoValue("scheme"), f.PseudoValue("authority")
	header, ok := fields(f)
	if !ok {
		return nil, wrong
	}
	if authority == "" {
		authority = header.Get("Host")
	}
	delete(header, "Host")
	r := &http.Request{
		Method: method, Header: header, Host: authority, RequestURI: path, RemoteAddr: c.remote, TLS: &c.state,
		Proto: "HTTP/2.0", ProtoMajor: 2, ProtoMinor: 0,
	}
	if method == http.MethodConnect {
		if path != "" || scheme != "" || authority == "" {
			return nil, wrong
		}
		r.URL, r.RequestURI = &url.URL{Host: authority}, authority
	} else {
		if method == "" || path == "" || scheme != "https" && scheme != "http" {
			return nil, wrong
		}
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return nil, wrong
		}
		r.URL = u
	}
	st := &stream{conn: c, id: f.StreamID, window: c.initial, left: -1, room: streamRoom, ended: f.StreamEnded(), cut: f.Truncated}
	st.turn.L, st.came.L = &c.mu, &c.mu
	if err := st.expect(r); err != nil {
		return nil, wrong
	}
	ctx, cancel := context.WithCancel(c.ctx)
	st.req, st.cancel = r.WithContext(ctx), cancel
	return st, nil
}

// fields are the headers of a request; false when one may not be there.
func fields(f *http2.MetaHeadersFrame) (http.Header, bool) {
	regular := f.RegularFields()
	header := make(http.Header, len(regular))
	values := make([]string, len(regular))
	for i, field := range regular {
		if !wellFormed(field.Name, field.Value) {
			return nil, false
		}
		name := canonical(field.Name)
		have, has := header[name]
		switch {
		case !has:
			// Most have one value: they share an array.
			values[i] = field.Value
			header[name] = values[i : i+1 : i+1]
		case name == "Cookie":
			have[0] += "; " + field.Value
		default:
			header[name] = append(have, field.Value)
		}
	}
	return header, true
}

// expect says what is to come of the body.
func (st *stream) expect(r *http.Request) error {
	length := int64(-1)
	if v := r.Header["Content-Length"]; len(v) > 0 {
		n, err := strconv.ParseUint(v[0], 10, 63)
		if err != nil || len(v) > 1 {
			return errors.New("not a length")
		}
		length = int64(n) //nolint:gosec // of 63 bits
	}
	if st.ended {
		if length > 0 {
			return errors.New("there is no body")
		}
		r.Body, st.over, st.left = http.NoBody, io.EOF, 0
		return nil
	}
	st.left, r.ContentLength = length, length
	r.Body = (*body)(st)
	if httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue") {
		st.expects = true
	}
	for _, names := range r.Header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if httpguts.ValidTrailerHeader(name) {
				if st.trailers == nil {
					st.trailers = http.Header{}
				}
				st.trailers[name] = nil
			}
		}
	}
	delete(r.Header, "Trailer")
	r.Trailer = st.trailers
	return nil
}

// takeData keeps a part of the body for its reader. The caller holds the lock.
func (st *stream) takeData(f *http2.DataFrame, size int64) error {
	data := f.Data()
	n := int64(len(data))
	if size > st.room {
		st.conn.giveBack(size)
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeFlowControl}
	}
	st.room -= size
	st.consumed(size - n) // padding
	if st.left >= 0 {
		if st.left -= n; st.left < 0 || f.StreamEnded() && st.left > 0 {
			st.conn.giveBack(n)
			return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
		}
	}
	if st.over != nil {
		st.consumed(n) // nobody reads it any more
	} else {
		if st.got == nil {
			st.got = make([]byte, 0, max(n, min(n+st.left, streamRoom)))
		}
		if st.read == len(st.got) {
			st.got, st.read = st.got[:0], 0
		}
		st.got = append(st.got, data...)
	}
	if f.StreamEnded() {
		st.end()
	}
	st.came.Signal()
	return nil
}

// end says that the client has sent all. The caller holds the lock.
func (st *stream) end() {
	st.ended = true
	if st.over == nil {
		st.over = io.EOF
	}
	st.came.Signal()
}

// takeTrailers ends the body with what comes after it. The caller holds the
// lock.
func (st *stream) takeTrailers(f *http2.MetaHeadersFrame) error {
	wrong := http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	if st.ended {
		wrong.Code = http2.ErrCodeStreamClosed
		return wrong
	}
	if !f.StreamEnded() || len(f.PseudoFields()) > 0 || st.left > 0 {
		return wrong
	}
	for _, field := range f.RegularFields() {
		name := canonical(field.Name)
		if !httpguts.ValidTrailerHeader(name) {
			return wrong
		}
		if _, announced := st.trailers[name]; announced {
			st.trailers[name] = append(st.trailers[name], field.Value)
		}
	}
	st.end()
	return nil
}

// consumed lets the client send more, once it is worth a frame. The caller
// holds the lock.
func (st *stream) consumed(n int64) {
	if n == 0 {
		return
	}
	st.conn.giveBack(n)
	if st.ended || st.failed != nil {
		return
	}
	if st.unsaid += n; st.unsaid >= streamRoom/2 {
		st.conn.windowUpdate(st.id, st.unsaid)
		st.conn.wakeWriter()
		st.room += st.unsaid
		st.unsaid = 0
	}
}

// fail ends the stream for its handler. The caller holds the lock.
func (st *stream) fail(why error) {
	if st.failed != nil {
		return
	}
	st.failed = why
	if st.over == nil {
		st.over = why
	}
	st.conn.stay(st)
	st.cancel()
	st.turn.Signal()
	st.came.Signal()
}

// body is what a handler reads of a request.
type body stream

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	st := (*stream)(b)
	c := st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.expects && st.over == nil {
		st.expects = false
		if len(st.got) == 0 && st.failed == nil {
			c.status(100)
			c.headers(st.id, false)
			c.wakeWriter()
		}
	}
	for st.read == len(st.got) && st.over == nil {
		st.came.Wait()
	}
	if errors.Is(st.over, errClosed) {
		return 0, http.ErrBodyReadAfterClose
	}
	n := copy(p, st.got[st.read:])
	st.read += n
	st.consumed(int64(n))
	if st.read < len(st.got) || n > 0 && st.over == nil {
		return n, nil
	}
	return n, st.over
}

var errClosed = errors.New("the body is closed")

// Close implements io.Closer.
func (b *body) Close() error {
	st := (*stream)(b)
	c := st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	st.over = errClosed
	st.consumed(int64(len(st.got) - st.read))
	st.read = len(st.got)
	st.came.Signal()
	return nil
}

// handle has the handler answer the request.
func (st *stream) handle() {
	c := st.conn
	w := newAnswer(st)
	defer c.finished()
	defer st.cancel()
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.streams[st.id] == st {
			c.reset(st.id, http2.ErrCodeInternal)
			c.drop(st)
		}
		st.fail(errGone)
		if p != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
			c.server.Logger.Error("a handler panicked", "request", st.req.Method+" "+st.req.URL.Path, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	if st.cut {
		w.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
	} else {
		c.handler.ServeHTTP(w, st.req)
	}
	w.finish()
}

// done ends a stream whose answer is queued. The caller holds the lock.
func (st *stream) done() {
	c := st.conn
	for _, t := range []*time.Timer{st.deadline, st.until} {
		if t != nil {
			t.Stop()
		}
	}
	if c.streams[st.id] == st && !st.ended {
		c.reset(st.id, http2.ErrCodeNo) // what it still sends is for nobody
	}
	c.drop(st)
	if st.over == nil {
		st.over = errClosed
	}
	c.giveBack(int64(len(st.got) - st.read))
	st.read = len(st.got)
}

// setDeadline has something happen at a time, or not when there is none.
func (st *stream) setDeadline(t **time.Timer, at time.Time, happen func()) error {
	c := st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if *t != nil {
		(*t).Stop()
		*t = nil
	}
	if !at.IsZero() {
		*t = time.AfterFunc(time.Until(at), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			happen()
		})
	}
	return nil
}

// tooSlow ends a stream whose client does not take what it is sent.
func (st *stream) tooSlow() {
	c := st.conn
	if c.streams[st.id] == st {
		c.reset(st.id, http2.ErrCodeInternal)
		st.fail(os.ErrDeadlineExceeded)
		c.drop(st)
	}
}

// tooLate ends the reading of a body.
func (st *stream) tooLate() {
	if st.over == nil {
		st.over = os.ErrDeadlineExceeded
		st.came.Signal()
	}
}
