package watch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/embedded"
	"setpoint.dev/setpoint/store/engine/memory"
	"setpoint.dev/setpoint/watch"
)

// lasting is an engine that outlives its store, as a disk does.
type lasting struct{ engine.Engine }

func (lasting) Close() error { return nil }

func TestResumeAfterRestart(t *testing.T) {
	kept := lasting{memory.New()}
	t.Run("memory", func(t *testing.T) {
		resumeAfterRestart(t, func() engine.Engine { return kept })
	})
	dir := t.TempDir()
	t.Run("embedded", func(t *testing.T) {
		resumeAfterRestart(t, func() engine.Engine {
			e, err := embedded.Open(t.Context(), embedded.Config{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			return e
		})
	})
}

// resumeAfterRestart has watchers go on from their last revision in one life of
// the store after the other, and asks that together they heard everything once.
func resumeAfterRestart(t *testing.T, open func() engine.Engine) {
	filters := []watch.Filter{{}, {Prefix: "a/"}, {Key: "a/x"}, {Field: "node", Value: "n1"}, {Match: color("red")}}
	revs := make([]store.Revision, len(filters))
	got := make([][]string, len(filters))
	n := 0
	for range 4 {
		s, err := store.Open(t.Context(), store.Config{Engine: open()})
		if err != nil {
			t.Fatal(err)
		}
		h, stop := runHub(t, s, watch.Config{RingLength: 8, TopicLength: 2})
		var ws []*watch.Watcher
		for i, f := range filters {
			ws = append(ws, start(t, h, watch.Options{Filter: f, After: revs[i], Bookmark: time.Millisecond}))
		}
		write := func() (rev store.Revision) {
			for range 20 {
				o := thing{"a/x", []string{"red", "blue"}[n%2], fmt.Sprint("n", n%3), n}
				n++
				if rev = commit(t, s, o.put()); n%7 == 0 {
					rev = commit(t, s, del("a/x"))
				}
			}
			return rev
		}
		rev := write()
		for i, w := range ws {
			got[i] = append(got[i], follow(t, w, rev)...)
			revs[i] = rev
		}
		write() // and nobody listens
		stop()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}

	s := openStore(t, store.Config{Engine: open()})
	h, _ := runHub(t, s, watch.Config{})
	for i, f := range filters {
		got[i] = append(got[i], follow(t, start(t, h, watch.Options{Filter: f, After: revs[i], Bookmark: time.Millisecond}), s.Current())...)
		want := follow(t, start(t, h, watch.Options{Filter: f, Bookmark: time.Millisecond}), s.Current())
		if diff := cmp.Diff(want, got[i]); diff != "" || len(want) < 20 {
			t.Errorf("%+v: %d events: %s", f, len(want), diff)
		}
	}
}
