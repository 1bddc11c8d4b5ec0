package store_test

import (
	"errors"
	"testing"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine/memory"
)

// chained commits a value of x, and returns what it is about to store when the disk
// is waited for, together with its outcome.
func chained(t *testing.T, s *store.Store, value string, on store.Condition, after *store.Pending) (*store.Pending, <-chan error) {
	t.Helper()
	told, outcome := make(chan *store.Pending, 1), make(chan error, 1)
	go func() {
		_, err := s.CommitChained(t.Context(), store.Provenance{}, store.Chain{After: after, Next: func(p *store.Pending) { told <- p }}, put("x", value, on))
		close(told)
		outcome <- err
	}()
	return <-told, outcome
}

// Who goes on with what is about to be stored has it stored after it, and nobody
// sees it before.
func TestChain(t *testing.T) {
	e := &failing{Engine: memory.New()}
	s := open(t, store.Config{Engine: e})
	a := commit(t, s, put("x", "1", store.Absent))
	e.mu.Lock() // the disk takes its time
	first, firstDone := chained(t, s, "2", store.At(a), nil)
	if first.Object().Rev != a+1 || string(first.Object().Value()) != text(a+1, "2") {
		t.Errorf("%d: %s", first.Object().Rev, first.Object().Value())
	}
	same(t, []string{"x=" + text(a, "1")}, list(t, snapshot(t, s, store.Main)))
	outcome := make(chan error, 1)
	go func() {
		_, err := s.CommitChained(t.Context(), store.Provenance{}, store.Chain{After: first}, put("x", "3", store.At(first.Object().Rev)))
		outcome <- err
	}()
	e.mu.Unlock()
	if err := errors.Join(first.Wait(), <-firstDone, <-outcome); err != nil {
		t.Fatal(err)
	}
	same(t, []string{"x=" + text(a+2, "3")}, list(t, snapshot(t, s, store.Main)))
	// Neither a conflict nor a deletion is anything to go on with.
	if told, done := chained(t, s, "4", store.At(a), nil); told != nil || <-done == nil {
		t.Errorf("after a conflict: %v", told)
	}
}

// What was made to something that has not been stored does not happen, whatever has
// got its revision since.
func TestAChainThatBreaks(t *testing.T) {
	e := &failing{Engine: memory.New()}
	s := open(t, store.Config{Engine: e})
	a := commit(t, s, put("x", "1", store.Absent))
	e.set(store.ErrNoSpace, nil, 0)
	lost, done := chained(t, s, "2", store.At(a), nil)
	if err := <-done; !errors.Is(err, store.ErrNoSpace) || !errors.Is(lost.Wait(), store.ErrNoSpace) {
		t.Fatalf("%v, %v", err, lost.Wait())
	}
	e.set(nil, nil, 0)
	if again := commit(t, s, put("x", "other", store.At(a))); again != lost.Object().Rev {
		t.Fatalf("revision %d is not used again, but %d", lost.Object().Rev, again)
	}
	_, err := s.CommitChained(t.Context(), store.Provenance{}, store.Chain{After: lost}, put("x", "3", store.At(lost.Object().Rev)))
	conflict, is := errors.AsType[*store.ConflictError](err)
	if !is || string(conflict.Have.Value()) != text(a+1, "other") {
		t.Fatalf("got %v", err)
	}
	same(t, []string{"x=" + text(a+1, "other")}, list(t, snapshot(t, s, store.Main)))
}
