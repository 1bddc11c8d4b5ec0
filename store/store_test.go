package store_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/memory"
)

// keep is an engine that outlives the store that closes it, so that a test can
// open a second store on it.
type keep struct{ engine.Engine }

func (keep) Close() error { return nil }

func open(t *testing.T, cfg store.Config) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), cfg)
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

// put is an operation that writes an object with a hole for its revision.
func put(key, body string, on store.Condition) store.Op {
	const head = `{"rev":"`
	return store.Op{
		Resource: "pods", Key: key, If: on,
		Value: []byte(head + `","body":"` + body + `"}`), RevAt: len(head),
	}
}

func assert(key string, on store.Condition) store.Op {
	return store.Op{Resource: "pods", Key: key, If: on, Assert: true}
}

func remove(key string, on store.Condition) store.Op {
	return store.Op{Resource: "pods", Key: key, If: on, Delete: true, RevAt: -1}
}

func in(plane string, op store.Op) store.Op {
	op.Plane = plane
	return op
}

func text(rev store.Revision, body string) string {
	return fmt.Sprintf(`{"rev":"%d","body":"%s"}`, rev, body)
}

func commit(t *testing.T, s *store.Store, ops ...store.Op) store.Revision {
	t.Helper()
	rev, err := s.Commit(t.Context(), store.Provenance{User: "tester"}, ops...)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func snapshot(t *testing.T, s *store.Store, plane string) *store.Snapshot {
	t.Helper()
	sn, err := s.Snapshot(plane)
	if err != nil {
		t.Fatal(err)
	}
	return sn
}

// values gathers what a scan yields.
func values(t *testing.T, seq iter.Seq2[*store.Object, error]) []string {
	t.Helper()
	var got []string
	for o, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, o.Key()+"="+string(o.Value()))
	}
	return got
}

func list(t *testing.T, sn *store.Snapshot) []string {
	t.Helper()
	return values(t, sn.Scan(t.Context(), "pods", store.Range{}))
}

func same(t *testing.T, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestCommitFillsInTheRevision(t *testing.T) {
	s := open(t, store.Config{})
	a := commit(t, s, put("ns/a", "1", store.Absent))
	b := commit(t, s, put("ns/a", "2", store.At(a)), put("ns/b", "3", store.Absent))
	same(t, store.Revision(1), a)
	same(t, store.Revision(2), b)
	sn := snapshot(t, s, store.Main)
	same(t, b, sn.Rev())
	same(t, b, s.Current())
	same(t, []string{"ns/a=" + text(b, "2"), "ns/b=" + text(b, "3")}, list(t, sn))
	o, err := sn.Get(t.Context(), "pods", "ns/a")
	if err != nil {
		t.Fatal(err)
	}
	same(t, a, o.Create)
	same(t, b, o.Rev)
	same(t, 2, sn.Len("pods"))
}

func TestConditions(t *testing.T) {
	s := open(t, store.Config{})
	rev := commit(t, s, put("have", "x", store.Absent))
	for _, c := range []struct {
		name string
		op   store.Op
		ok   bool
	}{
		{"create what is there", put("have", "y", store.Absent), false},
		{"update at another revision", put("have", "y", store.At(rev+7)), false},
		{"update what is not there", put("none", "y", store.At(rev)), false},
		{"delete what is not there", remove("none", store.Any), false},
		{"delete what is not there, expected absent", remove("none", store.Absent), false},
		{"delete at another revision", remove("have", store.At(rev+1)), false},
		{"update at its revision", put("have", "y", store.At(rev)), true},
		{"overwrite", put("have", "z", store.Any), true},
		{"write new", put("new", "z", store.Any), true},
		{"delete", remove("new", store.Any), true},
		{"assert that what is not there is", assert("none", store.Any), false},
		{"assert a revision of what is not there", assert("none", store.At(rev)), false},
		{"assert that it is not there", assert("none", store.Absent), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.Current()
			_, err := s.Commit(t.Context(), store.Provenance{}, put("other/"+c.name, "o", store.Any), c.op)
			if c.ok {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			conflict, is := errors.AsType[*store.ConflictError](err)
			if !is {
				t.Fatalf("got %v, want a conflict", err)
			}
			if has := conflict.Have != nil; has != (c.op.Key == "have") {
				t.Errorf("conflict carries an object: %v", has)
			}
			if conflict.Have != nil {
				same(t, text(rev, "x"), string(conflict.Have.Value()))
			}
			same(t, before, s.Current())
			if o, _ := snapshot(t, s, store.Main).Get(t.Context(), "pods", "other/"+c.name); o != nil {
				t.Error("part of a refused commit happened")
			}
		})
	}
}

func TestAssertions(t *testing.T) {
	s := open(t, store.Config{})
	first := commit(t, s, put("asserted", "x", store.Absent))
	if _, err := s.Fork(t.Context(), "dev", store.Main, 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		op   store.Op
		ok   bool
	}{
		{"at its revision", assert("asserted", store.At(first)), true},
		{"at another revision", assert("asserted", store.At(first+1)), false},
		{"there", assert("asserted", store.Any), true},
		{"not there", assert("asserted", store.Absent), false},
		{"in another plane", in("dev", assert("asserted", store.At(first))), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.Current()
			// Named first, the operation is still checked last.
			_, err := s.Commit(t.Context(), store.Provenance{}, put("other", "o", store.Any), c.op)
			if conflict, is := errors.AsType[*store.ConflictError](err); is == c.ok || is && conflict.Key != "asserted" {
				t.Fatalf("got %v", err)
			}
			if (s.Current() == before+1) != c.ok {
				t.Errorf("revision %d after %d", s.Current(), before)
			}
		})
	}
	var revs []store.Revision
	for c, err := range s.History(t.Context(), store.Main, "pods", "asserted") {
		if err != nil {
			t.Fatal(err)
		}
		revs = append(revs, c.Rev)
	}
	same(t, []store.Revision{first}, revs)
	got, err := changes(t, s, store.Main, first)
	if err != nil {
		t.Fatal(err)
	}
	same(t, 3, len(got)) // none of them of the asserted object
	_, err = s.Commit(t.Context(), store.Provenance{}, remove("none", store.Any), assert("asserted", store.Absent))
	if conflict, _ := errors.AsType[*store.ConflictError](err); conflict == nil || conflict.Key != "asserted" {
		t.Errorf("got %v, want the assertion to be checked first", err)
	}
}

