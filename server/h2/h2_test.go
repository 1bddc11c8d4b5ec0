package h2_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"setpoint.dev/setpoint/server/h2"
)

// start serves a handler over TLS and returns its URL, a client of net/http
// that speaks HTTP/2 with it, and the server.
func start(t *testing.T, cfg h2.Config, handler http.HandlerFunc) (string, *http.Client, *http.Server) {
	t.Helper()
	borrowed := httptest.NewTLSServer(nil) // for its certificate
	borrowed.Close()
	s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{
		Certificates: borrowed.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
	}}
	cfg.Logger = slog.New(slog.DiscardHandler)
	h2.New(cfg).Attach(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.ServeTLS(h2.Gather(l), "", "") // it says that it was closed
	}()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true} //nolint:gosec // on loopback
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = s.Close()
		<-done
	})
	return "https://" + l.Addr().String(), &http.Client{Transport: transport, Timeout: time.Minute}, s
}

// got is an answer that was read.
type got struct {
	proto, code int
	header      http.Header
	body        string
}

func get(t *testing.T, c *http.Client, url string) got {
	t.Helper()
	resp, err := c.Get(url) //nolint:noctx // the client has a limit
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is only read
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return got{resp.ProtoMajor, resp.StatusCode, resp.Header, string(body)}
}

// TestAnswers are the ways in which a handler can answer, as a client of
// net/http sees them.
func TestAnswers(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 1<<16)
	cases := []struct {
		name   string
		answer http.HandlerFunc
		code   int
		body   string
		header map[string]string
	}{
		{"nothing", func(http.ResponseWriter, *http.Request) {}, 200, "", map[string]string{"Content-Length": "0"}},
		{
			"small", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, 200, "<html>",
			map[string]string{"Content-Length": "6", "Content-Type": "text/html; charset=utf-8"},
		},
		{"in pieces", func(w http.ResponseWriter, _ *http.Request) {
			for range 5 {
				_, _ = io.WriteString(w, "piece ")
				w.(http.Flusher).Flush()
			}
		}, 200, strings.Repeat("piece ", 5), map[string]string{"Content-Length": ""}},
		{"large", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, large) }, 200, large, nil},
		{"large with a length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(large)))
			_, _ = io.WriteString(w, large)
		}, 200, large, map[string]string{"Content-Length": fmt.Sprint(len(large))}},
		{"no content", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				panic(err)
			}
		}, 204, "", map[string]string{"Content-Length": ""}},
		{"headers change too late", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Early", "yes")
			w.WriteHeader(http.StatusTeapot)
			w.Header().Set("X-Late", "yes")
		}, 418, "", map[string]string{"X-Early": "yes", "X-Late": ""}},
		{"headers of HTTP/1 are left out", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			w.Header().Set("Transfer-Encoding", "chunked")
		}, 200, "", map[string]string{"Connection": "", "Transfer-Encoding": ""}},
		{"many headers", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 300 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("v", 200))
			}
		}, 200, "", map[string]string{"X-0": strings.Repeat("v", 200), "X-299": strings.Repeat("v", 200)}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			url, client, _ := start(t, h2.Config{}, c.answer)
			resp := get(t, client, url)
			if resp.proto != 2 || resp.code != c.code || resp.body != c.body {
				t.Errorf("got HTTP/%d %d and %d bytes, want HTTP/2 %d and %d", resp.proto, resp.code, len(resp.body), c.code, len(c.body))
			}
			for name, want := range c.header {
				if got := resp.header.Get(name); got != want {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
			if resp.header.Get("Date") == "" {
				t.Error("no date")
			}
		})
	}
}

// TestBodies sends bodies up and gets them back, more than all windows hold,
// many at a time.
func TestBodies(t *testing.T) {
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Length", fmt.Sprint(r.ContentLength))
		_, _ = io.Copy(w, r.Body)
	})
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			sent := bytes.Repeat([]byte{byte(i), 1, 2, 3, 4, 5, 6}, 1+i*50_000)
			var body io.Reader = bytes.NewReader(sent)
			if i%2 == 1 {
				body = io.MultiReader(body) // of a length that nobody knows
			}
			resp, err := client.Post(url, "x/y", body) //nolint:noctx // the client has a limit
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close() //nolint:errcheck // it is only read
			got, err := io.ReadAll(resp.Body)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d: %d bytes of %d came back, %v", i, len(got), len(sent), err)
			}
		})
	}
	all.Wait()
}

// TestABodyThatNobodyReads is thrown away, and the connection goes on.
func TestABodyThatNobodyReads(t *testing.T) {
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	conns := map[string]bool{}
	for range 30 {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conns[i.Conn.LocalAddr().String()] = true }})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(make([]byte, 1<<20)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Fatal(resp.Status)
		}
	}
	if len(conns) != 1 {
		t.Errorf("took %d connections", len(conns))
	}
}

