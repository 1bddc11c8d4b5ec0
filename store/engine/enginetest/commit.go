package enginetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"setpoint.dev/setpoint/store/engine"
)

func begin(s *subject) {
	if rev := s.engine.Current(); rev != 0 {
		s.t.Errorf("Current is %d, want 0", rev)
	}
	s.checkTables()
	s.checkLoad()
	s.checkScan(pods, "", "", 0)
	s.checkScan(pods, "", "", 1)
	s.checkVersions(pods, "a")
	s.checkGet(pods, "a", 1)
	s.checkLog(pods, 0)
}

func commitOrder(s *subject) {
	s.commit(
		puts(pods, "b", "a"),
		puts(pods, "a"),
		[]write{del(pods, "b"), put(pods, "c")},
	)
	s.commit(puts(pods, "b"))
	got, err := collect(s.t, s.engine.Log(s.t.Context(), pods, 0))
	want := []engine.Entry{
		{Rev: 1, Key: "b"},
		{Rev: 1, Key: "a"},
		{Rev: 2, Key: "a", Prev: 1},
		{Rev: 3, Key: "b", Prev: 1, Delete: true},
		{Rev: 3, Key: "c"},
		{Rev: 4, Key: "b"},
	}
	for i := range want {
		want[i].Time = 1_700_000_000_000 + int64(want[i].Rev)/2
	}
	s.compare("Log", want, nil, got, err)
}

func commitVisible(s *subject) {
	for i := range 20 {
		key := fmt.Sprint("key-", i%3)
		w := put(pods, key)
		if i%7 == 6 {
			w = del(pods, key)
		}
		s.commit([]write{w})
		s.checkCurrent()
		s.checkScan(pods, "", "", 0)
		s.checkScan(pods, "", "", s.model.last)
		s.checkVersions(pods, key)
		s.checkGet(pods, key, s.model.last)
		s.checkLog(pods, s.model.last-1)
		s.checkLoad()
	}
}

func commitMany(s *subject) {
	var ws []write
	for i, key := range numbered(1000) {
		ws = append(ws, put([]engine.Table{pods, nodes, fork}[i%3], key))
	}
	s.commit(ws)
	s.check()
	for i := range ws {
		ws[i].delete = i%2 == 0
	}
	s.commit(ws)
}

func commitAsserts(s *subject) {
	s.commit(puts(pods, "a"))
	txn := s.txn(put(nodes, "n"))
	txn.Asserts = []engine.Assert{
		{Plane: pods.Plane, Resource: pods.Resource, Key: "a", Rev: 1},
		{Plane: pods.Plane, Resource: "leases", Key: "none"},
	}
	s.commitTxn(txn)
	s.checkTables() // no table was made for what is not there
	s.checkVersions(pods, "a")
	s.checkLog(pods, 0)
	s.commit(puts(pods, "a"))
}

func current(s *subject) {
	s.reserve(5)
	s.checkCurrent()
	s.commit(puts(pods, "a")) // revision 1: a reserve takes nothing from the store
	s.checkCurrent()
	s.reserve(3)
	s.checkCurrent()
	for range 6 {
		s.commit(puts(pods, "a"))
		s.checkCurrent()
	}
	s.commit(nil) // a revision at which nothing changed
	s.checkCurrent()

	txn := s.txn(put(pods, "b"))
	s.model.commit(txn)
	s.model.reserve(20)
	if err := s.engine.Commit(s.t.Context(), []engine.Txn{txn}, 20); err != nil {
		s.t.Fatalf("Commit: %v", err)
	}
	s.checkCurrent()

	// Revisions given out elsewhere leave gaps.
	s.model.last = 30
	s.commit(puts(pods, "c"))
	s.checkCurrent()
}

func reserveRestart(s *subject) {
	s.reserve(10)
	s.reopen()
	s.check()
	s.commit(puts(pods, "a"))
	s.reserve(8)
	s.reopen()
	s.check()
	s.reserve(100)
	s.commit(puts(pods, "a"))
	s.reopen()
	s.check()
}

func commitRestart(s *subject) {
	for i := range 5 {
		s.commit(puts(pods, "a", "b"), puts(nodes, "a"), puts(fork, fmt.Sprint(i)))
		s.commit([]write{del(pods, "b"), del(fork, fmt.Sprint(i))})
		s.reopen()
		s.check()
	}
}

func commitCanceled(s *subject) {
	s.commit(puts(pods, "a"))
	ctx, cancel := context.WithCancel(s.t.Context())
	cancel()
	txn := s.txn(put(pods, "a"), put(nodes, "a"))
	err := s.engine.Commit(ctx, []engine.Txn{txn}, 0)
	if errors.Is(err, engine.ErrUnknown) {
		if err := s.engine.Recover(s.t.Context()); err != nil {
			s.t.Fatalf("Recover: %v", err)
		}
		if s.engine.Current() == txn.Rev {
			err = nil
		}
	}
	if err == nil {
		s.model.commit(txn)
	}
	s.check()
	s.commit(puts(pods, "a"))
}

func recoverHealthy(s *subject) {
	s.commit(puts(pods, "a", "b"))
	if err := s.engine.Recover(s.t.Context()); err != nil {
		s.t.Fatalf("Recover: %v", err)
	}
	s.check()
	s.commit(puts(pods, "a"))
}

func backup(s *subject, durable bool) {
	s.commit(puts(pods, "a", "b"), puts(fork, "a"), []write{del(pods, "b")})
	s.commit(puts(pods, "a"))
	s.compact(pods, 2)
	s.reserve(50)
	dir := filepath.Join(s.t.TempDir(), "backup")
	err := s.engine.Backup(s.t.Context(), dir)
	if errors.Is(err, errors.ErrUnsupported) {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			s.t.Errorf("Backup is unsupported and left %s: %v", dir, err)
		}
		return
	}
	if !durable {
		s.t.Fatalf("Backup of an engine without a disk: %v, want ErrUnsupported", err)
	}
	if err != nil {
		s.t.Fatalf("Backup: %v", err)
	}

	// The copy has what was there and the two go their own ways.
	copied := &subject{t: s.t, open: s.open, dir: dir, engine: s.open(s.t, dir), model: newModel()}
	s.t.Cleanup(copied.close)
	copied.model.last, copied.model.reserved = s.model.last, s.model.reserved
	copied.model.tables, copied.model.floors = maps.Clone(s.model.tables), maps.Clone(s.model.floors)
	copied.check()
	s.commit(puts(pods, "c"))
	s.drop("fork")
	s.check()
	copied.reopen()
	copied.check()
}