func TestInvalidRequests(t *testing.T) {
	s := open(t, store.Config{})
	for name, ops := range map[string][]store.Op{
		"no operation":           {},
		"assertions alone":       {assert("a", store.Absent)},
		"assertion of a value":   {put("b", "1", store.Any), {Resource: "pods", Key: "a", Assert: true, Value: []byte("x")}},
		"assertion that removes": {put("b", "1", store.Any), {Resource: "pods", Key: "a", Assert: true, Delete: true}},
		"written and asserted":   {put("a", "1", store.Any), assert("a", store.Absent)},
		"object named twice":     {put("a", "1", store.Any), remove("a", store.Any)},
		"empty key":              {put("", "1", store.Any)},
		"NUL in the key":         {put("a\x00b", "1", store.Any)},
		"key too long":           {put(strings.Repeat("k", 5000), "1", store.Any)},
		"no resource":            {{Key: "a", Value: []byte("x")}},
		"no value":               {{Resource: "pods", Key: "a", RevAt: -1}},
		"revision outside":       {{Resource: "pods", Key: "a", Value: []byte("x"), RevAt: 2}},
		"NUL in the field name":  {{Resource: "pods", Key: "a", Value: []byte("x"), Index: store.Index{Fields: map[string]string{"a\x00": "b"}}}},
		"owner twice":            {{Resource: "pods", Key: "a", Value: []byte("x"), Index: store.Index{Owners: []string{"u", "u"}}}},
		"negative revision":      {put("a", "1", store.At(-1))},
		"too many operations":    slices.Repeat([]store.Op{put("a", "1", store.Any)}, 10_001),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := s.Commit(t.Context(), store.Provenance{}, ops...); !errors.Is(err, store.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		})
	}
	if _, err := s.Commit(t.Context(), store.Provenance{}, in("nowhere", put("a", "1", store.Any))); !errors.Is(err, store.ErrNoPlane) {
		t.Errorf("got %v, want ErrNoPlane", err)
	}
	same(t, store.Revision(0), s.Current())
}

