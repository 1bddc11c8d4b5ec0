package watch_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/watch"
)

var modelSeed = flag.Uint64("seed", 0, "seed of the random test; 0 takes new ones")

// step is what the model knows of one change.
type step struct {
	rev           store.Revision
	before, after *thing
}

// model is all that happened to the things of each plane, in order.
type model struct {
	mu    sync.Mutex // guards the fields below
	steps map[string][]step
}

// query is a filter in the model's own words.
type query struct{ prefix, key, node, color string }

func (q query) wants(o *thing) bool {
	return o != nil && strings.HasPrefix(o.key, q.prefix) && (q.key == "" || o.key == q.key) &&
		(q.node == "" || o.node == q.node) && (q.color == "" || o.color == q.color)
}

func (q query) filter() watch.Filter {
	f := watch.Filter{Prefix: q.prefix, Key: q.key}
	if q.node != "" {
		f.Field, f.Value = "node", q.node
	}
	if q.color != "" {
		f.Match = color(q.color)
	}
	return f
}

// told is what a watcher must hear of the changes in (from, to].
func (m *model) told(plane string, q query, from, to store.Revision) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, s := range m.steps[plane] {
		before, after := q.wants(s.before), q.wants(s.after)
		if s.rev <= from || s.rev > to || !before && !after {
			continue
		}
		switch {
		case before && after:
			out = append(out, "modified "+s.after.value(s.rev))
		case after && s.before == nil:
			out = append(out, "added "+s.after.value(s.rev))
		case after:
			out = append(out, "entered "+s.after.value(s.rev))
		case s.after == nil:
			out = append(out, "deleted "+s.before.value(s.rev))
		default:
			out = append(out, "left "+s.before.value(s.rev))
		}
	}
	return out
}

// state is the initial state at a revision.
func (m *model) state(plane string, q query, at store.Revision) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	live := map[string]string{}
	for _, s := range m.steps[plane] {
		switch {
		case s.rev > at:
		case q.wants(s.after):
			live[s.after.key] = "added " + s.after.value(s.rev)
		case s.before != nil:
			delete(live, s.before.key)
		}
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(live)) {
		out = append(out, live[key])
	}
	return out
}

// TestAgainstModel lets watchers with random filters come, go, dawdle and
// resume while changes are made and the hub is replaced, and compares what
// each was told with what a list of all changes says.
func TestAgainstModel(t *testing.T) {
	seeds := []uint64{*modelSeed}
	if *modelSeed == 0 {
		seeds = []uint64{rand.Uint64(), rand.Uint64(), rand.Uint64()}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { againstModel(t, seed) })
	}
}

type run struct {
	t     *testing.T
	s     *store.Store
	model model
	hub   atomic.Pointer[watch.Hub]
	done  atomic.Bool // nothing is written any more

	passing atomic.Int64 // batches that were told in passing
}

func againstModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	r := &run{t: t, s: openStore(t, store.Config{}), model: model{steps: map[string][]step{}}}
	newHub := func() func() {
		h, stop := runHub(t, r.s, watch.Config{RingLength: 1 << rng.IntN(7), TopicLength: 1 << rng.IntN(3), Linger: time.Millisecond, Crowd: 1 + rng.IntN(4)})
		r.hub.Store(h)
		return stop
	}
	stop := newHub()

	live := map[string]map[string]thing{store.Main: {}}
	planes := []string{store.Main}
	write := func() {
		plane := planes[rng.IntN(len(planes))]
		objects := live[plane]
		var ops []store.Op
		var steps []step
		for _, i := range rng.Perm(12)[:1+rng.IntN(3)*rng.IntN(2)] {
			key := fmt.Sprintf("%c/%d", 'a'+i%3, i)
			old, exists := objects[key]
			var s step
			if exists {
				s.before = &old
			}
			if exists && rng.IntN(4) == 0 {
				ops = append(ops, in(plane, "things", del(key)))
				delete(objects, key)
			} else {
				o := thing{key, []string{"red", "blue"}[rng.IntN(2)], []string{"", "n1", "n2", "n3"}[rng.IntN(4)], rng.IntN(1000)}
				s.after, objects[key] = &o, o
				ops = append(ops, in(plane, "things", o.put()))
			}
			steps = append(steps, s)
		}
		if rng.IntN(3) == 0 { // in another resource, at the same revision
			ops = append(ops, in(store.Main, "others", thing{"a/0", "red", "n1", 0}.put()))
		}
		r.model.mu.Lock() // so that nobody compares before the model knows
		defer r.model.mu.Unlock()
		rev := commit(t, r.s, ops...)
		for _, s := range steps {
			s.rev = rev
			r.model.steps[plane] = append(r.model.steps[plane], s)
		}
	}

	var watchers sync.WaitGroup
	const writes = 1500
	for i := range writes {
		write()
		switch {
		case i%40 == 0:
			plane := planes[rng.IntN(len(planes))]
			own := rand.New(rand.NewPCG(seed, uint64(i+1)))
			watchers.Go(func() { r.watch(own, plane) })
		case i == writes/3:
			from := r.s.Current()
			if _, err := r.s.Fork(t.Context(), "fork", store.Main, 0); err != nil {
				t.Fatal(err)
			}
			r.model.mu.Lock()
			for _, s := range r.model.steps[store.Main] {
				if s.rev <= from {
					r.model.steps["fork"] = append(r.model.steps["fork"], s)
				}
			}
			r.model.mu.Unlock()
			live["fork"] = maps.Clone(live[store.Main])
			planes = append(planes, "fork")
		case i%500 == 0:
			stop()
			stop = newHub()
		case i%10 == 0:
			time.Sleep(time.Duration(rng.IntN(1000)) * time.Microsecond)
		}
	}
	r.done.Store(true)
	watchers.Wait()
	if r.passing.Load() == 0 {
		t.Error("nobody was told anything in passing")
	}
}

