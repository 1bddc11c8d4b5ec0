package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/node/log"
)

// lines is a log of six records and five lines, with one that is no record.
const lines = `2026-01-02T03:04:01.000000001Z stdout F one
2026-01-02T03:04:02Z stderr F two
no record
2026-01-02T03:04:03.5Z stdout P thr
2026-01-02T03:04:03.6Z stdout F ee
2026-01-02T03:04:04.000000000+00:00 stdout F:x four
2026-01-02T03:04:05Z stdout F 
`

func ended(context.Context) (bool, error) { return false, nil }

func put(t *testing.T, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	third := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 3, 500_000_000, time.UTC))
	for _, c := range []struct {
		name string
		log  string
		opts corev1.PodLogOptions
		want string
	}{
		{"all", lines, corev1.PodLogOptions{}, "one\ntwo\nthree\nfour\n\n"},
		{"empty", "", corev1.PodLogOptions{}, ""},
		{"nothing that is a record", "x\ny z\n", corev1.PodLogOptions{}, ""},
		{
			"timestamps", lines,
			corev1.PodLogOptions{Timestamps: true},
			"2026-01-02T03:04:01.000000001Z one\n2026-01-02T03:04:02.000000000Z two\n2026-01-02T03:04:03.500000000Z three\n" +
				"2026-01-02T03:04:04.000000000Z four\n2026-01-02T03:04:05.000000000Z \n",
		},
		{"since", lines, corev1.PodLogOptions{SinceTime: &third}, "three\nfour\n\n"},
		{"since seconds", lines, corev1.PodLogOptions{SinceSeconds: n(10)}, ""},
		{"tail", lines, corev1.PodLogOptions{TailLines: n(2)}, "four\n\n"},
		{"tail of records, not of lines", lines, corev1.PodLogOptions{TailLines: n(3)}, "ee\nfour\n\n"},
		{"tail of nothing", lines, corev1.PodLogOptions{TailLines: n(0)}, ""},
		{"tail of more than there is", lines, corev1.PodLogOptions{TailLines: n(100)}, "one\ntwo\nthree\nfour\n\n"},
		{"limit", lines, corev1.PodLogOptions{LimitBytes: n(6)}, "one\ntw"},
		{"limit at a line's end", lines, corev1.PodLogOptions{LimitBytes: n(4)}, "one\n"},
		{"limit counts timestamps", lines, corev1.PodLogOptions{LimitBytes: n(4), Timestamps: true}, "2026"},
		{"limit and tail", lines, corev1.PodLogOptions{LimitBytes: n(3), TailLines: n(2)}, "fou"},
		{"a record without its end", strings.TrimSuffix(lines, "\n"), corev1.PodLogOptions{}, "one\ntwo\nthree\nfour\n"},
		{"following what has ended", lines, corev1.PodLogOptions{Follow: true, TailLines: n(2)}, "four\n\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := log.Read(t.Context(), put(t, c.log), &c.opts, ended, &out, &out); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadOneStream(t *testing.T) {
	for _, c := range []struct {
		name          string
		out, errs     bool
		want, limited string
	}{
		{"stdout", true, false, "one\nthree\nfour\n\n", "one\nth"},
		{"stderr", false, true, "two\n", "two\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for limit, want := range map[int64]string{1000: c.want, 6: c.limited} {
				var got bytes.Buffer
				var stdout, stderr io.Writer
				if c.out {
					stdout = &got
				}
				if c.errs {
					stderr = &got
				}
				if err := log.Read(t.Context(), put(t, lines), &corev1.PodLogOptions{LimitBytes: &limit}, ended, stdout, stderr); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got.String()); diff != "" {
					t.Errorf("limit %d:\n%s", limit, diff)
				}
			}
		})
	}
}

// TestTailFindsEveryLine compares with a reading of the whole, over blocks of
// all sorts of lengths.
func TestTailFindsEveryLine(t *testing.T) {
	var content strings.Builder
	var texts []string
	for i := range 600 {
		text := strings.Repeat("x", i*7%311) + fmt.Sprint(i) + "\n"
		texts = append(texts, text)
		content.WriteString("2026-01-02T03:04:05Z stdout F " + text)
	}
	path := put(t, content.String())
	for n := int64(0); n <= 601; n += 13 {
		var got strings.Builder
		if err := log.Read(t.Context(), path, &corev1.PodLogOptions{TailLines: &n}, ended, &got, &got); err != nil {
			t.Fatal(err)
		}
		if want := strings.Join(texts[max(0, len(texts)-int(n)):], ""); got.String() != want {
			t.Fatalf("the last %d lines are others", n)
		}
	}
}

// shared is a buffer that one writes and another reads.
type shared struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// TestFollow follows a log over many rotations, and a line that is written in
// two parts.
func TestFollow(t *testing.T) {
	path := put(t, "2026-01-02T03:04:05Z stdout F 0\n")
	var over atomic.Bool
	running := func(ctx context.Context) (bool, error) { return !over.Load(), ctx.Err() }
	out, done := &shared{}, make(chan error, 1)
	go func() {
		done <- log.Read(t.Context(), path, &corev1.PodLogOptions{Follow: true}, running, out, out)
	}()
	want := "0\n"
	for i := 1; i <= 40; i++ {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(f, "2026-01-02T03:04:05Z stdout F %d", i)
		if i%3 == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		_, _ = fmt.Fprintf(f, "a\n2026-01-02T03:04:05Z stderr F %db\n", i)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		want += fmt.Sprintf("%da\n%db\n", i, i)
		if i%4 == 0 {
			if err := os.Rename(path, fmt.Sprintf("%s.%03d", path, i)); err != nil {
				t.Fatal(err)
			}
			next, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			_ = next.Close() // nothing was written
			eventually(t, func() bool { return out.String() == want })
		}
	}
	over.Store(true)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for begun := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("it does not come about")
		}
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	gone := errors.New("the client has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		running := func(context.Context) (bool, error) { return true, nil }
		done <- log.Read(ctx, put(t, lines), &corev1.PodLogOptions{Follow: true}, running, io.Discard, io.Discard)
	}()
	cancel(gone)
	if err := <-done; !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

func TestReadErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "0.log")
	if err := log.Read(t.Context(), missing, &corev1.PodLogOptions{}, ended, io.Discard, io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log that is not there: %v", err)
	}
	broken := errors.New("broken")
	failing := func(context.Context) (bool, error) { return false, broken }
	if err := log.Read(t.Context(), put(t, lines), &corev1.PodLogOptions{Follow: true}, failing, io.Discard, io.Discard); !errors.Is(err, broken) {
		t.Errorf("a runtime that does not answer: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(lines), int64(2), int64(7), true)
	f.Add([]byte("2026-01-02T03:04:05Z stdout F"), int64(-1), int64(-1), false)
	f.Fuzz(func(t *testing.T, content []byte, tail, limit int64, stamps bool) {
		opts := &corev1.PodLogOptions{Timestamps: stamps}
		if tail >= 0 {
			opts.TailLines = &tail
		}
		if limit > 0 {
			opts.LimitBytes = &limit
		}
		var out bytes.Buffer
		if err := log.Read(t.Context(), put(t, string(content)), opts, ended, &out, &out); err != nil {
			t.Fatal(err)
		}
		if limit > 0 && int64(out.Len()) > limit {
			t.Errorf("%d bytes of at most %d", out.Len(), limit)
		}
	})
}