func TestScanRanges(t *testing.T) {
	s := open(t, store.Config{})
	node := map[string]string{"a/1": "n1", "a/2": "n2", "b/1": "n1", "b/2": "n2", "b/3": "n1", "c": "n1"}
	for _, key := range slices.Sorted(maps.Keys(node)) {
		op := put(key, "", store.Absent)
		op.Index = store.Index{
			Labels: map[string]string{"app": "web", "tier": key[:1]},
			Fields: map[string]string{"spec.nodeName": node[key], "status.phase": "Running"},
			Owners: []string{"owner-of-" + key[:1], "everyone"},
			Flags:  7,
		}
		commit(t, s, op)
	}
	commit(t, s, func() store.Op { // moves from n1 to n2
		op := put("b/3", "", store.Any)
		op.Index.Fields = map[string]string{"spec.nodeName": "n2"}
		return op
	}())
	commit(t, s, remove("c", store.Any))
	for _, c := range []struct {
		name string
		r    store.Range
		want string
	}{
		{"all", store.Range{}, "a/1 a/2 b/1 b/2 b/3"},
		{"namespace", store.Range{Prefix: "b/"}, "b/1 b/2 b/3"},
		{"page", store.Range{After: "a/2"}, "b/1 b/2 b/3"},
		{"page of a namespace", store.Range{Prefix: "b/", After: "b/1"}, "b/2 b/3"},
		{"page from another namespace", store.Range{Prefix: "b/", After: "a/9"}, "b/1 b/2 b/3"},
		{"page behind the namespace", store.Range{Prefix: "a/", After: "b/1"}, ""},
		{"field", store.Range{Field: "spec.nodeName", Value: "n1"}, "a/1 b/1"},
		{"field and namespace", store.Range{Prefix: "b/", Field: "spec.nodeName", Value: "n2"}, "b/2 b/3"},
		{"field page", store.Range{Field: "spec.nodeName", Value: "n2", After: "a/2"}, "b/2 b/3"},
		{"field value that is a prefix", store.Range{Field: "spec.nodeName", Value: "n"}, ""},
		{"owner", store.Range{Owner: "owner-of-b"}, "b/1 b/2"},
		{"owner and namespace", store.Range{Owner: "everyone", Prefix: "a/"}, "a/1 a/2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := snapshot(t, s, store.Main)
			commit(t, s, in(store.Main, store.Op{Resource: "other", Key: "x", Value: []byte("{}"), RevAt: -1}))
			past, err := s.SnapshotAt(store.Main, now.Rev())
			if err != nil {
				t.Fatal(err)
			}
			for _, sn := range []*store.Snapshot{now, past} {
				var keys []string
				for o, err := range sn.Scan(t.Context(), "pods", c.r) {
					if err != nil {
						t.Fatal(err)
					}
					keys = append(keys, o.Key())
				}
				same(t, c.want, strings.Join(keys, " "))
				if n, known := sn.Count("pods", c.r); known {
					same(t, len(keys), n)
				}
			}
		})
	}
	o, _ := snapshot(t, s, store.Main).Get(t.Context(), "pods", "a/2")
	same(t, map[string]string{"app": "web", "tier": "a"}, maps.Collect(o.Labels()))
	same(t, map[string]string{"spec.nodeName": "n2", "status.phase": "Running"}, maps.Collect(o.Fields()))
	same(t, []string{"owner-of-a", "everyone"}, slices.Collect(o.Owners()))
	same(t, uint32(7), o.Flags())
	if v, ok := o.Label("tier"); v != "a" || !ok {
		t.Errorf("label tier: %q, %v", v, ok)
	}
	if v, ok := o.Field("status.phase"); v != "Running" || !ok {
		t.Errorf("field status.phase: %q, %v", v, ok)
	}
	if _, ok := o.Field("tier"); ok {
		t.Error("a label is found as a field")
	}
}