func TestTrailers(t *testing.T) {
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Announced")
		_, _ = io.WriteString(w, r.Trailer.Get("X-Asked"))
		w.Header().Set("X-Announced", "1")
		w.Header().Set(http.TrailerPrefix+"X-Not", "2")
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, io.MultiReader(strings.NewReader("body")))
	if err != nil {
		t.Fatal(err)
	}
	req.Trailer = http.Header{"X-Asked": {"asked"}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is only read
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != "asked" {
		t.Errorf("got %q, %v", body, err)
	}
	if resp.Trailer.Get("X-Announced") != "1" || resp.Trailer.Get("X-Not") != "2" {
		t.Errorf("trailers %v", resp.Trailer)
	}
}

// TestGoOn: a client that asks first is told to go on when somebody reads, and
// of answers that are to come.
func TestGoOn(t *testing.T) {
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	client.Transport.(*http.Transport).ExpectContinueTimeout = time.Minute
	var told []int
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { told = append(told, code); return nil },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Expect", "100-continue")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is only read
	if body, err := io.ReadAll(resp.Body); string(body) != "body" || err != nil {
		t.Errorf("got %q, %v", body, err)
	}
	if !slices.Equal(told, []int{http.StatusEarlyHints, http.StatusContinue}) {
		t.Errorf("told %v", told)
	}
}

// TestAClientThatGoes ends the context of its request, and what its handler
// writes.
func TestAClientThatGoes(t *testing.T) {
	ended := make(chan error, 1)
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		_, err := w.Write(make([]byte, 1<<20))
		ended <- err
	})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = resp.Body.Close()
	if err := <-ended; err == nil {
		t.Error("it was written")
	}
}

// TestAHandlerThatPanics ends its stream and nothing else.
func TestAHandlerThatPanics(t *testing.T) {
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/panic":
			panic("oh")
		case "/abort":
			_, _ = io.WriteString(w, "some")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/short":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "some")
		}
	})
	for _, path := range []string{"/panic", "/abort", "/short"} {
		resp, err := client.Get(url + path) //nolint:noctx // the client has a limit
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: nobody noticed", path)
		}
	}
	if resp := get(t, client, url); resp.code != http.StatusOK {
		t.Error(resp.code)
	}
}

// TestASlowReader holds up nobody else, and its own write ends at its deadline.
func TestASlowReader(t *testing.T) {
	ended := make(chan error, 1)
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/large" {
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		var err error
		for err == nil {
			_, err = w.Write(make([]byte, 64<<10))
		}
		ended <- err
	})
	resp, err := client.Get(url + "/large") //nolint:noctx // the client has a limit
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is not read
	for range 50 {
		get(t, client, url)
	}
	if err := <-ended; err == nil {
		t.Error("all was written")
	}
}

// TestReadDeadline ends a read of a body that does not come.
func TestReadDeadline(t *testing.T) {
	ended := make(chan error, 1)
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := io.ReadAll(r.Body)
		ended <- err
	})
	body, feed := io.Pipe()
	go func() {
		resp, err := client.Post(url, "x/y", body) //nolint:noctx // the client has a limit
		if err == nil {
			_ = resp.Body.Close()
		}
	}()
	if err := <-ended; err == nil {
		t.Error("it was read")
	}
	_ = feed.Close()
}

// TestManyStreams has many clients read streams that all are told of the same,
// as watches are; each sees all of it, in order.
func TestManyStreams(t *testing.T) {
	const streams, events = 600, 40
	var mu sync.Mutex
	changed := sync.NewCond(&mu)
	at := 0
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		for seen := 0; seen < events; {
			mu.Lock()
			for at == seen {
				changed.Wait()
			}
			now := at
			mu.Unlock()
			for ; seen < now; seen++ {
				_, _ = fmt.Fprintf(w, "%06d%s\n", seen, strings.Repeat("x", 5000))
			}
			w.(http.Flusher).Flush()
		}
	})
	var all sync.WaitGroup
	var begun atomic.Int32
	for range streams {
		all.Go(func() {
			resp, err := client.Get(url) //nolint:noctx // the client has a limit
			begun.Add(1)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close() //nolint:errcheck // it is only read
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Error(err)
			}
			lines := strings.Split(strings.TrimSpace(string(body)), "\n")
			for i, l := range lines {
				if len(lines) != events || l[:6] != fmt.Sprintf("%06d", i) || len(l) != 5006 {
					t.Errorf("line %d of %d is %.10s", i, len(lines), l)
					return
				}
			}
		})
	}
	for range events {
		mu.Lock()
		at++
		changed.Broadcast()
		mu.Unlock()
		if begun.Load() < streams {
			time.Sleep(time.Millisecond)
		}
	}
	all.Wait()
}

