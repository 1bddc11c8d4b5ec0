package watch_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/memory"
	"setpoint.dev/setpoint/watch"
)

func TestWatcherTakesEverythingNewInOneGo(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	w := start(t, h, watch.Options{Bookmark: time.Millisecond})
	var want []string
	for i := range 5 {
		o := thing{"a/x", "red", "", i}
		rev := commit(t, s, o.put())
		kind := "modified "
		if i == 0 {
			kind = "added "
		}
		want = append(want, kind+o.value(rev))
	}
	waitFor(t, "one batch with all", func() bool {
		w := start(t, h, watch.Options{})
		return slices.Equal(texts(next(t, w).Events), want)
	})
	if diff := cmp.Diff(want, follow(t, w, 5)); diff != "" {
		t.Error(diff)
	}
}

func TestFilterTransitions(t *testing.T) {
	red, blue := thing{"a/x", "red", "n1", 0}, thing{"a/x", "blue", "n2", 0}
	steps := []struct {
		name string
		ops  []store.Op // one commit each
		want string     // of the last
	}{
		{"created matching", []store.Op{red.put()}, "added 1 a/x red n1 0"},
		{"created not matching", []store.Op{blue.put()}, ""},
		{"changed, matching still", []store.Op{red.put(), red.put()}, "modified 2 a/x red n1 0"},
		{"starts to match", []store.Op{blue.put(), red.put()}, "entered 2 a/x red n1 0"},
		{"stops to match", []store.Op{red.put(), blue.put()}, "left 2 a/x red n1 0"},
		{"never matches", []store.Op{blue.put(), blue.put()}, ""},
		{"deleted while matching", []store.Op{red.put(), del("a/x")}, "deleted 2 a/x red n1 0"},
		{"deleted while not matching", []store.Op{blue.put(), del("a/x")}, ""},
		{
			"deleted with a last state that does not match",
			[]store.Op{red.put(), {Resource: "things", Key: "a/x", Delete: true, Value: []byte(" bye"), Index: store.Index{}}},
			"deleted 2 bye",
		},
		{"created again", []store.Op{red.put(), del("a/x"), red.put()}, "added 3 a/x red n1 0"},
		{"another key", []store.Op{thing{"b/x", "red", "n9", 0}.put()}, ""},
	}
	filters := map[string]watch.Filter{
		"label":               {Match: color("red"), Prefix: "a/"},
		"field":               {Field: "node", Value: "n1"},
		"field and namespace": {Field: "node", Value: "n1", Prefix: "a/"},
		"key and label":       {Key: "a/x", Match: color("red")},
		"part of a name":      {Prefix: "a/x", Match: color("red")},
	}
	for name, filter := range filters {
		for _, step := range steps {
			t.Run(name+"/"+step.name, func(t *testing.T) {
				s := openStore(t, store.Config{})
				h, _ := runHub(t, s, watch.Config{})
				live := start(t, h, watch.Options{Filter: filter, Bookmark: time.Millisecond})
				var rev store.Revision
				for _, op := range step.ops {
					rev = commit(t, s, op)
				}
				var want []string
				if step.want != "" {
					want = []string{step.want}
				}
				if diff := cmp.Diff(want, after(follow(t, live, rev), rev)); diff != "" {
					t.Errorf("live: %s", diff)
				}
				replayed := start(t, h, watch.Options{Filter: filter, After: rev - 1, Resource: "things", Bookmark: time.Millisecond})
				if diff := cmp.Diff(want, follow(t, replayed, rev)); diff != "" {
					t.Errorf("replayed: %s", diff)
				}
			})
		}
	}
}

// after keeps the lines that tell of a revision.
func after(told []string, rev store.Revision) []string {
	var kept []string
	for _, line := range told {
		if strings.HasPrefix(strings.SplitN(line, " ", 2)[1], fmt.Sprint(rev)+" ") {
			kept = append(kept, line)
		}
	}
	return kept
}

