package model_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine/embedded"
	"setpoint.dev/setpoint/test/model"
	"setpoint.dev/setpoint/watch"
)

var (
	operations = flag.Int("ops", 30_000, "operations of the random run")
	seed       = flag.Uint64("seed", 0, "seed of the random run; 0 picks one")
)

// Sizes of the world that the run plays in: small enough that operations meet.
const (
	keys      = 60
	maxForks  = 5
	maxHeld   = 8
	maxViews  = 12
	retention = 400 // changes kept per resource, give or take a set
	maxSet    = 6   // operations in a set
)

var resources = []string{"pods", "pods.metrics", "leases"}

// run is one random run of the real store beside the model.
type run struct {
	*testing.T
	rand  *rand.Rand
	dir   string
	seed  uint64
	step  int
	forks int
	done  map[string]int // how often each kind of step was taken

	real  *store.Store
	hub   *watch.Hub
	stop  func()
	model *model.Store
	held  []held
	views []*view
}

// held is a snapshot kept across writes, with what it must go on showing.
type held struct {
	snapshot *store.Snapshot
	state    map[string]map[string]*model.Object
}

// TestRandom gives the same random operations to the store and to the model.
// To see a failure again, run with the -seed and -ops that it prints.
func TestRandom(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	r := &run{
		T: t, rand: rand.New(rand.NewPCG(*seed, 0)), dir: t.TempDir() + "/store", seed: *seed,
		model: model.New(), done: map[string]int{},
	}
	t.Logf("seed %d, %d operations", *seed, *operations)
	r.open()
	defer func() { r.stop() }()
	steps := []struct {
		name   string
		weight int
		take   func()
	}{
		{"commit", 8000, func() { r.commit(1) }},
		{"commit of a set", 800, func() { r.commit(2 + r.rand.IntN(maxSet-1)) }},
		{"commit with assertions", 800, func() { r.commitAsserting(1 + r.rand.IntN(maxSet)) }},
		{"scan", 300, r.scan},
		{"hold a snapshot", 60, r.hold},
		{"look at a held snapshot", 60, r.look},
		{"read the past", 15, r.past},
		{"read changes", 20, r.changes},
		{"read a history", 40, r.history},
		{"fork", 6, r.fork},
		{"drop", 5, r.drop},
		{"start a watcher", 20, r.watch},
		{"read a watcher", 600, r.readWatcher},
		{"cut a watcher and resume", 60, r.resumeWatcher},
		{"end a watcher", 10, r.endWatcher},
		{"restart", 1, r.restart},
	}
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	for r.step = 0; r.step < *operations && !t.Failed(); r.step++ {
		n := r.rand.IntN(total)
		for _, s := range steps {
			if n -= s.weight; n < 0 {
				r.done[s.name]++
				s.take()
				break
			}
		}
	}
	r.restart()
	for _, plane := range r.planes() {
		for _, resource := range resources {
			r.same(r.model.Planes[plane].Now(resource), r.now(plane).Scan(r.Context(), resource, store.Range{}), store.Range{})
		}
	}
	if t.Failed() {
		t.Fatalf("step %d: differs; see it again with -seed %d -ops %d", r.step, r.seed, r.step)
	}
	for _, name := range slices.Sorted(maps.Keys(r.done)) {
		t.Logf("%8d × %s", r.done[name], name)
	}
	t.Logf("no difference in %d operations, %d revisions", r.step, r.model.Rev)
}

func (r *run) open() {
	e, err := embedded.Open(r.Context(), embedded.Config{Dir: r.dir})
	r.must(err)
	r.real, err = store.Open(r.Context(), store.Config{
		Engine:       e,
		Retention:    func(string) store.Retention { return store.Retention{Changes: retention} },
		CompactEvery: 5 * time.Millisecond,
	})
	r.must(err)
	r.hub = watch.New(r.real, watch.Config{RingLength: 64, TopicLength: 8})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.hub.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			r.Error(err)
		}
	}()
	r.stop = func() {
		cancel()
		<-ended
		r.must(r.real.Close())
	}
}

func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("step %d: %v; see it again with -seed %d -ops %d", r.step, err, r.seed, r.step+1)
	}
}

func pick[T any](r *run, of []T) T { return of[r.rand.IntN(len(of))] }

func (r *run) planes() []string { return slices.Sorted(maps.Keys(r.model.Planes)) }

func (r *run) key() string { return fmt.Sprintf("ns%d/%02d", r.rand.IntN(3), r.rand.IntN(keys/3)) }

