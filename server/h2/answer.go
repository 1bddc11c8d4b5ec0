package h2

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// answer is an http.ResponseWriter.
type answer struct {
	st     *stream
	header http.Header

	code     int // 0 until the handler has said one
	fields   []hpack.HeaderField
	began    bool  // the headers are queued
	length   int64 // of the body, as the handler said; -1 when it did not
	wrote    int64
	small    []byte   // what was written and is not queued yet
	trailers []string // that the handler announced
	typed    bool     // the handler has said what the body is, or that it is nothing
	dated    bool
	patience time.Duration // how long a write waits for the client; 0 is forever
	pace     Pace          // how fast the connection writes it; nil for as it comes
}

// smallWrites is how much is gathered of an answer that comes in pieces.
const smallWrites = 4 << 10

func newAnswer(st *stream) *answer { return &answer{st: st, header: http.Header{}, length: -1} }

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) {
	if a.code != 0 {
		return
	}
	if code < 100 || code > 999 {
		panic("not a status: " + strconv.Itoa(code))
	}
	a.keep()
	if code >= 200 {
		a.code = code
		return
	}
	// It tells of an answer that is to come.
	c := a.st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.st.failed == nil {
		a.st.expects = a.st.expects && code != http.StatusContinue
		c.status(code)
		a.encode()
		c.headers(a.st.id, false)
		c.wakeWriter()
	}
	a.fields, a.length, a.trailers, a.typed, a.dated = a.fields[:0], -1, nil, false, false
}

// keep takes the headers as they are now.
func (a *answer) keep() {
	a.fields = slices.Grow(a.fields, len(a.header)+2)
	for name, values := range a.header {
		switch name {
		case "Connection", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "Keep-Alive":
			continue // only HTTP/1 has them
		case "Trailer":
			a.announce(values)
		case "Content-Length":
			n, err := strconv.ParseInt(strings.Join(values, ","), 10, 64)
			if err != nil || n < 0 {
				continue
			}
			a.length = n
		case "Content-Type", "Content-Encoding":
			a.typed = true
		case "Date":
			a.dated = true
		}
		if strings.HasPrefix(name, http.TrailerPrefix) || !httpguts.ValidHeaderFieldName(name) {
			continue
		}
		for _, v := range values {
			if httpguts.ValidHeaderFieldValue(v) {
				a.fields = append(a.fields, hpack.HeaderField{Name: lower(name), Value: v})
			}
		}
	}
}

// announce remembers trailers that are to come.
func (a *answer) announce(values []string) {
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); httpguts.ValidTrailerHeader(name) {
				a.trailers = append(a.trailers, name)
			}
		}
	}
}

// encode encodes the headers. The caller holds the lock.
func (a *answer) encode() {
	for _, f := range a.fields {
		_ = a.st.conn.encoder.WriteField(f) // into memory
	}
}

// status encodes a status. The caller holds the lock.
func (c *conn) status(code int) {
	_ = c.encoder.WriteField(hpack.HeaderField{Name: ":status", Value: strconv.Itoa(code)}) // into memory
}