func TestInitialStateThenFollowWithoutGap(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{RingLength: 16})
	const objects, writes = 300, 3000
	for i := range objects {
		commit(t, s, thing{fmt.Sprintf("a/%04d", i), "red", "n1", 0}.put())
	}
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() {
		for i := range writes {
			commit(t, s, thing{fmt.Sprintf("a/%04d", i%objects), "red", "n1", i}.put())
		}
	})
	var watchers sync.WaitGroup
	for range 20 {
		watchers.Go(func() {
			w := start(t, h, watch.Options{Initial: true})
			var b watch.Batch
			seen := map[string]store.Revision{}
			for !b.InitialEnd {
				if b.Rev != 0 {
					t.Errorf("revision %d before the initial state is complete", b.Rev)
				}
				b = next(t, w)
				for _, e := range b.Events {
					seen[e.Object.Key()] = e.Object.Rev
				}
			}
			if len(seen) != objects {
				t.Errorf("initial state of %d objects, want %d", len(seen), objects)
			}
			want := b.Rev + 1 // every revision is a change here
			for want <= objects+writes {
				for _, e := range next(t, w).Events {
					if e.Rev() != want || e.Change.Prev != seen[e.Object.Key()] {
						t.Errorf("revision %d replacing %d, want %d replacing %d",
							e.Rev(), e.Change.Prev, want, seen[e.Object.Key()])
						return
					}
					seen[e.Object.Key()] = want
					want++
				}
			}
		})
	}
	watchers.Wait()
}