func (r *run) index() store.Index {
	x := store.Index{
		Labels: map[string]string{"app": fmt.Sprint("a", r.rand.IntN(3))},
		Fields: map[string]string{"node": fmt.Sprint("n", r.rand.IntN(4))},
		Flags:  uint32(r.rand.IntN(300)),
	}
	for range r.rand.IntN(3) {
		if uid := fmt.Sprint("u", r.rand.IntN(4)); !slices.Contains(x.Owners, uid) {
			x.Owners = append(x.Owners, uid)
		}
	}
	return x
}

// op is a random operation, more often possible than not.
func (r *run) op() store.Op {
	op := store.Op{Plane: store.Main, Resource: pick(r, resources), Key: r.key(), RevAt: -1}
	if r.rand.IntN(3) == 0 {
		op.Plane = pick(r, r.planes())
	}
	have := r.model.Planes[op.Plane].Get(op.Resource, op.Key)
	switch n := r.rand.IntN(20); {
	case n < 5:
		op.If = store.Any
	case n == 5:
		op.If = store.Absent
	case n == 6:
		op.If = store.At(1 + store.Revision(r.rand.Int64N(int64(r.model.Rev)+1)))
	case have != nil:
		op.If = store.At(have.Rev)
	default:
		op.If = store.Absent
	}
	if op.Delete = r.rand.IntN(4) == 0; op.Delete && r.rand.IntN(2) == 0 {
		return op
	}
	op.Value = fmt.Appendf(nil, `{"rev":"","step":%d,"pad":"%s"}`, r.step, strings.Repeat("x", r.rand.IntN(200)))
	op.RevAt = len(`{"rev":"`)
	op.Index = r.index()
	return op
}

func (r *run) commit(n int) { r.commitOps(r.ops(nil, n)) }

// commitAsserting commits one operation, and assertions about other objects
// around it.
func (r *run) commitAsserting(n int) {
	ops := r.ops(nil, n)
	for i := range ops {
		ops[i].Assert, ops[i].Delete, ops[i].Value, ops[i].RevAt, ops[i].Index = true, false, nil, -1, store.Index{}
	}
	ops = r.ops(ops, 1)
	if ops[len(ops)-1].Assert {
		return // what it would write is asserted already
	}
	last := r.rand.IntN(len(ops))
	ops[last], ops[len(ops)-1] = ops[len(ops)-1], ops[last]
	r.commitOps(ops)
}

// ops adds n random operations, but those on objects that are named already.
func (r *run) ops(ops []store.Op, n int) []store.Op {
	for range n {
		op := r.op()
		if !slices.ContainsFunc(ops, func(o store.Op) bool {
			return o.Plane == op.Plane && o.Resource == op.Resource && o.Key == op.Key
		}) {
			ops = append(ops, op)
		}
	}
	return ops
}

func (r *run) commitOps(ops []store.Op) {
	user := fmt.Sprint("user-", r.step)
	refused, have := r.model.Commit(user, ops)
	rev, err := r.real.Commit(r.Context(), store.Provenance{User: user}, ops...)
	if refused == nil {
		r.must(err)
		if rev != r.model.Rev || r.real.Current() != rev {
			r.Errorf("step %d: revision %d, current %d, want %d", r.step, rev, r.real.Current(), r.model.Rev)
		}
		return
	}
	conflict, is := errors.AsType[*store.ConflictError](err)
	switch {
	case !is:
		r.Errorf("step %d: got %v, want a conflict", r.step, err)
	case conflict.Key != refused.Key || conflict.Plane != refused.Plane || conflict.Resource != refused.Resource:
		r.Errorf("step %d: conflict is about %s", r.step, conflict.Key)
	default:
		r.sameObject(have, conflict.Have)
	}
}

func (r *run) now(plane string) *store.Snapshot {
	sn, err := r.real.Snapshot(plane)
	r.must(err)
	return sn
}

func (r *run) span() store.Range {
	var x store.Range
	if r.rand.IntN(2) == 0 {
		x.Prefix = fmt.Sprintf("ns%d/", r.rand.IntN(4))
	}
	if r.rand.IntN(3) == 0 {
		x.After = r.key()
	}
	switch r.rand.IntN(4) {
	case 0:
		x.Field, x.Value = "node", fmt.Sprint("n", r.rand.IntN(5))
	case 1:
		x.Owner = fmt.Sprint("u", r.rand.IntN(5))
	}
	return x
}

func (r *run) scan() {
	plane, resource, span := pick(r, r.planes()), pick(r, resources), r.span()
	sn := r.now(plane)
	if sn.Rev() != r.model.Rev {
		r.Errorf("step %d: snapshot at %d, want %d", r.step, sn.Rev(), r.model.Rev)
	}
	state := r.model.Planes[plane].Now(resource)
	r.same(state, sn.Scan(r.Context(), resource, span), span)
	if sn.Len(resource) != len(state) {
		r.Errorf("step %d: %d objects, want %d", r.step, sn.Len(resource), len(state))
	}
	key := r.key()
	got, err := sn.Get(r.Context(), resource, key)
	r.must(err)
	r.sameObject(state[key], got)
}

