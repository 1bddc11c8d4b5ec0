package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"setpoint.dev/setpoint/store/engine"
)

var (
	pods  = engine.Table{Plane: "main", Resource: "pods"}
	nodes = engine.Table{Plane: "main", Resource: "nodes"}
	fork  = engine.Table{Plane: "fork", Resource: "pods"}
)

// subject is an engine under test beside the model it should agree with.
type subject struct {
	t      *testing.T
	open   func(t *testing.T, dir string) engine.Engine
	dir    string
	engine engine.Engine
	model  *model
	closed bool
}

func newSubject(t *testing.T, open func(t *testing.T, dir string) engine.Engine) *subject {
	t.Helper()
	s := &subject{t: t, open: open, dir: t.TempDir(), model: newModel()}
	s.engine = open(t, s.dir)
	t.Cleanup(s.close)
	return s
}

// close closes the engine; a second call does nothing.
func (s *subject) close() {
	s.t.Helper()
	if s.closed {
		return
	}
	s.closed = true
	if err := s.engine.Close(); err != nil {
		s.t.Errorf("Close: %v", err)
	}
}

// reopen closes the engine and opens one on what it left.
func (s *subject) reopen() {
	s.t.Helper()
	s.close()
	s.engine = s.open(s.t, s.dir)
	s.closed = false
	// Whatever was reserved may have been handed out.
	s.model.last = s.model.current()
}

// write is what a transaction of the suite does to one object.
type write struct {
	table  engine.Table
	key    string
	delete bool
}

func put(t engine.Table, key string) write { return write{table: t, key: key} }
func del(t engine.Table, key string) write { return write{table: t, key: key, delete: true} }

// puts writes several objects of a table.
func puts(t engine.Table, keys ...string) []write {
	var ws []write
	for _, key := range keys {
		ws = append(ws, put(t, key))
	}
	return ws
}

// txn makes the transaction after the last, without committing it. Its
// changes refer to the versions they replace, and each value carries the text
// of its revision; times rise with every other revision.
func (s *subject) txn(ws ...write) engine.Txn {
	rev := s.model.last + 1
	txn := engine.Txn{
		Rev:        rev,
		Time:       1_700_000_000_000 + int64(rev)/2,
		Provenance: fmt.Appendf(nil, "because of %d", rev-1),
	}
	for _, w := range ws {
		c := engine.Change{
			Plane: w.table.Plane, Resource: w.table.Resource, Key: w.key,
			Create: rev, Delete: w.delete,
		}
		if old, ok := s.model.live(w.table, w.key); ok {
			c.Prev, c.Create = old.Rev, old.Create
		}
		c.Value, c.RevAt = object(rev, w.key)
		c.Index = fmt.Appendf(nil, "index of %.20q at %d", w.key, rev)
		txn.Changes = append(txn.Changes, c)
	}
	return txn
}

// object makes a value and says where in it the revision's text is.
func object(rev engine.Revision, key string) ([]byte, int) {
	const head = `{"revision":"`
	return fmt.Appendf(nil, head+`%d","key":%.40q}`, rev, key), len(head)
}

// commit commits a group with a transaction for each list of writes.
func (s *subject) commit(txns ...[]write) {
	s.t.Helper()
	var group []engine.Txn
	for _, ws := range txns {
		txn := s.txn(ws...)
		s.model.commit(txn)
		group = append(group, txn)
	}
	if err := s.engine.Commit(s.t.Context(), group, 0); err != nil {
		s.t.Fatalf("Commit: %v", err)
	}
}

// commitTxn commits a transaction made by hand.
func (s *subject) commitTxn(txn engine.Txn) {
	s.t.Helper()
	s.model.commit(txn)
	if err := s.engine.Commit(s.t.Context(), []engine.Txn{txn}, 0); err != nil {
		s.t.Fatalf("Commit: %v", err)
	}
}

func (s *subject) reserve(rev engine.Revision) {
	s.t.Helper()
	s.model.reserve(rev)
	if err := s.engine.Commit(s.t.Context(), nil, rev); err != nil {
		s.t.Fatalf("Commit with reserve %d: %v", rev, err)
	}
}

func (s *subject) compact(t engine.Table, upTo engine.Revision) {
	s.t.Helper()
	s.model.compact(t, upTo)
	if err := s.engine.Compact(s.t.Context(), t, upTo); err != nil {
		s.t.Fatalf("Compact %v up to %d: %v", t, upTo, err)
	}
}

func (s *subject) drop(plane string) {
	s.t.Helper()
	s.model.drop(plane)
	if err := s.engine.Drop(s.t.Context(), plane); err != nil {
		s.t.Fatalf("Drop %q: %v", plane, err)
	}
}

// check compares engine and model in all that can be asked of them. Where
// there is very much to ask, it asks at even distances, wider ones in a short
// run.
func (s *subject) check() {
	s.t.Helper()
	places := 20
	if testing.Short() {
		places = 5
	}
	s.checkCurrent()
	s.checkTables()
	s.checkLoad()
	for t, floor := range s.model.listed() {
		s.checkScan(t, "", "", 0)
		revs := []engine.Revision{floor - 1, floor, floor + 1, s.model.last, s.model.last + 1}
		step := max(1, (s.model.last-floor)/engine.Revision(places))
		for rev := floor + 1; rev < s.model.last; rev += step {
			revs = append(revs, rev)
		}
		for _, rev := range revs {
			if rev >= 0 {
				s.checkScan(t, "", "", rev)
				s.checkLog(t, rev)
			}
		}
		keys := s.model.keys(t)
		for i := 0; i < len(keys); i += max(1, len(keys)/(2*places)) {
			s.checkVersions(t, keys[i])
			versions := s.model.retained(t, keys[i])
			for j := 0; j < len(versions); j += max(1, len(versions)/places) {
				s.checkGet(t, keys[i], versions[j].Rev)
				s.checkGet(t, keys[i], versions[j].Rev-1)
				s.checkGet(t, keys[i], versions[j].Rev+1)
			}
		}
	}
}