// TestShutdown lets a request under way finish, refuses others, and ends.
func TestShutdown(t *testing.T) {
	here, goOn := make(chan struct{}), make(chan struct{})
	url, client, s := start(t, h2.Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(here)
			<-goOn
			_, _ = io.WriteString(w, "done")
		}
	})
	var all sync.WaitGroup
	all.Go(func() {
		if resp := get(t, client, url+"/slow"); resp.body != "done" {
			t.Errorf("got %q", resp.body)
		}
	})
	<-here
	all.Go(func() {
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for {
		resp, err := client.Get(url) //nolint:noctx // the client has a limit
		if err != nil {
			break // the listener is closed, and the old connection takes no more
		}
		_ = resp.Body.Close()
	}
	close(goOn)
	all.Wait()
}

// TestIdle ends a connection on which nothing happens.
func TestIdle(t *testing.T) {
	url, client, _ := start(t, h2.Config{IdleTimeout: 50 * time.Millisecond}, func(http.ResponseWriter, *http.Request) {})
	conns := map[string]bool{}
	for range 3 {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conns[i.Conn.LocalAddr().String()] = true }})
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		time.Sleep(200 * time.Millisecond)
	}
	if len(conns) != 3 {
		t.Errorf("%d connections for three requests far apart", len(conns))
	}
}

// TestPatience ends a write that waits too long for its client, and no other.
func TestPatience(t *testing.T) {
	ended := make(chan error, 1)
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, r *http.Request) {
		// A client that reads is given far longer than it takes on a busy machine.
		patience := map[string]time.Duration{"/large": 300 * time.Millisecond, "/slow": 3 * time.Second}[r.URL.Path]
		w.(interface{ SetPatience(d time.Duration) }).SetPatience(patience)
		var err error
		for i := 0; err == nil && (r.URL.Path == "/large" || i < 100); i++ {
			_, err = w.Write(make([]byte, 64<<10))
			if r.URL.Path == "/slow" && i == 0 {
				time.Sleep(patience + 100*time.Millisecond) // between writes it has all the time
			}
		}
		ended <- err
	})
	resp, err := client.Get(url + "/large") //nolint:noctx // the client has a limit
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is not read
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the write that waits: %v", err)
	}
	if resp := get(t, client, url+"/slow"); len(resp.body) != 100*64<<10 || <-ended != nil {
		t.Errorf("%d bytes of the writer that takes its time", len(resp.body))
	}
}

// TestTryWriteFlush passes on what can be at once, all or nothing.
func TestTryWriteFlush(t *testing.T) {
	line := []byte(strings.Repeat("x", 40_000) + "\n") // of several frames
	tried := make(chan int, 1)
	goOn := make(chan struct{})
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		a := w.(interface {
			http.ResponseWriter
			TryWriteFlush(p []byte) bool
			WriteFlush(p []byte) (int, error)
		})
		if a.TryWriteFlush(line) {
			t.Error("written before there were headers")
		}
		n, err := a.WriteFlush(line)
		if n != len(line) || err != nil {
			t.Error(n, err)
		}
		taken := 1
		for end := time.Now().Add(time.Minute); a.TryWriteFlush(line) && time.Now().Before(end); {
			taken++
		}
		tried <- taken
		<-goOn
		for range 10 {
			n, err = a.WriteFlush(line) // it waits
			if n != len(line) || err != nil {
				t.Error(n, err)
			}
		}
	})
	resp, err := client.Get(url) //nolint:noctx // the client has a limit
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is only read
	taken := <-tried
	close(goOn)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat(string(line), taken+10); string(body) != want || taken > 1<<30/len(line) {
		t.Errorf("%d bytes, want %d", len(body), len(want))
	}
}

// pacer counts.
type pacer struct{ works, rests atomic.Int64 }

func (p *pacer) Work() { p.works.Add(1) }
func (p *pacer) Rest() { p.rests.Add(1) }

// TestPace has the connection write an answer at its pace, and others without.
func TestPace(t *testing.T) {
	const size = 4 << 20
	var p pacer
	url, client, _ := start(t, h2.Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/much" {
			w.(interface{ SetPace(p h2.Pace) }).SetPace(&p)
		}
		_, _ = w.Write(make([]byte, size))
	})
	if resp := get(t, client, url); len(resp.body) != size || p.works.Load() != 0 {
		t.Errorf("%d bytes, %d times at a pace that nobody has set", len(resp.body), p.works.Load())
	}
	if resp := get(t, client, url+"/much"); len(resp.body) != size {
		t.Errorf("%d bytes", len(resp.body))
	}
	if n := p.works.Load(); n < size>>16 {
		t.Errorf("%d chunks", n)
	}
	if resp := get(t, client, url); len(resp.body) != size { // after which all before has been written
		t.Errorf("%d bytes", len(resp.body))
	}
	if n := p.rests.Load(); n == 0 || n > p.works.Load() {
		t.Errorf("%d rests of %d chunks", n, p.works.Load())
	}
}