func (r *run) hold() {
	plane := pick(r, r.planes())
	h := held{snapshot: r.now(plane), state: map[string]map[string]*model.Object{}}
	for _, resource := range resources {
		h.state[resource] = r.model.Planes[plane].Now(resource)
	}
	if len(r.held) == maxHeld {
		r.held = r.held[1:]
	}
	r.held = append(r.held, h)
}

func (r *run) look() {
	if len(r.held) > 0 {
		h, resource, span := pick(r, r.held), pick(r, resources), r.span()
		r.same(h.state[resource], h.snapshot.Scan(r.Context(), resource, span), span)
	}
}

// mayBeCompacted says whether retention allows the past of a resource at a
// revision to be gone: the newest changes of a resource must be there.
func (r *run) mayBeCompacted(p *model.Plane, resource string, rev store.Revision) bool {
	for ; p != nil; p = p.Parent {
		own := &model.Plane{Changes: p.Changes}
		if len(own.Log(resource, rev, r.model.Rev)) >= retention-maxSet {
			return true
		}
	}
	return false
}

func (r *run) someRevision() store.Revision {
	if r.rand.IntN(2) == 0 {
		return max(1, r.model.Rev-store.Revision(r.rand.IntN(2000)))
	}
	return 1 + store.Revision(r.rand.Int64N(int64(r.model.Rev)+1))
}

func (r *run) past() {
	plane, resource, rev, span := pick(r, r.planes()), pick(r, resources), r.someRevision(), r.span()
	p := r.model.Planes[plane]
	sn, err := r.real.SnapshotAt(plane, rev)
	if rev > r.model.Rev {
		if !errors.Is(err, store.ErrFuture) {
			r.Errorf("step %d: revision %d of %d gives %v", r.step, rev, r.model.Rev, err)
		}
		return
	}
	r.must(err)
	for _, err := range sn.Scan(r.Context(), resource, span) {
		if errors.Is(err, store.ErrCompacted) && r.mayBeCompacted(p, resource, rev) {
			return
		}
		r.must(err)
	}
	var late error
	got := func(yield func(*store.Object, error) bool) {
		for o, err := range sn.Scan(r.Context(), resource, span) {
			if late = err; err != nil || !yield(o, nil) {
				return // compacted meanwhile
			}
		}
	}
	want := p.At(resource, rev)
	objects := collect(got)
	if late == nil {
		r.sameObjects(model.Select(want, span), objects)
	}
}

func collect(seq iter.Seq2[*store.Object, error]) []*store.Object {
	var got []*store.Object
	for o := range seq {
		got = append(got, o)
	}
	return got
}

func (r *run) changes() {
	plane, resource, after := pick(r, r.planes()), pick(r, resources), r.someRevision()-1
	p := r.model.Planes[plane]
	if after > r.model.Rev {
		return
	}
	want := p.Log(resource, after, r.model.Rev)
	i := 0
	for c, err := range r.real.Changes(r.Context(), plane, resource, after) {
		if errors.Is(err, store.ErrCompacted) && r.mayBeCompacted(p, resource, after) {
			return
		}
		r.must(err)
		if i == len(want) {
			r.Fatalf("step %d: change %d too many", r.step, c.Rev)
		}
		r.sameChange(want[i], c)
		i++
	}
	if i != len(want) {
		r.Errorf("step %d: %d changes, want %d", r.step, i, len(want))
	}
}

func (r *run) sameChange(want model.Change, got *store.Change) {
	r.Helper()
	if want.Rev != got.Rev || want.Deleted != got.Deleted {
		r.Errorf("step %d: change at %d (deleted %v), want %d (%v)", r.step, got.Rev, got.Deleted, want.Rev, want.Deleted)
	}
	r.sameObject(want.Old, got.Old)
	r.sameObject(want.New, got.New)
	p, err := got.Provenance()
	r.must(err)
	if p.User != want.User {
		r.Errorf("step %d: made by %q, want %q", r.step, p.User, want.User)
	}
}