func TestInitialStateComesInPieces(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	var ops []store.Op
	var want []string
	for i := range 2500 {
		o := thing{fmt.Sprintf("a/%04d", i), "red", "", 0}
		ops = append(ops, o.put())
		want = append(want, "added "+o.value(1))
	}
	commit(t, s, ops...)
	commit(t, s, thing{"a/0000", "blue", "", 0}.put())
	commit(t, s, thing{"a/0000", "red", "", 0}.put())
	want[0] = "added " + thing{"a/0000", "red", "", 0}.value(3)

	w := start(t, h, watch.Options{Initial: true, Filter: watch.Filter{Match: color("red")}})
	late := commit(t, s, thing{"a/2499", "blue", "", 1}.put())
	want = append(want, "left "+thing{"a/2499", "red", "", 0}.value(late))
	var got []string
	pieces := 0
	for {
		b := next(t, w)
		got = append(got, texts(b.Events)...)
		pieces++
		if b.InitialEnd {
			if b.Rev != 3 {
				t.Errorf("initial state ends at %d, want 3", b.Rev)
			}
			break
		}
	}
	if pieces != 3 {
		t.Errorf("%d pieces", pieces)
	}
	got = append(got, texts(next(t, w).Events)...)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestInitialStateOfScopes(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	commit(t, s, thing{"a/x", "red", "n1", 0}.put(), thing{"a/y", "red", "n2", 0}.put(), thing{"b/x", "red", "n1", 0}.put())
	for name, c := range map[string]struct {
		filter watch.Filter
		want   string
	}{
		"all":           {watch.Filter{}, "a/x a/y b/x"},
		"namespace":     {watch.Filter{Prefix: "a/"}, "a/x a/y"},
		"key":           {watch.Filter{Key: "a/y"}, "a/y"},
		"no such key":   {watch.Filter{Key: "a/z"}, ""},
		"field":         {watch.Filter{Field: "node", Value: "n1"}, "a/x b/x"},
		"all three":     {watch.Filter{Field: "node", Value: "n1", Prefix: "b/", Key: "b/x"}, "b/x"},
		"none of three": {watch.Filter{Field: "node", Value: "n2", Prefix: "b/", Key: "b/x"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := next(t, start(t, h, watch.Options{Initial: true, Filter: c.filter}))
			var keys []string
			for _, e := range b.Events {
				keys = append(keys, e.Object.Key())
			}
			if got := strings.Join(keys, " "); got != c.want || !b.InitialEnd || b.Rev != 1 {
				t.Errorf("got %q, end %v at %d; want %q", got, b.InitialEnd, b.Rev, c.want)
			}
		})
	}
}

func TestSnapshotIsLetGoAndTheRestReadFromThePast(t *testing.T) {
	for _, plane := range []string{store.Main, "fork"} {
		t.Run(plane, func(t *testing.T) {
			s := openStore(t, store.Config{})
			h, _ := runHub(t, s, watch.Config{Linger: 5 * time.Millisecond})
			if plane != store.Main {
				if _, err := s.Fork(t.Context(), plane, store.Main, 0); err != nil {
					t.Fatal(err)
				}
			}
			var ops []store.Op
			for i := range 2500 {
				ops = append(ops, in(plane, "things", thing{fmt.Sprintf("a/%04d", i), "red", "", 0}.put()))
			}
			commit(t, s, ops...)
			w := start(t, h, watch.Options{Plane: plane, Initial: true})
			got := len(next(t, w).Events)
			commit(t, s, in(plane, "things", del("a/2000")), in(plane, "things", thing{"b/new", "red", "", 0}.put()))
			waitFor(t, "the snapshot to be let go", func() bool { return !w.HoldsSnapshot() })
			for {
				b := next(t, w)
				if got += len(b.Events); b.InitialEnd {
					break
				}
			}
			if got != 2500 {
				t.Errorf("%d objects", got)
			}
			want := []string{"deleted 2 a/2000 red  0", "added 2 b/new red  0"}
			if diff := cmp.Diff(want, texts(next(t, w).Events)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestClosedWatcherHoldsNoSnapshot(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	w := start(t, h, watch.Options{Initial: true})
	if !w.HoldsSnapshot() {
		t.Fatal("no snapshot held")
	}
	w.Close()
	if w.HoldsSnapshot() {
		t.Error("snapshot held after Close")
	}
}

func TestResumeFromEveryRevision(t *testing.T) {
	for _, length := range []int{2, 16, 4096} { // disk; ring and disk; ring
		t.Run(fmt.Sprint("ring of ", length), func(t *testing.T) {
			s := openStore(t, store.Config{})
			h, _ := runHub(t, s, watch.Config{RingLength: length, TopicLength: 2})
			start(t, h, watch.Options{}) // so that there is a ring
			var want []string
			const last = 60
			for i := range last {
				o := thing{fmt.Sprintf("%c/x", 'a'+i%3), "red", "n1", i}
				rev := commit(t, s, o.put())
				kind := "modified "
				if i < 3 {
					kind = "added "
				}
				want = append(want, kind+o.value(rev))
			}
			for from := range store.Revision(last + 1) {
				w := start(t, h, watch.Options{After: from, Bookmark: time.Millisecond})
				if diff := cmp.Diff(want[from:], follow(t, w, last), equateEmpty); diff != "" {
					t.Fatalf("after %d: %s", from, diff)
				}
				w.Close()
			}
		})
	}
}

var equateEmpty = cmp.Transformer("empty", func(s []string) []string { return append([]string{}, s...) })

func TestRevisionIsNeverSplit(t *testing.T) {
	s := openStore(t, store.Config{})
	for _, length := range []int{64, 1 << 14} {
		h, stop := runHub(t, s, watch.Config{RingLength: length})
		w := start(t, h, watch.Options{After: s.Current()})
		const revisions, ops = 3, 1500
		for range revisions {
			var group []store.Op
			for i := range ops {
				group = append(group, thing{fmt.Sprintf("a/%04d", i), "red", "", 0}.put())
			}
			commit(t, s, group...)
		}
		for range revisions {
			b := next(t, w)
			if len(b.Events) != ops || b.Events[0].Rev() != b.Rev || b.Events[ops-1].Rev() != b.Rev {
				t.Fatalf("%d events, revision %d to %d in a batch of %d",
					len(b.Events), b.Events[0].Rev(), b.Events[len(b.Events)-1].Rev(), b.Rev)
			}
		}
		stop()
	}
}

func TestLongCatchUpIsBounded(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	big := make([]byte, 100<<10)
	for range 30 {
		commit(t, s, store.Op{Resource: "things", Key: "big", Value: big, RevAt: -1})
	}
	w := start(t, h, watch.Options{})
	total := 0
	for total < 30 {
		b := next(t, w)
		if total += len(b.Events); len(b.Events) > 11 {
			t.Errorf("%d events of 100 KiB in one batch", len(b.Events))
		}
	}
}

func TestBehindTheRingFromDiskAndBackToTheRing(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{RingLength: 4, TopicLength: 2})
	filters := []watch.Filter{{}, {Prefix: "a/"}, {Key: "a/x"}, {Field: "node", Value: "n1"}}
	var ws []*watch.Watcher
	for _, f := range filters {
		ws = append(ws, start(t, h, watch.Options{Filter: f, Bookmark: time.Millisecond}))
	}
	got := make([][]string, len(ws))
	var want []string
	o := thing{"a/x", "red", "n1", 0}
	for round := range 5 {
		var rev store.Revision
		for i := range 3 << round {
			kind := "modified "
			if round+i == 0 {
				kind = "added "
			}
			o.n++
			rev = commit(t, s, o.put())
			want = append(want, kind+o.value(rev))
		}
		for i, w := range ws {
			got[i] = append(got[i], follow(t, w, rev)...)
		}
	}
	for i := range ws {
		if diff := cmp.Diff(want, got[i]); diff != "" {
			t.Errorf("%+v: %s", filters[i], diff)
		}
	}
}

// reads is an engine that counts how often a log is read.
type reads struct {
	engine.Engine
	logs atomic.Int64
}

func (e *reads) Log(ctx context.Context, t engine.Table, after engine.Revision) iter.Seq2[engine.Entry, error] {
	e.logs.Add(1)
	return e.Engine.Log(ctx, t, after)
}

func TestManyBehindTheRingReadTheLogOnce(t *testing.T) {
	e := &reads{Engine: memory.New()}
	s := openStore(t, store.Config{Engine: e, CompactEvery: time.Hour})
	h, _ := runHub(t, s, watch.Config{RingLength: 4, RingSize: 4 << 20})
	value := make([]byte, 2<<10)
	const writes = 500
	for range writes {
		commit(t, s, store.Op{Resource: "things", Key: "a/x", Value: value, RevAt: -1})
	}
	var watchers sync.WaitGroup
	for i := range 300 {
		watchers.Go(func() {
			from := store.Revision(i % 50)
			w := start(t, h, watch.Options{After: from})
			if got := follow(t, w, writes); len(got) != writes-int(from) {
				t.Errorf("%d events after %d", len(got), from)
			}
		})
	}
	watchers.Wait()
	// 128 changes make a page: everybody by himself would read four.
	if n := e.logs.Load(); n > 200 {
		t.Errorf("300 watchers read the log %d times", n)
	}
	if n := h.Remembered(store.Main, "things"); n > 4<<20 {
		t.Errorf("%d bytes of the past are kept", n)
	}
}

func TestSparseCatchUpGoesOnByItself(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{RingLength: 4})
	for i := range 3000 {
		commit(t, s, thing{"a/x", "red", "", i}.put())
	}
	rev := commit(t, s, thing{"b/x", "red", "", 0}.put())
	w := start(t, h, watch.Options{Filter: watch.Filter{Key: "b/x"}})
	if b := next(t, w); len(b.Events) != 1 || b.Rev != rev {
		t.Errorf("%v up to %d", texts(b.Events), b.Rev)
	}
}

func TestChangeBetweenReadingAndWaitingWakes(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	other := start(t, h, watch.Options{})
	between := sync.OnceFunc(func() {
		rev := commit(t, s, thing{"a/x", "blue", "", 1}.put())
		follow(t, other, rev)
	})
	w := start(t, h, watch.Options{Filter: watch.Filter{Match: func(o *store.Object) bool {
		between() // while revision 1 is read
		return color("blue")(o)
	}}})
	commit(t, s, thing{"a/x", "red", "", 0}.put())
	if diff := cmp.Diff([]string{"entered 2 a/x blue  1"}, texts(next(t, w).Events)); diff != "" {
		t.Error(diff)
	}
}

func TestCrowdIsWokenWhole(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	const crowd, writes = 1000, 20
	var heard atomic.Int64
	var watchers sync.WaitGroup
	for range crowd {
		w := start(t, h, watch.Options{})
		watchers.Go(func() {
			for got := 0; got < writes; {
				n := len(next(t, w).Events)
				got += n
				heard.Add(int64(n))
			}
		})
	}
	for i := range writes {
		commit(t, s, thing{"a/x", "red", "", i}.put())
		waitFor(t, "everybody to hear of it", func() bool { return heard.Load() == int64(i+1)*crowd })
	}
	watchers.Wait()
}

func TestBehindTheLogIsTooOld(t *testing.T) {
	s := openStore(t, store.Config{
		Retention:    func(string) store.Retention { return store.Retention{Changes: 20} },
		CompactEvery: time.Millisecond,
	})
	h, _ := runHub(t, s, watch.Config{RingLength: 4})
	stuck := start(t, h, watch.Options{})
	idle := start(t, h, watch.Options{Filter: watch.Filter{Key: "b/idle"}})
	for i := range 200 {
		commit(t, s, thing{"a/x", "red", "", i}.put())
	}
	waitFor(t, "compaction", func() bool {
		for _, err := range s.Changes(t.Context(), store.Main, "things", 100) {
			return errors.Is(err, store.ErrCompacted)
		}
		return false
	})
	if err := nextError(t, stuck); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("stuck watcher: %v", err)
	}
	if err := nextError(t, stuck); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("stuck watcher asked again: %v", err)
	}
	if err := nextError(t, start(t, h, watch.Options{After: 50})); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("resumed: %v", err)
	}
	// What happened to others does not make an idle watcher too old.
	rev := commit(t, s, thing{"b/idle", "red", "", 0}.put())
	if diff := cmp.Diff([]string{"added " + thing{"b/idle", "red", "", 0}.value(rev)}, follow(t, idle, rev)); diff != "" {
		t.Error(diff)
	}
}

func TestAfterInTheFuture(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	for _, initial := range []bool{false, true} {
		_, err := h.Watch(t.Context(), watch.Options{Resource: "things", After: 1, Initial: initial})
		if !errors.Is(err, store.ErrFuture) {
			t.Errorf("initial %v: %v", initial, err)
		}
	}
}

func TestInvalidOptions(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	for _, o := range []watch.Options{{}, {Resource: "things", After: -1}} {
		if _, err := h.Watch(t.Context(), o); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := h.Watch(t.Context(), watch.Options{Plane: "none", Resource: "things"}); !errors.Is(err, store.ErrNoPlane) {
		t.Errorf("no plane: %v", err)
	}
}

func TestBookmarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, store.Config{CompactEvery: time.Hour})
		h, _ := runHub(t, s, watch.Config{})
		w := start(t, h, watch.Options{Bookmark: time.Minute, Filter: watch.Filter{Key: "a/x"}})
		begun := time.Now()
		expect := func(at time.Duration, rev store.Revision, events int) {
			t.Helper()
			b, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if time.Since(begun) != at || b.Rev != rev || len(b.Events) != events {
				t.Errorf("%d events up to %d after %v; want %d up to %d after %v",
					len(b.Events), b.Rev, time.Since(begun), events, rev, at)
			}
		}
		expect(time.Minute, 0, 0)
		commit(t, s, in(store.Main, "others", thing{"a/x", "red", "", 0}.put()))
		commit(t, s, thing{"a/y", "red", "", 0}.put())
		expect(2*time.Minute, 2, 0) // others' changes raise it
		time.Sleep(30 * time.Second)
		commit(t, s, thing{"a/x", "red", "", 0}.put())
		synctest.Wait()
		expect(150*time.Second, 3, 1)
		expect(210*time.Second, 3, 0) // a minute after the last batch
		time.Sleep(5 * time.Minute)
		expect(510*time.Second, 3, 0) // at once when overdue
	})
}