func TestCounts(t *testing.T) {
	kept := keep{memory.New()}
	s := open(t, store.Config{Engine: kept})
	for i := range 1000 {
		op := put(fmt.Sprintf("%c/%03d", 'a'+i%7, i), "", store.Any)
		if i%10 == 0 {
			op.Index.Flags = store.Marked | 1
		}
		commit(t, s, op)
	}
	for i := range 20 { // half of them marked
		commit(t, s, remove(fmt.Sprintf("%c/%03d", 'a'+i*5%7, i*5), store.Any))
	}
	commit(t, s, put("a/210", "", store.Any)) // was marked
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, store.Config{Engine: kept})
	for _, sn := range []*store.Snapshot{snapshot(t, s, store.Main), snapshot(t, again, store.Main)} {
		if n, known := sn.CountMarked("pods"); n != 89 || !known {
			t.Errorf("%d are marked, %v", n, known)
		}
		for _, r := range []store.Range{{}, {Prefix: "a/"}, {Prefix: "c/"}, {Prefix: "g/"}, {Prefix: "d/", After: "d/500"}, {After: "c/9"}, {Prefix: "b/", After: "c/"}, {Prefix: "x"}} {
			var want, got []string
			for _, line := range list(t, sn) {
				if key, _, _ := strings.Cut(line, "="); strings.HasPrefix(key, r.Prefix) && key > r.After {
					want = append(want, key)
				}
			}
			for o := range sn.Scan(t.Context(), "pods", r) {
				got = append(got, o.Key())
			}
			same(t, want, got)
			if n, known := sn.Count("pods", r); n != len(want) || !known {
				t.Errorf("%+v: %d are counted, %v; there are %d", r, n, known, len(want))
			}
		}
	}
	if n, known := snapshot(t, again, store.Main).CountMarked("nothing"); n != 0 || !known {
		t.Errorf("%d are marked of nothing, %v", n, known)
	}
	past, err := again.SnapshotAt(store.Main, 500)
	if err != nil {
		t.Fatal(err)
	}
	if _, known := past.Count("pods", store.Range{}); known {
		t.Error("a snapshot of the past counts")
	}
	if _, known := past.CountMarked("pods"); known {
		t.Error("a snapshot of the past counts what is marked")
	}
}

func TestSnapshotsHold(t *testing.T) {
	s := open(t, store.Config{})
	var held []*store.Snapshot
	for i := range 300 {
		commit(t, s, put(fmt.Sprintf("k%03d", i*7%100), fmt.Sprint(i), store.Any))
		held = append(held, snapshot(t, s, store.Main))
	}
	for i := range 100 {
		commit(t, s, remove(fmt.Sprintf("k%03d", i), store.Any))
	}
	for i, sn := range held {
		past, err := s.SnapshotAt(store.Main, sn.Rev())
		if err != nil {
			t.Fatal(err)
		}
		want := list(t, past)
		same(t, want, list(t, sn))
		same(t, min(i+1, 100), sn.Len("pods"))
	}
}

func TestHistory(t *testing.T) {
	s := open(t, store.Config{})
	p := store.Provenance{
		User: "ann", Impersonator: "root", UserAgent: "kubectl/1.36", FieldManager: "kubectl-edit", Verb: "update",
		RequestID: "r-1", Admission: []string{"limits", "sidecar"}, Cause: 1, Transaction: "t",
	}
	a := commit(t, s, put("x", "1", store.Absent))
	b, err := s.Commit(t.Context(), p, put("x", "2", store.At(a)))
	if err != nil {
		t.Fatal(err)
	}
	c := commit(t, s, remove("x", store.Any))
	d := commit(t, s, put("x", "3", store.Absent))
	var got []string
	for change, err := range s.History(t.Context(), store.Main, "pods", "x") {
		if err != nil {
			t.Fatal(err)
		}
		old := "-"
		if change.Old != nil {
			old = string(change.Old.Value())
		}
		got = append(got, fmt.Sprintf("%d %d %v %s %s", change.Rev, change.Prev, change.Deleted, old, change.New.Value()))
		if change.Rev == b {
			have, err := change.Provenance()
			if err != nil {
				t.Fatal(err)
			}
			if age := time.Since(have.Time); age < 0 || age > time.Minute {
				t.Errorf("made %v ago", age)
			}
			have.Time = time.Time{}
			same(t, p, have)
		}
	}
	same(t, []string{
		fmt.Sprintf("%d 0 false - %s", a, text(a, "1")),
		fmt.Sprintf("%d %d false %s %s", b, a, text(a, "1"), text(b, "2")),
		fmt.Sprintf("%d %d true %s %s", c, b, text(b, "2"), text(c, "2")),
		fmt.Sprintf("%d 0 false - %s", d, text(d, "3")),
	}, got)
}

