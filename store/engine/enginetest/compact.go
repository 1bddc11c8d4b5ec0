package enginetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"setpoint.dev/setpoint/store/engine"
)

// history writes a table with lives of every shape, revisions 1 to 10.
func history(s *subject, t engine.Table) {
	s.commit(
		puts(t, "always", "changing", "short"),   // 1
		puts(t, "changing"),                      // 2
		[]write{del(t, "short")},                 // 3
		puts(t, "changing", "late"),              // 4
		puts(t, "short"),                         // 5
		puts(t, "changing"),                      // 6
		[]write{del(t, "short"), del(t, "late")}, // 7
		puts(t, "changing"),                      // 8
		puts(t, "short"),                         // 9
		puts(t, "changing"),                      // 10
	)
}

func compactFloor(s *subject) {
	history(s, pods)
	for floor := engine.Revision(1); floor <= 10; floor++ {
		s.compact(pods, floor)
		for rev := engine.Revision(1); rev < floor; rev++ {
			if _, err := collect(s.t, s.engine.Scan(s.t.Context(), pods, "", "", rev)); !errors.Is(err, engine.ErrCompacted) {
				s.t.Errorf("Scan at %d with floor %d: %v, want ErrCompacted", rev, floor, err)
			}
		}
		for rev := range floor {
			if _, err := collect(s.t, s.engine.Log(s.t.Context(), pods, rev)); !errors.Is(err, engine.ErrCompacted) {
				s.t.Errorf("Log after %d with floor %d: %v, want ErrCompacted", rev, floor, err)
			}
		}
		s.check()
	}
}

func compactRemoves(s *subject) {
	history(s, pods)
	s.compact(pods, 7)
	for key, want := range map[string][]engine.Revision{
		"always":   {1},
		"changing": {6, 8, 10},
		"short":    {9},
		"late":     nil,
	} {
		versions, err := collect(s.t, s.engine.Versions(s.t.Context(), pods, key))
		var got []engine.Revision
		for _, v := range versions {
			got = append(got, v.Rev)
		}
		s.compare("Versions of "+key, want, nil, got, err)
	}
	s.checkGet(pods, "changing", 4)
	s.checkGet(pods, "short", 7)
	s.checkGet(pods, "late", 7)
}

func compactLive(s *subject) {
	keys := numbered(3000)
	s.commit(puts(pods, keys...))
	s.commit(puts(pods, keys[:2000]...))
	want := s.model.load()
	s.compact(pods, s.model.last)
	got, err := load(s.t.Context(), s.engine, nil)
	s.compare("Load", want, nil, got, err)
	s.checkScan(pods, "", "", s.model.last)
}

func compactAgain(s *subject) {
	history(s, pods)
	for _, upTo := range []engine.Revision{6, 6, 6, 3, 0, 7, 6} {
		s.compact(pods, upTo)
		s.check()
	}
	history(s, pods)
	for _, upTo := range []engine.Revision{8, 12, 12, 20, 20} {
		s.compact(pods, upTo)
		s.check()
	}
}

func compactFuture(s *subject) {
	history(s, pods)
	s.compact(pods, 1000)
	s.check()
	s.commit(puts(pods, "always"))
	s.checkScan(pods, "", "", 11)
	s.checkLog(pods, 10)
	s.checkTables()
}

// fuse is a context that ends once it was asked a number of times whether it
// has.
type fuse struct {
	context.Context
	cancel context.CancelFunc
	left   atomic.Int32
}

func (f *fuse) Err() error {
	if f.left.Add(-1) < 0 {
		f.cancel()
	}
	return f.Context.Err()
}

func compactCanceled(s *subject) {
	keys := numbered(1200)
	for asked := range int32(4) {
		s.commit(puts(pods, keys...), puts(pods, keys[:800]...))
		s.commit([]write{del(pods, keys[0])}, puts(pods, keys[400:]...))
		upTo := s.model.last - 1

		ctx, cancel := context.WithCancel(s.t.Context())
		f := &fuse{Context: ctx, cancel: cancel}
		f.left.Store(asked)
		err := s.engine.Compact(f, pods, upTo)
		cancel()
		if err != nil && !errors.Is(err, context.Canceled) {
			s.t.Errorf("Compact: %v, want nil or context.Canceled", err)
		}
		// The floor is raised or not, and what lies below is removed or not,
		// but nothing else.
		s.checkScan(pods, "", "", 0)
		s.checkScan(pods, "", "", upTo)
		s.checkLog(pods, upTo)

		s.compact(pods, upTo)
		s.checkVersions(pods, keys[0])
		s.checkVersions(pods, keys[500])
		s.checkVersions(pods, keys[1199])
	}
}

func compactOthers(s *subject) {
	long := engine.Table{Plane: "main", Resource: "pods.x"}
	for _, t := range []engine.Table{pods, nodes, fork, long} {
		history(s, t)
	}
	s.compact(pods, 10)
	s.check()
	s.compact(long, 35)
	s.check()
	s.compact(fork, 25)
	s.check()
}

func compactRestart(s *subject) {
	history(s, pods)
	history(s, nodes)
	s.compact(pods, 5)
	s.reopen()
	s.check()
	s.compact(pods, 9)

	// A table with nothing left in it, and the newest revisions among what went.
	s.commit(puts(fork, "a"))
	s.commit([]write{del(fork, "a")})
	s.compact(fork, s.model.last)
	s.reopen()
	s.check()
	s.checkLog(fork, 1)
	s.commit(puts(fork, "a"))
}

func drop(s *subject) {
	var planes []string
	for _, plane := range exotic {
		if len(plane) < 100 {
			planes = append(planes, plane)
		}
	}
	for i, plane := range planes {
		s.commit(
			puts(engine.Table{Plane: plane, Resource: "pods"}, "x", "y"),
			puts(engine.Table{Plane: plane, Resource: fmt.Sprint("r", i)}, "x"),
			puts(engine.Table{Plane: plane, Resource: plane}, plane),
		)
		s.compact(engine.Table{Plane: plane, Resource: "pods"}, s.model.last)
	}
	for i := 0; i < len(planes); i += 2 {
		s.drop(planes[i])
		s.checkTables()
		s.checkLoad()
		for _, resource := range []string{"pods", planes[i]} {
			gone := engine.Table{Plane: planes[i], Resource: resource}
			s.checkScan(gone, "", "", 0)
			s.checkScan(gone, "", "", 1)
			s.checkLog(gone, 0)
			s.checkVersions(gone, "x")
			s.checkGet(gone, "x", 1)
		}
		s.checkCurrent()
	}
	s.drop("never")
	s.drop(planes[0])
}

func dropReturn(s *subject) {
	history(s, fork)
	s.compact(fork, 5)
	s.commit(puts(pods, "a"))
	s.drop("fork")
	s.commit(puts(fork, "always"))
	s.checkVersions(fork, "always")
	s.checkLog(fork, 0)
	s.checkScan(fork, "", "", 1)
	s.check()
}

func dropRestart(s *subject) {
	s.commit(puts(pods, "a"))
	history(s, fork) // holds the newest revisions
	s.compact(fork, 5)
	s.drop("fork")
	s.reopen()
	s.check()
	s.checkScan(fork, "", "", 1)
	s.checkLog(fork, 0)
}