func TestLastBookmark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, store.Config{CompactEvery: time.Hour})
		h, _ := runHub(t, s, watch.Config{})
		begun := time.Now()
		w := start(t, h, watch.Options{Bookmark: time.Minute, LastBookmark: begun.Add(100 * time.Second)})
		expect := func(at time.Duration, events int) {
			t.Helper()
			b, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if time.Since(begun) != at || len(b.Events) != events {
				t.Errorf("%d events after %v; want %d after %v", len(b.Events), time.Since(begun), events, at)
			}
		}
		expect(time.Minute, 0)
		time.Sleep(35 * time.Second)
		commit(t, s, thing{"a/x", "red", "", 0}.put())
		synctest.Wait()
		expect(95*time.Second, 1)
		expect(100*time.Second, 0) // although something was told a moment ago
		expect(160*time.Second, 0) // a watch that goes on goes on as before
	})
}

func TestNoBookmarkUnlessAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, store.Config{CompactEvery: time.Hour})
		h, _ := runHub(t, s, watch.Config{})
		w := start(t, h, watch.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		if b, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Next = %+v, %v", b, err)
		}
		commit(t, s, thing{"a/x", "red", "", 0}.put())
		if b := next(t, w); b.Rev != 1 { // the end of a ctx is not the watcher's
			t.Errorf("Next = %+v", b)
		}
	})
}