func TestDeleteWithALastState(t *testing.T) {
	s := open(t, store.Config{})
	commit(t, s, put("x", "1", store.Absent))
	op := put("x", "final", store.Any)
	op.Delete = true
	rev := commit(t, s, op)
	for c, err := range s.Changes(t.Context(), store.Main, "pods", rev-1) {
		if err != nil {
			t.Fatal(err)
		}
		same(t, text(rev, "final"), string(c.New.Value()))
		same(t, text(rev, "1"), string(c.LastValue()))
	}
	same(t, []string(nil), list(t, snapshot(t, s, store.Main)))
}

// changes gathers the log after a revision as lines.
func changes(t *testing.T, s *store.Store, plane string, after store.Revision) ([]string, error) {
	t.Helper()
	var got []string
	for c, err := range s.Changes(t.Context(), plane, "pods", after) {
		if err != nil {
			return got, err
		}
		same(t, plane, c.Plane)
		got = append(got, fmt.Sprintf("%d %s %v", c.Rev, c.Key(), c.Deleted))
	}
	return got, nil
}

func TestForks(t *testing.T) {
	s := open(t, store.Config{})
	ctx := t.Context()
	a := commit(t, s, put("x", "1", store.Absent))
	b := commit(t, s, put("y", "1", store.Absent))
	if rev, err := s.Fork(ctx, "dev", store.Main, 0); err != nil || rev != b {
		t.Fatal(rev, err)
	}
	if _, err := s.Fork(ctx, "dev", store.Main, 0); !errors.Is(err, store.ErrPlaneExists) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Fork(ctx, "other", "nowhere", 0); !errors.Is(err, store.ErrNoPlane) {
		t.Errorf("got %v", err)
	}
	c := commit(t, s, in("dev", put("x", "dev", store.At(a))))
	d := commit(t, s, put("x", "main", store.At(a)))
	e := commit(t, s, in("dev", remove("y", store.At(b))))
	same(t, []store.Revision{b + 1, b + 2, b + 3}, []store.Revision{c, d, e})
	same(t, []string{"x=" + text(c, "dev")}, list(t, snapshot(t, s, "dev")))
	same(t, []string{"x=" + text(d, "main"), "y=" + text(b, "1")}, list(t, snapshot(t, s, store.Main)))

	if rev, err := s.Fork(ctx, "old", store.Main, a); err != nil || rev != a {
		t.Fatal(rev, err)
	}
	same(t, []string{"x=" + text(a, "1")}, list(t, snapshot(t, s, "old")))
	if _, err := s.Fork(ctx, "child", "dev", 0); err != nil {
		t.Fatal(err)
	}
	f := commit(t, s, in("child", put("z", "c", store.Absent)))

	for at, want := range map[store.Revision][]string{
		a: {"x=" + text(a, "1")},
		b: {"x=" + text(a, "1"), "y=" + text(b, "1")},
		c: {"x=" + text(c, "dev"), "y=" + text(b, "1")},
		d: {"x=" + text(c, "dev"), "y=" + text(b, "1")},
		e: {"x=" + text(c, "dev")},
		f: {"x=" + text(c, "dev"), "z=" + text(f, "c")},
	} {
		sn, err := s.SnapshotAt("child", at)
		if err != nil {
			t.Fatal(err)
		}
		same(t, want, list(t, sn))
	}
	got, err := changes(t, s, "child", a)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprint(b, " y false"), fmt.Sprint(c, " x false"), fmt.Sprint(e, " y true"), fmt.Sprint(f, " z false")}
	same(t, want, got)

	if err := s.Drop(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	if got, err = changes(t, s, "child", a); err != nil {
		t.Fatal(err)
	}
	same(t, want, got)
	if _, err := s.Snapshot("dev"); !errors.Is(err, store.ErrNoPlane) {
		t.Errorf("got %v", err)
	}
	if err := s.Drop(ctx, "dev"); !errors.Is(err, store.ErrNoPlane) {
		t.Errorf("got %v", err)
	}
	if err := s.Drop(ctx, store.Main); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	same(t, []store.PlaneInfo{
		{Name: "child", Parent: "dev", Forked: e}, {Name: "main"}, {Name: "old", Parent: "main", Forked: a},
	}, s.Planes())
}