func (s *subject) checkCurrent() {
	s.t.Helper()
	if got, want := s.engine.Current(), s.model.current(); got != want {
		s.t.Errorf("Current is %d, want %d", got, want)
	}
}

func (s *subject) checkTables() {
	s.t.Helper()
	got, err := s.engine.Tables(s.t.Context())
	s.compare("Tables", s.model.listed(), nil, got, err)
}

func (s *subject) checkScan(t engine.Table, from, to string, at engine.Revision) {
	s.t.Helper()
	want, wantErr := s.model.scan(t, from, to, at)
	got, err := collect(s.t, s.engine.Scan(s.t.Context(), t, from, to, at))
	s.compare(fmt.Sprintf("Scan %q from %.20q to %.20q at %d", t, from, to, at), want, wantErr, got, err)
}

func (s *subject) checkVersions(t engine.Table, key string) {
	s.t.Helper()
	got, err := collect(s.t, s.engine.Versions(s.t.Context(), t, key))
	s.compare(fmt.Sprintf("Versions %q %.20q", t, key), s.model.retained(t, key), nil, got, err)
}

func (s *subject) checkGet(t engine.Table, key string, rev engine.Revision) {
	s.t.Helper()
	want, wantErr := s.model.get(t, key, rev)
	got, err := s.engine.Get(s.t.Context(), t, key, rev)
	if wantErr != nil {
		got = want // nothing is promised about it
	}
	s.compare(fmt.Sprintf("Get %q %.20q at %d", t, key, rev), want, wantErr, got, err)
}

func (s *subject) checkLog(t engine.Table, after engine.Revision) {
	s.t.Helper()
	want, wantErr := s.model.log(t, after)
	got, err := collect(s.t, s.engine.Log(s.t.Context(), t, after))
	s.compare(fmt.Sprintf("Log %q after %d", t, after), want, wantErr, got, err)
}

func (s *subject) checkLoad() {
	s.t.Helper()
	got, err := load(s.t.Context(), s.engine, nil)
	s.compare("Load", s.model.load(), nil, got, err)
}

func (s *subject) compare(what string, want any, wantErr error, got any, err error) {
	s.t.Helper()
	if !errors.Is(err, wantErr) {
		s.t.Errorf("%s: error %v, want %v", what, err, wantErr)
		return
	}
	if d := diff(want, got); d != "" {
		s.t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// diff compares answers. No bytes are no bytes, nil or empty.
func diff(want, got any) string {
	// Nearly all answers are right and many are long, so the comparison that
	// can explain itself is kept for the others.
	switch want := want.(type) {
	case engine.Version:
		if same(want, got.(engine.Version)) {
			return ""
		}
	case []engine.Version:
		if slices.EqualFunc(want, got.([]engine.Version), same) {
			return ""
		}
	case []engine.Entry:
		if slices.Equal(want, got.([]engine.Entry)) {
			return ""
		}
	}
	some := func(a, b []byte) bool { return len(a) > 0 || len(b) > 0 }
	return cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.FilterValues(some, cmp.Comparer(bytes.Equal)))
}

func same(a, b engine.Version) bool {
	return a.Plane == b.Plane && a.Resource == b.Resource && a.Key == b.Key &&
		a.Prev == b.Prev && a.Create == b.Create && a.Delete == b.Delete &&
		bytes.Equal(a.Value, b.Value) && a.RevAt == b.RevAt && bytes.Equal(a.Index, b.Index) &&
		a.Rev == b.Rev && a.Time == b.Time && bytes.Equal(a.Provenance, b.Provenance)
}

// collect reads an iterator to its end, and sees to it that an error is the
// last element.
func collect[T any](t *testing.T, seq iter.Seq2[T, error]) ([]T, error) {
	t.Helper()
	var all []T
	var last error
	for v, err := range seq {
		switch {
		case last != nil:
			t.Errorf("iterator goes on after its error %v with %v, %v", last, v, err)
		case err != nil:
			last = err
		default:
			all = append(all, v)
		}
	}
	return all, last
}

// load gathers what Load yields, parts in the order of their numbers. visit,
// unless nil, is called with each object as well, by one goroutine at a time.
func load(ctx context.Context, e engine.Engine, visit func(engine.Version)) ([]engine.Version, error) {
	var mu sync.Mutex // guards parts
	var parts [][]engine.Version
	err := e.Load(ctx, func(part int, v engine.Version) error {
		mu.Lock()
		defer mu.Unlock()
		for part >= len(parts) {
			parts = append(parts, nil)
		}
		parts[part] = append(parts[part], clone(v))
		if visit != nil {
			visit(v)
		}
		return nil
	})
	var all []engine.Version
	for _, part := range parts {
		all = append(all, part...)
	}
	return all, err
}

// numbered makes keys that sort in the order of their numbers.
func numbered(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "key-" + strconv.Itoa(100_000+i)
	}
	return keys
}
