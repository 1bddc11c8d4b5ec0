package h2_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"setpoint.dev/setpoint/server/h2"
)

// wire is a client that says what it likes.
type wire struct {
	*http2.Framer
	conn   *tls.Conn
	block  bytes.Buffer
	fields *hpack.Encoder
}

// dial begins a connection as it should be begun.
func dial(t *testing.T, url string) *wire {
	t.Helper()
	c := connect(t, url)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	w := &wire{Framer: http2.NewFramer(c, c), conn: c}
	w.fields = hpack.NewEncoder(&w.block)
	if err := w.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return w
}

func connect(t *testing.T, url string) *tls.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec,noctx // on loopback
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	return c
}

// ask sends the headers of a request, given as name, value, name, value.
func (w *wire) ask(id uint32, end bool, fields ...string) error {
	w.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		if err := w.fields.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return err
		}
	}
	return w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.block.Bytes(), EndStream: end, EndHeaders: true})
}

var plain = []string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", "a"}

// fate is what becomes of the connection or the stream: the code of the first
// GOAWAY or RST_STREAM, or "answer" when there is one.
func (w *wire) fate() string {
	for {
		f, err := w.ReadFrame()
		if err != nil {
			return "closed"
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			return "connection: " + f.ErrCode.String()
		case *http2.RSTStreamFrame:
			return "stream: " + f.ErrCode.String()
		case *http2.HeadersFrame:
			return "answer"
		}
	}
}