// bodyless says that an answer with this status has none.
func bodyless(code int) bool {
	return code == http.StatusNoContent || code == http.StatusNotModified
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if bodyless(a.code) {
		return 0, http.ErrBodyNotAllowed
	}
	if a.wrote += int64(len(p)); a.length >= 0 && a.wrote > a.length {
		return 0, http.ErrContentLength
	}
	if a.st.req.Method == http.MethodHead {
		return len(p), nil
	}
	if len(a.small)+len(p) <= smallWrites {
		if a.small == nil {
			a.small = make([]byte, 0, min(smallWrites, max(512, len(p))))
		}
		a.small = append(a.small, p...)
		return len(p), nil
	}
	if len(a.small) > 0 {
		if err := a.send(a.small, false); err != nil {
			return 0, err
		}
		a.small = a.small[:0]
	}
	if err := a.send(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteString implements io.StringWriter.
func (a *answer) WriteString(s string) (int, error) { return a.Write([]byte(s)) }

// Flush implements http.Flusher.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is Flush for http.ResponseController.
func (a *answer) FlushError() error {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	err := a.send(a.small, false)
	a.small = a.small[:0]
	return err
}

// WriteFlush is Write and Flush at once, without a copy of p in between.
func (a *answer) WriteFlush(p []byte) (int, error) {
	if !a.direct() {
		n, err := a.Write(p)
		if err != nil {
			return n, err
		}
		return n, a.FlushError()
	}
	a.wrote += int64(len(p))
	if err := a.send(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// TryWriteFlush is WriteFlush where that need not wait: otherwise it does nothing,
// and returns false.
func (a *answer) TryWriteFlush(p []byte) bool {
	if !a.direct() {
		return false
	}
	st, c := a.st, a.st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !a.began || st.failed != nil || len(c.line) > 0 || int64(len(p)) > min(st.window, c.window) || c.queued+len(p) > mostPassing {
		return false
	}
	a.wrote += int64(len(p))
	for rest := p; len(rest) > 0; {
		n := min(len(rest), int(c.maxFrame))
		a.data(rest[:n], 0)
		rest = rest[n:]
	}
	return true
}

// direct says that what is written next may go to the queue as it is.
func (a *answer) direct() bool {
	return len(a.small) == 0 && a.code != 0 && a.length < 0 && !bodyless(a.code) && a.st.req.Method != http.MethodHead
}

// SetPatience bounds how long each write from now on waits for its client; 0 is
// forever. A write that need not wait costs nothing more for it.
func (a *answer) SetPatience(d time.Duration) { a.patience = d }

// Pace is how a connection goes about an answer of which there is much.
type Pace interface {
	// Work is called before each chunk that may have some of it is encrypted and
	// written, and may wait.
	Work()
	// Rest is called after the last of them, until there is more.
	Rest()
}

// SetPace says at what pace the connection writes the answer. The connection alone
// uses it.
func (a *answer) SetPace(p Pace) { a.pace = p }

// SetWriteDeadline is for http.ResponseController.
func (a *answer) SetWriteDeadline(at time.Time) error {
	return a.st.setDeadline(&a.st.deadline, at, a.st.tooSlow)
}

// SetReadDeadline is for http.ResponseController.
func (a *answer) SetReadDeadline(at time.Time) error {
	return a.st.setDeadline(&a.st.until, at, a.st.tooLate)
}

// EnableFullDuplex is for http.ResponseController. Streams are.
func (a *answer) EnableFullDuplex() error { return nil }

// finish ends the answer when its handler has.
func (a *answer) finish() {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if !a.began && a.length < 0 && !bodyless(a.code) && (a.st.req.Method != http.MethodHead || a.wrote > 0) {
		a.fields = append(a.fields, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(a.wrote, 10)})
	}
	err := a.send(a.small, true)
	c := a.st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && a.length >= 0 && a.wrote < a.length && a.st.req.Method != http.MethodHead && c.streams[a.st.id] == a.st {
		c.reset(a.st.id, http2.ErrCodeInternal) // the client is to know that there should be more
	}
	a.st.done()
}

// begin queues the headers, unless they are. The caller holds the lock.
func (a *answer) begin(end bool, body []byte) {
	if a.began {
		return
	}
	a.began = true
	a.st.expects = false
	c := a.st.conn
	c.status(a.code)
	a.encode()
	if !a.typed && len(body) > 0 {
		_ = c.encoder.WriteField(hpack.HeaderField{Name: "content-type", Value: http.DetectContentType(body)}) // into memory
	}
	if !a.dated {
		_ = c.encoder.WriteField(hpack.HeaderField{Name: "date", Value: date()})
	}
	c.headers(a.st.id, end)
	c.wakeWriter()
}

// send queues a part of the body after the headers, and waits while the client
// does not take it, or others are before it. At the end come trailers, if there are any.
func (a *answer) send(p []byte, end bool) error {
	st, c := a.st, a.st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.failed != nil {
		return st.failed
	}
	var last []hpack.HeaderField
	if end {
		last = a.trailing()
	}
	late := a.began
	a.begin(end && len(p) == 0 && len(last) == 0, p)
	waits := false
	for rest := p; len(rest) > 0; {
		n := min(int64(len(rest)), int64(c.maxFrame), st.window, c.free())
		if n <= 0 {
			if !waits && a.patience > 0 {
				defer st.within(a.patience)()
			}
			waits = true
			if st.wait(); st.failed != nil {
				return st.failed
			}
			continue
		}
		flags := http2.Flags(0)
		if end && len(last) == 0 && n == int64(len(rest)) {
			flags = http2.FlagDataEndStream
		}
		a.data(rest[:n], flags)
		rest = rest[n:]
	}
	c.next() // whoever comes after us
	switch {
	case len(last) > 0:
		for _, f := range last {
			_ = c.encoder.WriteField(f) // into memory
		}
		c.headers(st.id, true)
		c.wakeWriter()
	case end && len(p) == 0 && late:
		c.frame(http2.FrameData, http2.FlagDataEndStream, st.id, nil)
		c.wakeWriter()
	}
	return nil
}

// data queues a part of the body, for which there is room. The caller holds the
// lock.
func (a *answer) data(p []byte, flags http2.Flags) {
	st, c := a.st, a.st.conn
	if a.pace != nil {
		c.pace = a.pace
	}
	c.frame(http2.FrameData, flags, st.id, p)
	c.wakeWriter()
	st.window -= int64(len(p))
	c.window -= int64(len(p))
}

// wait waits until there may be room, or none ever. The caller holds the lock.
func (st *stream) wait() {
	c := st.conn
	switch {
	case st.window <= 0:
		c.next() // somebody else can go on
	case !slices.Contains(c.line, st):
		c.line = append(c.line, st)
	}
	st.turn.Wait()
	if st.failed != nil {
		c.next()
	}
}

// within ends the stream unless what it returns is called in time. Both are
// called with the lock.
func (st *stream) within(d time.Duration) func() {
	over := false
	late := time.AfterFunc(d, func() {
		st.conn.mu.Lock()
		defer st.conn.mu.Unlock()
		if !over {
			st.tooSlow()
		}
	})
	return func() {
		over = true
		late.Stop()
	}
}

// trailing are the headers that come after the body: those that were
// announced, and those that say so by their name.
func (a *answer) trailing() []hpack.HeaderField {
	var all []hpack.HeaderField
	add := func(name string, values []string) {
		for _, v := range values {
			if httpguts.ValidHeaderFieldValue(v) {
				all = append(all, hpack.HeaderField{Name: lower(name), Value: v})
			}
		}
	}
	for _, name := range a.trailers {
		add(name, a.header[name])
	}
	for name, values := range a.header {
		if name, is := strings.CutPrefix(name, http.TrailerPrefix); is && httpguts.ValidTrailerHeader(name) {
			add(name, values)
		}
	}
	return all
}

// second is a time as headers have it.
type second struct {
	at   int64
	text string
}

var lastSecond atomic.Pointer[second]

// date is the time as headers have it.
func date() string {
	now := time.Now()
	if s := lastSecond.Load(); s != nil && s.at == now.Unix() {
		return s.text
	}
	s := &second{now.Unix(), now.UTC().Format(http.TimeFormat)}
	lastSecond.Store(s)
	return s.text
}

// names are headers that requests and answers of this API have.
var names = []string{
	"Accept", "Accept-Encoding", "Audit-Id", "Authorization", "Cache-Control", "Content-Encoding", "Content-Length", "Content-Type", "Date", "Etag",
	"Expect", "Expires", "Impersonate-Group", "Impersonate-User", "Kubectl-Command", "Kubectl-Session", "Last-Modified", "Retry-After", "Traceparent",
	"User-Agent", "Vary", "Warning", "X-Content-Type-Options", "X-From-Cache", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid", "X-Varied-Accept",
}

// lowered and raised are the two ways to write them.
var lowered, raised = func() (map[string]string, map[string]string) {
	lowered, raised := map[string]string{}, map[string]string{}
	for _, name := range names {
		low := strings.ToLower(name)
		lowered[name], raised[low] = low, name
	}
	return lowered, raised
}()

// lower is the name of a header on the wire.
func lower(name string) string {
	if low, known := lowered[name]; known {
		return low
	}
	return strings.ToLower(name)
}

// canonical is the name of a header in Go.
func canonical(name string) string {
	if raised, known := raised[name]; known {
		return raised
	}
	return http.CanonicalHeaderKey(name)
}
