package watch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/watch"
)

// thing is a test object. Its value carries its revision and all it is.
type thing struct {
	key, color, node string
	n                int
}

func (o thing) value(rev store.Revision) string {
	return fmt.Sprintf("%d %s %s %s %d", rev, o.key, o.color, o.node, o.n)
}

func (o thing) put() store.Op {
	index := store.Index{Labels: map[string]string{"color": o.color}}
	if o.node != "" {
		index.Fields = map[string]string{"node": o.node}
	}
	return store.Op{Resource: "things", Key: o.key, Value: []byte(o.value(0)[1:]), RevAt: 0, Index: index}
}

func del(key string) store.Op {
	return store.Op{Resource: "things", Key: key, Delete: true, RevAt: -1}
}

func in(plane, resource string, op store.Op) store.Op {
	op.Plane, op.Resource = plane, resource
	return op
}

func color(want string) func(*store.Object) bool {
	return func(o *store.Object) bool {
		got, _ := o.Label("color")
		return got == want
	}
}

func openStore(t testing.TB, cfg store.Config) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// runHub runs a hub until the returned function is called or the test ends.
func runHub(t testing.TB, s *store.Store, cfg watch.Config) (*watch.Hub, func()) {
	t.Helper()
	h := watch.New(s, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, store.ErrClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return h, stop
}

func commit(t testing.TB, s *store.Store, ops ...store.Op) store.Revision {
	t.Helper()
	rev, err := s.Commit(context.Background(), store.Provenance{}, ops...)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func start(t testing.TB, h *watch.Hub, o watch.Options) *watch.Watcher {
	t.Helper()
	if o.Resource == "" {
		o.Resource = "things"
	}
	w, err := h.Watch(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

func next(t testing.TB, w *watch.Watcher) watch.Batch {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b, err := w.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// nextError calls Next until it fails.
func nextError(t testing.TB, w *watch.Watcher) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if _, err := w.Next(ctx); err != nil {
			return err
		}
	}
}

// text is an event in one line: its type and what the watcher would send.
func text(e watch.Event) string { return e.Type.String() + " " + string(e.Value()) }

func texts(events []watch.Event) []string {
	var lines []string
	for _, e := range events {
		lines = append(lines, text(e))
	}
	return lines
}

// follow gathers events until the watcher has reached a revision.
func follow(t testing.TB, w *watch.Watcher, until store.Revision) []string {
	t.Helper()
	var lines []string
	var last store.Revision
	for {
		b := next(t, w)
		for _, e := range b.Events {
			if e.Change != nil && (e.Rev() <= last || e.Rev() > b.Rev) {
				t.Fatalf("event %q between revisions %d and %d", text(e), last, b.Rev)
			}
			lines = append(lines, text(e))
		}
		if last = max(last, b.Rev); last >= until {
			return lines
		}
	}
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func lines(s string) []string {
	var out []string
	for line := range strings.SplitSeq(strings.TrimSpace(s), "\n") {
		out = append(out, strings.TrimSpace(line))
	}
	return out
}
