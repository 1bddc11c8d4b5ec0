package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/memory"
)

// failing is an engine whose commits and recoveries go wrong on cue. A commit
// that goes wrong may have happened all the same.
type failing struct {
	*memory.Engine

	mu      sync.Mutex
	commit  error // what Commit answers; nil when it works
	recover error // what Recover answers
	happens int   // transactions of a failing group that happen all the same
}

func (f *failing) set(commit, recovery error, happens int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commit, f.recover, f.happens = commit, recovery, happens
}

func (f *failing) Commit(ctx context.Context, group []engine.Txn, reserve engine.Revision) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.commit == nil {
		return f.Engine.Commit(ctx, group, reserve)
	}
	if err := f.Engine.Commit(ctx, group[:min(f.happens, len(group))], 0); err != nil {
		return err
	}
	return f.commit
}

func (f *failing) Recover(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.recover == nil {
		f.commit = nil
	}
	return f.recover
}

func TestFullDisk(t *testing.T) {
	e := &failing{Engine: memory.New()}
	s := open(t, store.Config{Engine: e})
	a := commit(t, s, put("x", "1", store.Absent))
	e.set(store.ErrNoSpace, nil, 0)
	if _, err := s.Commit(t.Context(), store.Provenance{}, put("x", "2", store.At(a))); !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("got %v", err)
	}
	same(t, []string{"x=" + text(a, "1")}, list(t, snapshot(t, s, store.Main)))
	e.set(nil, nil, 0)
	same(t, a+1, commit(t, s, put("x", "3", store.At(a))))
}

func TestUnknownOutcomeIsSettled(t *testing.T) {
	for name, happens := range map[string]int{"it happened": 1, "it did not": 0} {
		t.Run(name, func(t *testing.T) {
			e := &failing{Engine: memory.New()}
			s := open(t, store.Config{Engine: e})
			a := commit(t, s, put("x", "1", store.Absent), put("y", "1", store.Absent))
			feed, _ := s.Feed()
			unknown := errors.Join(store.ErrNoSpace, store.ErrUnknown)
			e.set(unknown, store.ErrNoSpace, happens)
			_, err := s.Commit(t.Context(), store.Provenance{}, put("x", "2", store.At(a)), remove("y", store.Any))
			if !errors.Is(err, store.ErrUnknown) {
				t.Fatalf("got %v", err)
			}
			same(t, []string{"x=" + text(a, "1"), "y=" + text(a, "1")}, list(t, snapshot(t, s, store.Main)))
			// Not yet recovered: refused, and known not to have happened.
			if _, err := s.Commit(t.Context(), store.Provenance{}, put("z", "", store.Any)); !errors.Is(err, store.ErrNoSpace) || errors.Is(err, store.ErrUnknown) {
				t.Fatalf("got %v", err)
			}
			e.set(unknown, nil, 0)
			var rev store.Revision
			for rev == 0 { // recovery is tried once a second
				rev, _ = s.Commit(t.Context(), store.Provenance{}, put("z", "", store.Any))
			}
			want := []string{"x=" + text(a, "1"), "y=" + text(a, "1"), "z=" + text(a+1, "")}
			events := []int{1}
			if happens == 1 {
				want = []string{"x=" + text(a+1, "2"), "z=" + text(a+2, "")}
				events = []int{2, 1}
			}
			same(t, want, list(t, snapshot(t, s, store.Main)))
			for _, n := range events {
				batch, err := feed.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				same(t, n, len(batch.Changes))
			}
		})
	}
}

func TestAFailedSyncEndsWriting(t *testing.T) {
	e := &failing{Engine: memory.New()}
	s := open(t, store.Config{Engine: e})
	a := commit(t, s, put("x", "1", store.Absent))
	e.set(errors.Join(store.ErrUnknown, store.ErrFailed), nil, 0)
	for range 3 {
		if _, err := s.Commit(t.Context(), store.Provenance{}, put("x", "2", store.Any)); !errors.Is(err, store.ErrFailed) {
			t.Fatalf("got %v", err)
		}
	}
	same(t, []string{"x=" + text(a, "1")}, list(t, snapshot(t, s, store.Main)))
}