// watch is the life of one client: it watches, resumes where it was when its
// watcher ends, and checks all it heard.
func (r *run) watch(rng *rand.Rand, plane string) {
	pick := func(texts ...string) string { return texts[rng.IntN(len(texts))] }
	q := query{prefix: pick("", "", "a/", "b/", "a/1"), node: pick("", "", "n1", "n2"), color: pick("", "red")}
	if rng.IntN(4) == 0 {
		q.key = pick("a/0", "b/4", "c/11")
	}
	o := watch.Options{Plane: plane, Resource: "things", Filter: q.filter()}
	if o.Initial = rng.IntN(2) == 0; !o.Initial {
		o.After = store.Revision(rng.Int64N(int64(r.s.Current()) + 1))
	}
	from := o.After
	var got []string
	at, initial := o.After, o.Initial
	if rng.IntN(2) == 0 {
		// Nobody else touches these while it is called.
		o.Take = func(b watch.Batch) bool {
			if rng.IntN(4) == 0 {
				return false
			}
			r.passing.Add(1)
			got = append(got, texts(b.Events)...)
			at = max(at, b.Rev)
			return true
		}
	}
	for {
		finished := r.done.Load()
		o.After, o.Initial, o.Bookmark = at, initial, 0
		if finished || rng.IntN(2) == 0 {
			o.Bookmark = time.Millisecond
		}
		w, err := r.hub.Load().Watch(context.Background(), o)
		if errors.Is(err, watch.ErrStopped) {
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			r.t.Error(err)
			return
		}
		if initial {
			got = nil
		}
		for range 1 + rng.IntN(50) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rng.IntN(20))*time.Millisecond)
			b, err := w.Next(ctx)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				continue
			}
			if errors.Is(err, watch.ErrStopped) {
				break
			}
			if err != nil {
				r.t.Error(err)
				w.Close()
				return
			}
			if len(b.Events) == 0 && o.Bookmark == 0 && !b.InitialEnd {
				r.t.Errorf("a bookmark that was not asked for, at %d", b.Rev)
			}
			got = append(got, texts(b.Events)...)
			if b.InitialEnd {
				initial, from = false, b.Rev
				if diff := cmp.Diff(r.model.state(plane, q, b.Rev), got); diff != "" {
					r.t.Errorf("initial state of %+v at %d: %s", q, b.Rev, diff)
				}
				got = nil
			}
			at = max(at, b.Rev)
			if rng.IntN(8) == 0 {
				time.Sleep(time.Duration(rng.IntN(5000)) * time.Microsecond)
			}
		}
		w.Close()
		if diff := cmp.Diff(r.model.told(plane, q, from, at), got); diff != "" && !initial {
			r.t.Errorf("%+v in %s from %d to %d: %s", q, plane, from, at, diff)
			return
		}
		if finished && !initial && at >= r.s.Current() {
			return
		}
	}
}
