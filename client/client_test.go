package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"setpoint.dev/setpoint/client"
)

func of(h http.HandlerFunc) (*client.Client, *http.Client) {
	c := client.New(client.Config{Handler: h, User: &user.DefaultInfo{Name: "me"}, UserAgent: "test/1", Uninitialized: []string{"pods"}})
	return c, &http.Client{Transport: c.Config().Transport}
}

func get(t *testing.T, ctx context.Context, h *http.Client, path string) (*http.Response, error) { //nolint:revive // t first, as elsewhere
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://setpoint"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return h.Do(req)
}

func body(t *testing.T, ctx context.Context, h *http.Client, path string) string { //nolint:revive // t first, as elsewhere
	t.Helper()
	res, err := get(t, ctx, h, path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWhoAsks(t *testing.T) {
	_, h := of(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s because of %d, by %s, %s", client.Caller(r.Context()).GetName(), client.Cause(r.Context()), r.UserAgent(), r.URL.RawQuery)
	})
	other := client.Because(client.As(t.Context(), &user.DefaultInfo{Name: "other"}), 7)
	for _, c := range []struct {
		name string
		ctx  context.Context
		path string
		want string
	}{
		{"the client's user", t.Context(), "/api/v1/nodes", "me because of 0, by test/1, "},
		{"the context's user", other, "/api/v1/nodes?watch=1", "other because of 7, by test/1, watch=1"},
		{"pods that are not initialized", t.Context(), "/api/v1/pods", "me because of 0, by test/1, includeUninitialized=true"},
		{"nodes that are not initialized", client.Uninitialized(t.Context()), "/api/v1/nodes", "me because of 0, by test/1, includeUninitialized=true"},
		{"pods that are not initialized, watched", t.Context(), "/api/v1/pods?watch=1", "me because of 0, by test/1, watch=1&includeUninitialized=true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := body(t, c.ctx, h, c.path); got != c.want {
				t.Errorf("got %q, not %q", got, c.want)
			}
		})
	}
}

func TestTheHandlerIsNotItsCaller(t *testing.T) {
	var inner *http.Client
	_, inner = of(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/inner" {
			_, _ = io.WriteString(w, client.Caller(r.Context()).GetName())
			return
		}
		res, err := get(t, r.Context(), inner, "/inner")
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = res.Body.Close() }()
		_, _ = io.Copy(w, res.Body)
	})
	ctx := client.As(t.Context(), &user.DefaultInfo{Name: "other"})
	if got := body(t, ctx, inner, "/outer"); got != "me" {
		t.Errorf("the handler asked as %s", got)
	}
}

func TestNotes(t *testing.T) {
	_, h := of(func(_ http.ResponseWriter, r *http.Request) {
		client.Wrote(r.Context(), "pods", 5)
		client.Wrote(r.Context(), "pods", 4)
		client.Wrote(r.Context(), "nodes", 3)
	})
	var notes client.Notes
	body(t, client.Note(t.Context(), &notes), h, "/")
	if got := fmt.Sprint(notes.Take(), notes.Take()); got != "map[nodes:3 pods:5] map[]" {
		t.Errorf("noted %s", got)
	}
	body(t, t.Context(), h, "/") // nobody takes notes
}

// line is a handler that streams lines until its request ends.
func line(ended chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; ; i++ {
			_, _ = fmt.Fprintf(w, "line %d\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				ended <- context.Cause(r.Context())
				return
			case <-time.After(time.Second):
			}
		}
	}
}

func TestAStreamIsSeenAsItIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		_, h := of(line(ended))
		begun := time.Now()
		res, err := get(t, t.Context(), h, "/watch")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			buf := make([]byte, 100)
			n, err := res.Body.Read(buf)
			if err != nil || string(buf[:n]) != fmt.Sprintf("line %d\n", i) {
				t.Fatalf("read %q, %v", buf[:n], err)
			}
			if at := time.Since(begun); at != time.Duration(i)*time.Second {
				t.Errorf("line %d came after %v", i, at)
			}
		}
		if err := res.Body.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the handler ended with %v", err)
		}
	})
}

func TestTheEndOfAContextEndsBothSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		_, h := of(line(ended))
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		res, err := get(t, ctx, h, "/watch")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		if !errors.Is(err, context.DeadlineExceeded) || strings.Count(string(text), "line") != 3 {
			t.Errorf("read %q, %v", text, err)
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the handler ended with %v", err)
		}
	})
}

func TestCutAndHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		c, h := of(line(ended))
		res, err := get(t, t.Context(), h, "/watch")
		if err != nil {
			t.Fatal(err)
		}
		c.Cut()
		if _, err := io.ReadAll(res.Body); !errors.Is(err, client.ErrCut) {
			t.Errorf("the stream ended with %v", err)
		}
		_ = res.Body.Close()
		<-ended
		if res, err := get(t, t.Context(), h, "/watch"); !errors.Is(err, client.ErrCut) { //nolint:bodyclose // there is none
			t.Errorf("a request through a cut got %v, %v", res, err)
		}
		c.Heal()
		if res, err = get(t, t.Context(), h, "/watch"); err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		<-ended
	})
}

func TestAWriterWaitsForItsReader(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789"), 300_000)
	synctest.Test(t, func(t *testing.T) {
		wrote := false
		_, h := of(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(big)
			wrote = true
		})
		res, err := get(t, t.Context(), h, "/list")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		if synctest.Wait(); wrote {
			t.Error("all was written before anything was read")
		}
		if got, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(got, big) {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
	})
}

func TestADeadlineEndsAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan error, 1)
		_, h := of(func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
			_, err := w.Write(make([]byte, 1<<20))
			failed <- err
		})
		res, err := get(t, t.Context(), h, "/list")
		if err != nil {
			t.Fatal(err)
		}
		if err := <-failed; err == nil {
			t.Error("a write that nobody reads ended well")
		}
		_ = res.Body.Close()
	})
}

func TestBrokenOff(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"before the answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"in an answer": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := of(h)
			res, err := get(t, t.Context(), c, "/")
			if err != nil {
				return
			}
			defer func() { _ = res.Body.Close() }()
			if text, err := io.ReadAll(res.Body); err == nil {
				t.Errorf("%q was taken for the whole", text)
			}
		})
	}
}