func TestScopedWatcherSleepsThroughOthersChanges(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	filters := []watch.Filter{{Prefix: "a/"}, {Key: "a/x"}, {Field: "node", Value: "n1"}}
	var ws []*watch.Watcher
	var waiting sync.WaitGroup
	for _, f := range filters {
		w := start(t, h, watch.Options{Filter: f})
		ws = append(ws, w)
		waiting.Go(func() {
			if b := next(t, w); len(b.Events) != 1 || b.Events[0].Rev() != b.Rev {
				t.Errorf("%+v: %v up to %d", f, texts(b.Events), b.Rev)
			}
		})
	}
	all := start(t, h, watch.Options{Bookmark: time.Millisecond})
	var strokes []any
	for _, w := range ws {
		waitFor(t, "everybody to wait", w.Waits)
		strokes = append(strokes, w.Stroke())
	}
	var rev store.Revision
	for i := range 10_000 {
		rev = commit(t, s, thing{"b/x", "red", "n2", i}.put())
	}
	follow(t, all, rev)
	for i, w := range ws {
		if w.Stroke() != strokes[i] {
			t.Errorf("%+v was woken for nothing", filters[i])
		}
	}
	commit(t, s, thing{"a/x", "red", "n1", 0}.put())
	waiting.Wait()
}