// TestWrongFrames is what clients are told who do not keep to the rules.
func TestWrongFrames(t *testing.T) {
	url, _, _ := start(t, h2.Config{MaxStreams: 10, MaxHeaderBytes: 8 << 10}, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/wait" {
			<-r.Context().Done()
		}
	})
	with := func(more ...string) []string { return append(append([]string(nil), plain...), more...) }
	waits := []string{":method", "POST", ":scheme", "https", ":path", "/wait", ":authority", "a"}
	cases := []struct {
		name string
		do   func(w *wire) error
		want string
	}{
		{"a request", func(w *wire) error { return w.ask(1, true, plain...) }, "answer"},
		{"an even stream", func(w *wire) error { return w.ask(2, true, plain...) }, "connection: PROTOCOL_ERROR"},
		{"a stream goes back", func(w *wire) error { return errors.Join(w.ask(5, true, waits...), w.ask(3, true, plain...)) }, "connection: STREAM_CLOSED"},
		{"data before a request", func(w *wire) error { return w.WriteData(1, true, nil) }, "connection: PROTOCOL_ERROR"},
		{"data after the end", func(w *wire) error { return errors.Join(w.ask(1, true, waits...), w.WriteData(1, true, []byte("x"))) }, "stream: STREAM_CLOSED"},
		{"headers after the end", func(w *wire) error { return errors.Join(w.ask(1, true, waits...), w.ask(1, true, "a", "b")) }, "stream: STREAM_CLOSED"},
		{"trailers that do not end", func(w *wire) error { return errors.Join(w.ask(1, false, waits...), w.ask(1, false, "a", "b")) }, "stream: PROTOCOL_ERROR"},
		{"reset of nothing", func(w *wire) error { return w.WriteRSTStream(1, http2.ErrCodeCancel) }, "connection: PROTOCOL_ERROR"},
		{"window of nothing", func(w *wire) error { return w.WriteWindowUpdate(1, 1) }, "connection: PROTOCOL_ERROR"},
		{"window too large", func(w *wire) error { return w.WriteWindowUpdate(0, 1<<31-1) }, "connection: FLOW_CONTROL_ERROR"},
		{"stream window too large", func(w *wire) error {
			return errors.Join(w.ask(1, true, waits...), w.WriteWindowUpdate(1, 1<<31-1))
		}, "stream: FLOW_CONTROL_ERROR"},
		{"initial window too large", func(w *wire) error {
			return w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31})
		}, "connection: FLOW_CONTROL_ERROR"},
		{"a frame too large", func(w *wire) error { return w.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 20<<10)) }, "connection: FRAME_SIZE_ERROR"},
		{"a push", func(w *wire) error {
			return w.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		}, "connection: PROTOCOL_ERROR"},
		{"depends on itself", func(w *wire) error { return w.WritePriority(1, http2.PriorityParam{StreamDep: 1}) }, "stream: PROTOCOL_ERROR"},
		{"no path", func(w *wire) error { return w.ask(1, true, ":method", "GET", ":scheme", "https", ":authority", "a") }, "stream: PROTOCOL_ERROR"},
		{"no method", func(w *wire) error { return w.ask(1, true, ":path", "/", ":scheme", "https", ":authority", "a") }, "stream: PROTOCOL_ERROR"},
		{"an unknown pseudo header", func(w *wire) error { return w.ask(1, true, with(":x", "y")...) }, "stream: PROTOCOL_ERROR"},
		{"capital letters", func(w *wire) error { return w.ask(1, true, with("X-A", "y")...) }, "stream: PROTOCOL_ERROR"},
		{"a header of HTTP/1", func(w *wire) error { return w.ask(1, true, with("connection", "close")...) }, "stream: PROTOCOL_ERROR"},
		{"te", func(w *wire) error { return w.ask(1, true, with("te", "gzip")...) }, "stream: PROTOCOL_ERROR"},
		{"te trailers", func(w *wire) error { return w.ask(1, true, with("te", "trailers")...) }, "answer"},
		{"a length without a body", func(w *wire) error { return w.ask(1, true, with("content-length", "3")...) }, "stream: PROTOCOL_ERROR"},
		{"more than the length", func(w *wire) error {
			return errors.Join(w.ask(1, false, append([]string{"content-length", "1"}, waits...)[2:]...), w.WriteRSTStream(1, http2.ErrCodeCancel),
				w.ask(3, false, append(append([]string(nil), waits...), "content-length", "1")...), w.WriteData(3, true, []byte("xy")))
		}, "stream: PROTOCOL_ERROR"},
		{"less than the length", func(w *wire) error {
			return errors.Join(w.ask(1, false, append(append([]string(nil), waits...), "content-length", "5")...), w.WriteData(1, true, []byte("xy")))
		}, "stream: PROTOCOL_ERROR"},
		{"a header too large", func(w *wire) error { return w.ask(1, true, with("a", strings.Repeat("x", 9<<10))...) }, "connection: COMPRESSION_ERROR"},
		{"broken compression", func(w *wire) error {
			return w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true, EndStream: true})
		}, "connection: COMPRESSION_ERROR"},
		{"too many streams", func(w *wire) error {
			var err error
			for i := range uint32(11) {
				err = errors.Join(err, w.ask(2*i+1, true, waits...))
			}
			return err
		}, "stream: REFUSED_STREAM"},
		{"an unknown frame", func(w *wire) error {
			return errors.Join(w.WriteRawFrame(http2.FrameType(0xbb), 0, 0, []byte("x")), w.ask(1, true, plain...))
		}, "answer"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := dial(t, url)
			if err := c.do(w); err != nil {
				t.Fatal(err)
			}
			if got := w.fate(); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	t.Run("headers too large", func(t *testing.T) {
		_, client, _ := start(t, h2.Config{}, nil)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			req.Header.Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 1<<10))
		}
		client.Transport.(*http.Transport).MaxResponseHeaderBytes = 1 << 20
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		// A client that has seen the settings does not even try.
		if err == nil && resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("got %s", resp.Status)
		}
	})
	t.Run("not HTTP/2", func(t *testing.T) {
		c := connect(t, url)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		w := &wire{Framer: http2.NewFramer(c, c), conn: c}
		if got := w.fate(); got != "connection: PROTOCOL_ERROR" {
			t.Errorf("got %s", got)
		}
	})
}

// TestRapidReset: a client that begins and resets requests as fast as it can has
// no more handlers run than it may have streams, and is cut off in the end.
func TestRapidReset(t *testing.T) {
	const most = 20
	var running, seen atomic.Int32
	goOn := make(chan struct{})
	url, _, _ := start(t, h2.Config{MaxStreams: most}, func(http.ResponseWriter, *http.Request) {
		if n := running.Add(1); n > seen.Load() {
			seen.Store(n)
		}
		<-goOn // it does not look at its context
		running.Add(-1)
	})
	defer close(goOn)
	w := dial(t, url)
	var cut error
	for i := uint32(1); i < 20_000 && cut == nil; i += 2 {
		cut = errors.Join(w.ask(i, true, plain...), w.WriteRSTStream(i, http2.ErrCodeCancel))
	}
	if got := w.fate(); got != "connection: ENHANCE_YOUR_CALM" && got != "closed" {
		t.Errorf("got %s", got)
	}
	if n := seen.Load(); n > most {
		t.Errorf("%d handlers at once", n)
	}
}