// A fork made in the same commit group as writes around it shares exactly the
// writes before it.
func TestForkAmongWrites(t *testing.T) {
	s := open(t, store.Config{})
	ctx := t.Context()
	commit(t, s, put("first", "", store.Absent))
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				if _, err := s.Commit(ctx, store.Provenance{}, put(fmt.Sprintf("%d/%d", w, i), "", store.Absent)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	forked := map[string]store.Revision{}
	for i := range 40 {
		name := fmt.Sprint("f", i)
		rev, err := s.Fork(ctx, name, store.Main, 0)
		if err != nil {
			t.Fatal(err)
		}
		forked[name] = rev
	}
	wg.Wait()
	for name, rev := range forked {
		past, err := s.SnapshotAt(store.Main, rev)
		if err != nil {
			t.Fatal(err)
		}
		same(t, list(t, past), list(t, snapshot(t, s, name)))
	}
}

func TestRevisionsOfForksAreNotReusedAfterARestart(t *testing.T) {
	e := keep{memory.New()}
	s, err := store.Open(t.Context(), store.Config{Engine: e})
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, put("x", "1", store.Absent))
	if _, err := s.Fork(t.Context(), "dev", store.Main, 0); err != nil {
		t.Fatal(err)
	}
	var last store.Revision
	for range 20 {
		last = commit(t, s, in("dev", put("x", "2", store.Any)))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, store.Config{Engine: e})
	if s.Current() < last {
		t.Errorf("current is %d after a restart, %d was handed out", s.Current(), last)
	}
	same(t, []string{"x=" + text(1, "1")}, list(t, snapshot(t, s, store.Main)))
	if rev := commit(t, s, put("x", "3", store.At(1))); rev <= last {
		t.Errorf("revision %d is used again", rev)
	}
}

func TestRetention(t *testing.T) {
	for _, c := range []struct {
		name      string
		retention store.Retention
	}{
		{"by count", store.Retention{Changes: 50}},
		{"by age", store.Retention{Age: time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, store.Config{
				Retention:    func(string) store.Retention { return c.retention },
				CompactEvery: time.Millisecond,
			})
			commit(t, s, put("still", "here", store.Absent))
			for i := range 500 {
				commit(t, s, put("x", fmt.Sprint(i), store.Any))
			}
			deadline := time.Now().Add(2 * time.Minute)
			for {
				_, err := changes(t, s, store.Main, 300)
				if errors.Is(err, store.ErrCompacted) {
					break
				}
				if err != nil || time.Now().After(deadline) {
					t.Fatalf("nothing was dropped: %v", err)
				}
				time.Sleep(time.Millisecond)
			}
			if _, err := changes(t, s, store.Main, s.Current()); err != nil {
				t.Error(err)
			}
			past, err := s.SnapshotAt(store.Main, 10)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := past.Get(t.Context(), "pods", "x"); !errors.Is(err, store.ErrCompacted) {
				t.Errorf("the past gives %v", err)
			}
			same(t, []string{"still=" + text(1, "here"), "x=" + text(501, "499")}, list(t, snapshot(t, s, store.Main)))
			var revs []store.Revision
			for change, err := range s.History(t.Context(), store.Main, "pods", "still") {
				if err != nil {
					t.Fatal(err)
				}
				revs = append(revs, change.Rev)
			}
			same(t, []store.Revision{1}, revs)
		})
	}
}