func TestStuckWatcherCostsNobodyElse(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{RingLength: 64})
	stuck := start(t, h, watch.Options{})
	lively := start(t, h, watch.Options{})
	const writes = 5000
	for i := range writes {
		rev := commit(t, s, thing{"a/x", "red", "", i}.put())
		follow(t, lively, rev)
	}
	if held, _, _ := h.Held(store.Main, "things"); held > 64 {
		t.Errorf("ring holds %d changes", held)
	}
	if got := follow(t, stuck, writes); len(got) != writes {
		t.Errorf("the stuck watcher got %d events when it came back, want %d", len(got), writes)
	}
}

func TestRingIsBoundedInBytes(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{RingSize: 1 << 20})
	all := start(t, h, watch.Options{})
	start(t, h, watch.Options{Filter: watch.Filter{Key: "a/0"}})
	start(t, h, watch.Options{Filter: watch.Filter{Prefix: "a/"}})
	big := make([]byte, 100<<10)
	var rev store.Revision
	for i := range 50 {
		rev = commit(t, s, store.Op{Resource: "things", Key: fmt.Sprint("a/", i%5), Value: big, RevAt: -1})
	}
	if got := follow(t, all, rev); len(got) != 50 {
		t.Errorf("%d events", len(got))
	}
	held, topics, size := h.Held(store.Main, "things")
	if held == 0 || size > 1<<20 || topics > 2*held {
		t.Errorf("rings hold %d and %d changes of %d bytes", held, topics, size)
	}
	rev = commit(t, s, store.Op{Resource: "things", Key: "a/0", Value: make([]byte, 2<<20), RevAt: -1})
	follow(t, all, rev)
	if held, topics, _ := h.Held(store.Main, "things"); held != 1 || topics != 2 {
		t.Errorf("rings hold %d and %d changes, want the newest alone", held, topics)
	}
}