// TestPings: a client that is silent is asked whether it is there, and one that
// does not answer is given up.
func TestPings(t *testing.T) {
	url, _, _ := start(t, h2.Config{PingAfter: 50 * time.Millisecond, PingWithin: 200 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	})
	w := dial(t, url)
	if err := w.ask(1, true, plain...); err != nil {
		t.Fatal(err)
	}
	asked := 0
	for {
		f, err := w.ReadFrame()
		if err != nil {
			break
		}
		p, is := f.(*http2.PingFrame)
		if !is || p.IsAck() {
			continue
		}
		if asked++; asked < 4 {
			if err := w.WritePing(true, p.Data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if asked != 4 {
		t.Errorf("asked %d times, answered 3", asked)
	}
}

// TestQuestionsWithoutReading: a client that asks and asks and reads nothing is
// cut off.
func TestQuestionsWithoutReading(t *testing.T) {
	url, _, _ := start(t, h2.Config{WriteTimeout: 200 * time.Millisecond}, func(http.ResponseWriter, *http.Request) {})
	w := dial(t, url)
	var err error
	for i := 0; i < 3_000_000 && err == nil; i++ {
		err = w.WritePing(false, [8]byte{1})
	}
	if err == nil {
		t.Error("it goes on")
	}
}

// TestRequestsAfterGoodbye: what a client asks, gives up and sends before it
// hears that the server leaves is ignored, and does not harm what goes on.
func TestRequestsAfterGoodbye(t *testing.T) {
	here, goOn := make(chan struct{}), make(chan struct{})
	url, _, s := start(t, h2.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		close(here)
		<-goOn
		_, _ = io.WriteString(w, "done")
	})
	w := dial(t, url)
	if err := w.ask(1, true, plain...); err != nil {
		t.Fatal(err)
	}
	<-here
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for {
		f, err := w.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if g, is := f.(*http2.GoAwayFrame); is {
			if g.LastStreamID != 1 || g.ErrCode != http2.ErrCodeNo {
				t.Errorf("goodbye after %d with %s", g.LastStreamID, g.ErrCode)
			}
			break
		}
	}
	err := errors.Join(w.ask(3, false, plain...), w.WriteData(3, true, []byte("more")), w.WriteWindowUpdate(3, 10),
		w.ask(5, true, plain...), w.WriteRSTStream(5, http2.ErrCodeCancel), w.WritePing(false, [8]byte{1}))
	if err != nil {
		t.Fatal(err)
	}
	for body := ""; body != "done"; {
		f, err := w.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.PingFrame: // all before it has been taken
			close(goOn)
		case *http2.DataFrame:
			body += string(f.Data())
		case *http2.GoAwayFrame:
			t.Fatalf("a second goodbye: %s", f.ErrCode)
		}
	}
}

// TestConnectionsThatBeginAtTheEnd: one that was accepted before the server shuts
// down, and shakes hands after, is told to go and ends.
func TestConnectionsThatBeginAtTheEnd(t *testing.T) {
	for range 50 {
		url, client, s := start(t, h2.Config{}, func(http.ResponseWriter, *http.Request) {})
		late, err := net.Dial("tcp", strings.TrimPrefix(url, "https://")) //nolint:noctx // on loopback
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Get(url) //nolint:noctx // on loopback
		if err != nil {             // connections are accepted in order: late is by now
			t.Fatal(err)
		}
		_ = res.Body.Close() // it has none
		var all sync.WaitGroup
		all.Go(func() {
			if err := s.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
		for err == nil { // until the listener is closed
			var c net.Conn
			if c, err = net.Dial("tcp", strings.TrimPrefix(url, "https://")); err == nil { //nolint:noctx // on loopback
				_ = c.Close() // it is not used
			}
		}
		_ = late.SetDeadline(time.Now().Add(2 * time.Minute))
		c := tls.Client(late, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // on loopback
		if _, err := io.WriteString(c, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		frames := http2.NewFramer(io.Discard, c)
		first, err := frames.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if _, is := first.(*http2.SettingsFrame); !is {
			t.Errorf("the first frame is %v", first.Header())
		}
		for err == nil {
			_, err = frames.ReadFrame()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("the connection ends with %v", err)
		}
		all.Wait()
	}
}