func (r *run) history() {
	plane, resource, key := pick(r, r.planes()), pick(r, resources), r.key()
	p := r.model.Planes[plane]
	want := slices.DeleteFunc(p.Log(resource, 0, r.model.Rev), func(c model.Change) bool { return c.New.Key != key })
	var got []*store.Change
	for c, err := range r.real.History(r.Context(), plane, resource, key) {
		r.must(err)
		got = append(got, c)
	}
	if len(got) < len(want) {
		lost := want[len(want)-len(got)-1]
		next := want[len(want)-len(got):]
		// What is gone was replaced, or was a deletion, longer ago than the
		// newest changes reach. A fork's inheritance may have been replaced in
		// its parent.
		gone := lost.Rev - 1
		if !lost.Deleted && len(next) > 0 && p.Parent == nil {
			gone = next[0].Rev - 1
		}
		live := !lost.Deleted && len(next) == 0 && p.Parent == nil
		if live || !r.mayBeCompacted(p, resource, gone) {
			r.Errorf("step %d: history of %s lacks revision %d", r.step, key, lost.Rev)
			return
		}
		want = next
	}
	if len(got) != len(want) {
		r.Errorf("step %d: history of %s has %d changes, want %d", r.step, key, len(got), len(want))
		return
	}
	for i, c := range got {
		if c.Old == nil && i == 0 {
			want[i].Old = nil // compacted
		}
		r.sameChange(want[i], c)
	}
}

func (r *run) fork() {
	if len(r.model.Planes) > maxForks {
		return
	}
	from, at := pick(r, r.planes()), store.Revision(0)
	if r.rand.IntN(3) == 0 {
		at = min(r.someRevision(), r.model.Rev)
	}
	r.forks++
	name := fmt.Sprint("fork-", r.forks%7)
	_, exists := r.model.Planes[name]
	rev, err := r.real.Fork(r.Context(), name, from, at)
	p := r.model.Planes[from]
	switch {
	case errors.Is(err, store.ErrPlaneExists) && exists:
		return
	case errors.Is(err, store.ErrCompacted) && slices.ContainsFunc(resources, func(x string) bool { return r.mayBeCompacted(p, x, at) }):
		return
	case at == 0:
		at = r.model.Rev
	}
	r.must(err)
	if rev != at {
		r.Errorf("step %d: forked at %d, want %d", r.step, rev, at)
	}
	// A fork of what a plane was before it was forked itself is a fork of its
	// parent, by another name.
	r.model.Fork(name, p, at)
}

func (r *run) drop() {
	name := pick(r, r.planes())
	if name == store.Main {
		return
	}
	r.must(r.real.Drop(r.Context(), name))
	delete(r.model.Planes, name)
	for _, v := range r.views {
		v.lost = v.lost || v.options.Plane == name
	}
}

func (r *run) restart() {
	forks := len(r.model.Planes) > 1
	for _, v := range r.views {
		v.watcher.Close()
		v.lost = v.lost || v.options.Plane != store.Main
	}
	r.stop()
	r.held = nil
	r.open()
	current := r.real.Current()
	if current < r.model.Rev || !forks && r.forks == 0 && current != r.model.Rev {
		r.Errorf("step %d: current is %d after a restart, was %d", r.step, current, r.model.Rev)
	}
	r.model.Restart(current)
	r.views = slices.DeleteFunc(r.views, func(v *view) bool { return v.lost || !r.reopen(v) })
}

// same compares what a scan of the present yields with a state of the model.
func (r *run) same(want map[string]*model.Object, got iter.Seq2[*store.Object, error], span store.Range) {
	r.Helper()
	for _, err := range got {
		r.must(err)
	}
	r.sameObjects(model.Select(want, span), collect(got))
}

func (r *run) sameObjects(want []*model.Object, got []*store.Object) {
	r.Helper()
	if len(want) != len(got) {
		r.Errorf("step %d: %d objects, want %d", r.step, len(got), len(want))
		return
	}
	for i := range want {
		r.sameObject(want[i], got[i])
	}
}

func (r *run) sameObject(want *model.Object, got *store.Object) {
	r.Helper()
	if (want == nil) != (got == nil) {
		r.Errorf("step %d: object %+v, want %+v", r.step, got, want)
	}
	if want == nil || got == nil {
		return
	}
	have := &model.Object{
		Key: got.Key(), Rev: got.Rev, Create: got.Create, Value: string(got.Value()),
		Index: store.Index{
			Labels: collectMap(got.Labels()), Fields: collectMap(got.Fields()),
			Owners: slices.Collect(got.Owners()), Flags: got.Flags(),
		},
	}
	if have.Key == want.Key && have.Value == want.Value && have.Rev == want.Rev && have.Create == want.Create &&
		maps.Equal(have.Index.Labels, want.Index.Labels) && maps.Equal(have.Index.Fields, want.Index.Fields) &&
		slices.Equal(have.Index.Owners, want.Index.Owners) && have.Index.Flags == want.Index.Flags {
		return
	}
	r.Errorf("step %d: (-want +got)\n%s", r.step, cmp.Diff(want, have))
}

func collectMap(seq iter.Seq2[string, string]) map[string]string {
	m := maps.Collect(seq)
	if len(m) == 0 {
		return nil
	}
	return m
}