func TestWhatNobodyWatchesIsDropped(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{Linger: 4 * time.Millisecond})
	commit(t, s, thing{"a/x", "red", "", 0}.put())
	if tables, topics := h.Kept(); tables+topics != 0 {
		t.Errorf("%d tables, %d topics that nobody watches", tables, topics)
	}
	w := start(t, h, watch.Options{Filter: watch.Filter{Key: "a/x"}})
	v := start(t, h, watch.Options{Filter: watch.Filter{Field: "node", Value: "n1"}})
	time.Sleep(20 * time.Millisecond)
	if tables, topics := h.Kept(); tables != 1 || topics != 2 {
		t.Errorf("%d tables, %d topics; want 1 and 2", tables, topics)
	}
	w.Close()
	w.Close()
	v.Close()
	if _, topics := h.Kept(); topics != 0 {
		t.Errorf("%d topics without watchers", topics)
	}
	waitFor(t, "the table to be dropped", func() bool {
		tables, _ := h.Kept()
		return tables == 0
	})
}

func TestCloseDuringNext(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	w := start(t, h, watch.Options{})
	got := make(chan error)
	go func() {
		_, err := w.Next(context.Background())
		got <- err
	}()
	waitFor(t, "Next to wait", w.Waits)
	w.Close()
	if err := <-got; !errors.Is(err, watch.ErrClosed) {
		t.Errorf("Next = %v", err)
	}
	commit(t, s, thing{"a/x", "red", "", 0}.put())
	if _, err := w.Next(t.Context()); !errors.Is(err, watch.ErrClosed) {
		t.Errorf("Next after Close = %v", err)
	}
}

func TestHubEnds(t *testing.T) {
	t.Run("with its context", func(t *testing.T) {
		s := openStore(t, store.Config{})
		h, stop := runHub(t, s, watch.Config{})
		w := start(t, h, watch.Options{})
		time.AfterFunc(5*time.Millisecond, stop)
		if err := nextError(t, w); !errors.Is(err, watch.ErrStopped) {
			t.Errorf("Next = %v", err)
		}
		if _, err := h.Watch(t.Context(), watch.Options{Resource: "things"}); !errors.Is(err, watch.ErrStopped) {
			t.Errorf("Watch = %v", err)
		}
		if err := h.Run(t.Context()); err == nil {
			t.Error("a hub ran twice")
		}
	})
	t.Run("with the store", func(t *testing.T) {
		s, err := store.Open(t.Context(), store.Config{})
		if err != nil {
			t.Fatal(err)
		}
		h := watch.New(s, watch.Config{})
		ended := make(chan error)
		go func() { ended <- h.Run(context.Background()) }()
		w := start(t, h, watch.Options{})
		commit(t, s, thing{"a/x", "red", "", 0}.put())
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, store.ErrClosed) {
			t.Errorf("Run = %v", err)
		}
		if err := nextError(t, w); !errors.Is(err, watch.ErrStopped) || !errors.Is(err, store.ErrClosed) {
			t.Errorf("Next = %v", err)
		}
	})
}