// A fork's history begins behind what is compacted, it has no hole: what the
// fork has of its parent goes with the first change of its own.
func TestForkHistoryBeginsBehindWhatIsCompacted(t *testing.T) {
	for _, test := range []struct {
		name string
		main []store.Op
		dev  []store.Op
		want int // of the changes in dev, from the last
	}{
		{"replaced", []store.Op{put("x", "main", store.Absent)}, []store.Op{remove("x", store.Any), put("x", "dev", store.Absent)}, 1},
		{"gone", []store.Op{put("x", "main", store.Absent)}, []store.Op{remove("x", store.Any)}, 0},
		{"come and gone", []store.Op{put("x", "main", store.Absent), remove("x", store.Any)}, []store.Op{put("x", "dev", store.Absent), remove("x", store.Any)}, 0},
		{"come, gone and come", []store.Op{put("x", "main", store.Absent), remove("x", store.Any)}, []store.Op{put("x", "dev", store.Absent), remove("x", store.Any), put("x", "dev", store.Absent)}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, store.Config{
				Retention:    func(string) store.Retention { return store.Retention{Changes: 3} },
				CompactEvery: time.Millisecond,
			})
			for _, op := range test.main {
				commit(t, s, op)
			}
			if _, err := s.Fork(t.Context(), "dev", store.Main, 0); err != nil {
				t.Fatal(err)
			}
			var revs []store.Revision
			for _, op := range test.dev {
				revs = append(revs, commit(t, s, in("dev", op)))
			}
			want := revs[len(revs)-test.want:]
			for i := range 20 {
				commit(t, s, in("dev", put("y", fmt.Sprint(i), store.Any)))
			}
			deadline := time.Now().Add(2 * time.Minute)
			for {
				var got []store.Revision
				for c, err := range s.History(t.Context(), "dev", "pods", "x") {
					if err != nil {
						t.Fatal(err)
					}
					if c.Rev == revs[len(revs)-1] && c.Old != nil && test.want == 1 {
						t.Fatal("the version before the deletion is given as replaced")
					}
					got = append(got, c.Rev)
				}
				if slices.Equal(got, want) {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("history is %v, want %v", got, want)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
}

func TestFuture(t *testing.T) {
	s := open(t, store.Config{})
	if _, err := s.SnapshotAt(store.Main, 1); !errors.Is(err, store.ErrFuture) {
		t.Errorf("got %v", err)
	}
	if _, err := changes(t, s, store.Main, 1); !errors.Is(err, store.ErrFuture) {
		t.Errorf("got %v", err)
	}
}

func TestFeedMissesNothing(t *testing.T) {
	s := open(t, store.Config{})
	const writers, each = 8, 200
	commit(t, s, put("before", "", store.Any))
	feed, rev := s.Feed()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range each {
				if _, err := s.Commit(t.Context(), store.Provenance{}, put(fmt.Sprint(w), "", store.Any)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for rev < writers*each+1 {
		batch, err := feed.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range batch.Changes {
			if c.Rev != rev+1 {
				t.Fatalf("revision %d follows %d", c.Rev, rev)
			}
			rev = c.Rev
		}
		if batch.Rev != rev || s.Current() < rev {
			t.Fatalf("batch ends at %d, last change at %d, current %d", batch.Rev, rev, s.Current())
		}
	}
	wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := feed.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// What Current returned, every later snapshot shows.
func TestReadsDoNotGoBack(t *testing.T) {
	s := open(t, store.Config{})
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				current := s.Current()
				sn, err := s.Snapshot(store.Main)
				if err != nil {
					t.Error(err)
					return
				}
				o, _ := sn.Get(context.Background(), "pods", "x")
				if sn.Rev() < current || o != nil && o.Rev != sn.Rev() {
					t.Errorf("snapshot at %d with x at %d, current was %d", sn.Rev(), o.Rev, current)
					return
				}
			}
		})
	}
	for range 2000 {
		commit(t, s, put("x", "", store.Any))
	}
	close(done)
	wg.Wait()
}

func TestClose(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for {
				_, err := s.Commit(t.Context(), store.Provenance{}, put(fmt.Sprint(w), "", store.Any))
				if errors.Is(err, store.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	time.Sleep(10 * time.Millisecond)
	sn := snapshot(t, s, store.Main)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	same(t, sn.Len("pods"), len(list(t, sn)))
}

func TestCommitWithAnEndedContext(t *testing.T) {
	s := open(t, store.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	happened := 0
	for range 200 {
		rev, err := s.Commit(ctx, store.Provenance{}, put("x", "", store.Any))
		switch {
		case err == nil && rev > 0:
			happened++
		case !errors.Is(err, context.Canceled):
			t.Fatalf("got %v", err)
		}
	}
	commit(t, s, put("x", "", store.Any))
	same(t, store.Revision(happened+1), s.Current())
}