func TestWatchWaitsForTheHubToRun(t *testing.T) {
	s := openStore(t, store.Config{})
	h := watch.New(s, watch.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := h.Watch(ctx, watch.Options{Resource: "things"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Watch = %v", err)
	}
}

func TestDroppedPlaneEndsItsWatchers(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	if _, err := s.Fork(t.Context(), "fork", store.Main, 0); err != nil {
		t.Fatal(err)
	}
	doomed := start(t, h, watch.Options{Plane: "fork"})
	beginning := start(t, h, watch.Options{Plane: "fork", Initial: true})
	main := start(t, h, watch.Options{})
	time.AfterFunc(5*time.Millisecond, func() {
		if err := s.Drop(context.Background(), "fork"); err != nil {
			t.Error(err)
		}
	})
	if err := nextError(t, doomed); !errors.Is(err, store.ErrNoPlane) {
		t.Errorf("Next = %v", err)
	}
	if err := nextError(t, beginning); !errors.Is(err, store.ErrNoPlane) {
		t.Errorf("Next = %v", err)
	}
	if _, err := h.Watch(t.Context(), watch.Options{Plane: "fork", Resource: "things"}); !errors.Is(err, store.ErrNoPlane) {
		t.Errorf("Watch = %v", err)
	}
	rev := commit(t, s, thing{"a/x", "red", "", 0}.put())
	follow(t, main, rev)

	// The name can be used again, by a plane with another past.
	if _, err := s.Fork(t.Context(), "fork", store.Main, 0); err != nil {
		t.Fatal(err)
	}
	again := start(t, h, watch.Options{Plane: "fork", After: rev, Bookmark: time.Millisecond})
	rev = commit(t, s, in("fork", "things", del("a/x")))
	if diff := cmp.Diff([]string{"deleted 2 a/x red  0"}, follow(t, again, rev)); diff != "" {
		t.Error(diff)
	}
}

func TestWatchAndDropAtTheSameTime(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	for range 500 {
		if _, err := s.Fork(t.Context(), "fork", store.Main, 0); err != nil {
			t.Fatal(err)
		}
		var dropped sync.WaitGroup
		dropped.Go(func() {
			if err := s.Drop(context.Background(), "fork"); err != nil {
				t.Error(err)
			}
		})
		w, err := h.Watch(t.Context(), watch.Options{Plane: "fork", Resource: "things", After: s.Current()})
		if err == nil {
			err = nextError(t, w)
			w.Close()
		}
		if !errors.Is(err, store.ErrNoPlane) {
			t.Fatal(err)
		}
		dropped.Wait()
	}
	if tables, _ := h.Kept(); tables != 0 {
		t.Errorf("%d tables of planes that are gone", tables)
	}
}

func TestForkIsWatchedFromBeforeItLeft(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	start(t, h, watch.Options{}) // main has a ring, the fork has none yet
	put := func(plane, node string, n int) {
		commit(t, s, in(plane, "things", thing{"a/x", "red", node, n}.put()))
	}
	put(store.Main, "n1", 1)
	put(store.Main, "n2", 2)
	if _, err := s.Fork(t.Context(), "fork", store.Main, 0); err != nil {
		t.Fatal(err)
	}
	early := start(t, h, watch.Options{Plane: "fork", Bookmark: time.Millisecond})
	scoped := start(t, h, watch.Options{Plane: "fork", Filter: watch.Filter{Field: "node", Value: "n2"}, Bookmark: time.Millisecond})
	put(store.Main, "n3", 3) // not the fork's
	put("fork", "n4", 4)
	put("fork", "n2", 5)
	want := lines(`
		added 1 a/x red n1 1
		modified 2 a/x red n2 2
		modified 4 a/x red n4 4
		modified 5 a/x red n2 5`)
	if diff := cmp.Diff(want, follow(t, early, 5)); diff != "" {
		t.Error(diff)
	}
	want = lines(`
		entered 2 a/x red n2 2
		left 4 a/x red n2 2
		entered 5 a/x red n2 5`)
	if diff := cmp.Diff(want, follow(t, scoped, 5)); diff != "" {
		t.Error(diff)
	}
	b := next(t, start(t, h, watch.Options{Plane: "fork", Initial: true}))
	if diff := cmp.Diff([]string{"added 5 a/x red n2 5"}, texts(b.Events)); diff != "" {
		t.Error(diff)
	}
}

func TestEventsAreShared(t *testing.T) {
	s := openStore(t, store.Config{})
	h, _ := runHub(t, s, watch.Config{})
	a, b := start(t, h, watch.Options{}), start(t, h, watch.Options{Filter: watch.Filter{Prefix: "a/"}})
	commit(t, s, thing{"a/x", "red", "", 0}.put())
	x, y := next(t, a).Events[0], next(t, b).Events[0]
	if &x.Value()[0] != &y.Value()[0] {
		t.Error("two watchers have two copies")
	}
}

func TestNothingRunsOn(t *testing.T) {
	before := runtime.NumGoroutine()
	s := openStore(t, store.Config{})
	h, stop := runHub(t, s, watch.Config{})
	var watchers sync.WaitGroup
	for i := range 200 {
		w := start(t, h, watch.Options{Initial: true, Bookmark: time.Minute, Filter: watch.Filter{Key: fmt.Sprint("a/", i)}})
		watchers.Go(func() {
			if err := nextError(t, w); !errors.Is(err, watch.ErrStopped) && !errors.Is(err, watch.ErrClosed) {
				t.Error(err)
			}
		})
		if i%2 == 0 {
			time.AfterFunc(time.Millisecond, w.Close)
		}
	}
	for i := range 200 {
		commit(t, s, thing{fmt.Sprint("a/", i), "red", "", 0}.put())
	}
	stop()
	watchers.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
}
