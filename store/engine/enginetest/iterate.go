package enginetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"sync"
	"sync/atomic"

	"setpoint.dev/setpoint/store/engine"
)

// during reads an iterator and calls disturb after its 1st, 51st, 101st, ...
// element.
func during[T any](s *subject, seq iter.Seq2[T, error], disturb func()) ([]T, error) {
	s.t.Helper()
	n := 0
	return collect(s.t, func(yield func(T, error) bool) {
		for v, err := range seq {
			if !yield(v, err) {
				return
			}
			if n%50 == 0 {
				disturb()
			}
			n++
		}
	})
}

// churn is written to while it is read: 200 objects and one with 200 versions.
func churn(s *subject) (disturb func()) {
	keys := numbered(200)
	s.commit(puts(pods, keys...))
	for range 10 {
		var txns [][]write
		for range 20 {
			txns = append(txns, puts(pods, "busy"))
		}
		s.commit(txns...)
	}
	n := 0
	return func() {
		n++
		ws := puts(pods, "busy", fmt.Sprint("key-new-", n), fmt.Sprint("a-new-", n), keys[100])
		if _, ok := s.model.live(pods, keys[110+n%80]); ok {
			ws = append(ws, del(pods, keys[110+n%80]))
		}
		s.commit(ws)
	}
}

func iterateMoment(s *subject) {
	disturb := churn(s)
	ctx := s.t.Context()

	want, _ := s.model.scan(pods, "", "", 0)
	got, err := during(s, s.engine.Scan(ctx, pods, "", "", 0), disturb)
	s.compare("Scan now", want, nil, got, err)

	// Also at a revision that is yet to come when the iteration begins.
	for _, at := range []engine.Revision{1, s.model.last, s.model.last + 2} {
		want, _ = s.model.scan(pods, "", "", at)
		got, err = during(s, s.engine.Scan(ctx, pods, "", "", at), disturb)
		s.compare(fmt.Sprint("Scan at ", at), want, nil, got, err)
	}

	want = s.model.retained(pods, "busy")
	got, err = during(s, s.engine.Versions(ctx, pods, "busy"), disturb)
	s.compare("Versions", want, nil, got, err)

	wantLog, _ := s.model.log(pods, 0)
	gotLog, err := during(s, s.engine.Log(ctx, pods, 0), disturb)
	s.compare("Log", wantLog, nil, gotLog, err)

	want = s.model.load()
	var once sync.Once
	got, err = load(ctx, s.engine, func(engine.Version) { once.Do(disturb) })
	s.compare("Load", want, nil, got, err)
}

// whole says that an answer is all of want, or a beginning of it and then
// ErrCompacted.
func whole[T any](s *subject, what string, want, got []T, err error) {
	s.t.Helper()
	if errors.Is(err, engine.ErrCompacted) && len(got) <= len(want) {
		want, err = want[:len(got)], nil
	}
	s.compare(what, want, nil, got, err)
}

func iterateOvertaken(s *subject) {
	change := churn(s)
	disturb := func() {
		change()
		s.compact(pods, s.model.last)
	}
	// Each of them needs something to be overtaken.
	refill := func() engine.Revision {
		before := s.model.last
		for range 10 {
			s.commit(puts(pods, "busy"), puts(pods, "busy", "b"), puts(pods, "busy", "c"), puts(pods, "busy"))
		}
		return before
	}
	ctx := s.t.Context()

	refill()
	want, _ := s.model.scan(pods, "", "", 0)
	got, err := during(s, s.engine.Scan(ctx, pods, "", "", 0), disturb)
	whole(s, "Scan now", want, got, err)

	at := refill() + 3
	want, _ = s.model.scan(pods, "", "", at)
	got, err = during(s, s.engine.Scan(ctx, pods, "", "", at), disturb)
	whole(s, "Scan at a revision", want, got, err)

	refill()
	want = s.model.retained(pods, "busy")
	got, err = during(s, s.engine.Versions(ctx, pods, "busy"), disturb)
	whole(s, "Versions", want, got, err)

	after := refill()
	wantLog, _ := s.model.log(pods, after)
	gotLog, err := during(s, s.engine.Log(ctx, pods, after), disturb)
	whole(s, "Log", wantLog, gotLog, err)
}

func iterateStop(s *subject) {
	populate(s)
	ctx := s.t.Context()
	for range 50 {
		first(s, "Scan", s.engine.Scan(ctx, pods, "", "", 0))
		first(s, "Scan at a revision", s.engine.Scan(ctx, pods, "", "", 1))
		first(s, "Versions", s.engine.Versions(ctx, pods, "key-100000"))
		first(s, "Log", s.engine.Log(ctx, pods, 0))
	}
	// Nothing that a stopped iteration held stands in the way.
	s.commit(puts(pods, "a"))
	s.compact(pods, 1)
}

func first[T any](s *subject, what string, seq iter.Seq2[T, error]) {
	s.t.Helper()
	for _, err := range seq {
		if err != nil {
			s.t.Errorf("%s: %v", what, err)
		}
		return
	}
	s.t.Errorf("%s yields nothing", what)
}

func iterateCanceled(s *subject) {
	keys := numbered(3000)
	s.commit(puts(pods, keys...))
	for range 20 {
		var txns [][]write
		for range 100 {
			txns = append(txns, puts(nodes, "busy"))
		}
		s.commit(txns...)
	}
	canceled(s, "Scan now", func(ctx context.Context) iter.Seq2[engine.Version, error] {
		return s.engine.Scan(ctx, pods, "", "", 0)
	})
	canceled(s, "Scan at a revision", func(ctx context.Context) iter.Seq2[engine.Version, error] {
		return s.engine.Scan(ctx, pods, "", "", 1)
	})
	canceled(s, "Versions", func(ctx context.Context) iter.Seq2[engine.Version, error] {
		return s.engine.Versions(ctx, nodes, "busy")
	})
	canceled(s, "Log", func(ctx context.Context) iter.Seq2[engine.Entry, error] {
		return s.engine.Log(ctx, pods, 0)
	})

	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	if _, err := load(ctx, s.engine, func(engine.Version) { cancel() }); !errors.Is(err, context.Canceled) {
		s.t.Errorf("Load returns %v when ctx ends on the way, want context.Canceled", err)
	}
	if _, err := load(ctx, s.engine, nil); !errors.Is(err, context.Canceled) {
		s.t.Errorf("Load returns %v when ctx has ended, want context.Canceled", err)
	}
	if _, err := s.engine.Tables(ctx); !errors.Is(err, context.Canceled) {
		s.t.Errorf("Tables: %v, want context.Canceled", err)
	}
	if _, err := s.engine.Get(ctx, pods, keys[0], 1); !errors.Is(err, context.Canceled) {
		s.t.Errorf("Get: %v, want context.Canceled", err)
	}
}

// canceled checks that an iteration ends with the error of its context, when
// that has ended before and when it ends on the way.
func canceled[T any](s *subject, what string, read func(context.Context) iter.Seq2[T, error]) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	if _, err := during(s, read(ctx), cancel); !errors.Is(err, context.Canceled) {
		s.t.Errorf("%s ends with %v when ctx ends on the way, want context.Canceled", what, err)
	}
	got, err := collect(s.t, read(ctx))
	if len(got) > 0 || !errors.Is(err, context.Canceled) {
		s.t.Errorf("%s yields %d elements and %v when ctx has ended, want none and context.Canceled", what, len(got), err)
	}
}

// concurrent has one goroutine commit, one compact, and the others read. Every
// transaction writes the same five objects in two tables, so all objects of a
// state have one revision.
func concurrent(s *subject) {
	const txns, lag = 300, 20
	ctx := s.t.Context()
	keys := numbered(5)
	ws := append(puts(pods, keys...), puts(nodes, keys...)...)
	s.commit(ws)

	var committed atomic.Int64 // the last revision whose Commit returned
	committed.Store(1)
	var done atomic.Bool
	var wg sync.WaitGroup
	again := func(what string, read func(last engine.Revision) error) {
		wg.Go(func() {
			for end := false; !end; {
				end = done.Load() // once more after the last commit
				if err := read(engine.Revision(committed.Load())); err != nil {
					s.t.Errorf("%s: %v", what, err)
					return
				}
			}
		})
	}

	wg.Go(func() {
		defer done.Store(true)
		for range txns {
			txn := s.txn(ws...)
			s.model.commit(txn)
			if err := s.engine.Commit(ctx, []engine.Txn{txn}, 0); err != nil {
				s.t.Errorf("Commit: %v", err)
				return
			}
			committed.Store(int64(txn.Rev))
		}
	})
	again("Compact", func(last engine.Revision) error {
		return errors.Join(s.engine.Compact(ctx, pods, last-lag), s.engine.Compact(ctx, nodes, last-lag))
	})
	again("Scan now", func(last engine.Revision) error {
		got, err := collect(s.t, s.engine.Scan(ctx, pods, "", "", 0))
		return errors.Join(err, oneRevision(got, len(keys), last, txns+1))
	})
	again("Scan at a revision", func(last engine.Revision) error {
		got, err := collect(s.t, s.engine.Scan(ctx, nodes, "", "", last))
		if errors.Is(err, engine.ErrCompacted) {
			return nil
		}
		return errors.Join(err, oneRevision(got, len(keys), last, last))
	})
	again("Load", func(last engine.Revision) error {
		got, err := load(ctx, s.engine, nil)
		return errors.Join(err, oneRevision(got, 2*len(keys), last, txns+1))
	})
	again("Versions", func(last engine.Revision) error {
		got, err := collect(s.t, s.engine.Versions(ctx, pods, keys[0]))
		if err != nil {
			return err
		}
		for i, v := range got {
			if v.Rev != got[0].Rev+engine.Revision(i) {
				return fmt.Errorf("%d at place %d after %d", v.Rev, i, got[0].Rev)
			}
		}
		return oneRevision(got[len(got)-1:], 1, last, txns+1)
	})
	again("Log", func(last engine.Revision) error {
		after := max(0, last-lag/2)
		got, err := collect(s.t, s.engine.Log(ctx, nodes, after))
		if errors.Is(err, engine.ErrCompacted) {
			return nil
		}
		for i, l := range got {
			if want := after + 1 + engine.Revision(i/len(keys)); l.Rev != want || l.Key != keys[i%len(keys)] {
				return fmt.Errorf("entry %d after %d is %d %s", i, after, l.Rev, l.Key)
			}
		}
		if len(got)%len(keys) != 0 || len(got) < len(keys)*int(last-after) {
			err = fmt.Errorf("%d entries after %d with %d committed", len(got), after, last)
		}
		return err
	})
	again("Get", func(last engine.Revision) error {
		v, err := s.engine.Get(ctx, pods, keys[1], last)
		if errors.Is(err, engine.ErrCompacted) {
			return nil
		}
		return errors.Join(err, oneRevision([]engine.Version{v}, 1, last, last))
	})
	again("Current", func(last engine.Revision) error {
		if got := s.engine.Current(); got < last {
			return fmt.Errorf("%d with %d committed", got, last)
		}
		return nil
	})
	wg.Wait()
	s.compact(pods, txns+1-lag)
	s.compact(nodes, txns+1-lag)
}

// oneRevision checks that there are n versions, all written at the same
// revision, which lies between two.
func oneRevision(got []engine.Version, n int, low, high engine.Revision) error {
	if len(got) != n {
		return fmt.Errorf("%d objects, want %d", len(got), n)
	}
	for _, v := range got {
		if v.Rev != got[0].Rev || v.Rev < low || v.Rev > high {
			return fmt.Errorf("%s has revision %d beside %d, want one from %d to %d", v.Key, v.Rev, got[0].Rev, low, high)
		}
	}
	return nil
}

// calls are all methods that can return an error, but for Close.
func calls(s *subject) map[string]func() error {
	ctx := s.t.Context()
	dir := filepath.Join(s.t.TempDir(), "backup")
	return map[string]func() error{
		"Commit": func() error {
			return s.engine.Commit(ctx, []engine.Txn{s.txn(put(pods, "a"))}, 0)
		},
		"Recover": func() error { return s.engine.Recover(ctx) },
		"Tables": func() error {
			_, err := s.engine.Tables(ctx)
			return err
		},
		"Scan": func() error {
			_, err := collect(s.t, s.engine.Scan(ctx, pods, "", "", 0))
			return err
		},
		"Load": func() error {
			_, err := load(ctx, s.engine, nil)
			return err
		},
		"Versions": func() error {
			_, err := collect(s.t, s.engine.Versions(ctx, pods, "key-100000"))
			return err
		},
		"Get": func() error {
			_, err := s.engine.Get(ctx, pods, "key-100000", 1)
			return err
		},
		"Log": func() error {
			_, err := collect(s.t, s.engine.Log(ctx, pods, 0))
			return err
		},
		"Compact": func() error { return s.engine.Compact(ctx, fork, 1) },
		"Drop":    func() error { return s.engine.Drop(ctx, "fork") },
		"Backup":  func() error { return s.engine.Backup(ctx, dir) },
	}
}

func closed(s *subject) {
	s.commit(puts(pods, "key-100000"))
	before := s.engine.Scan(s.t.Context(), pods, "", "", 0)
	s.close()
	for name, call := range calls(s) {
		if err := call(); !errors.Is(err, engine.ErrClosed) {
			s.t.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
	if _, err := collect(s.t, before); !errors.Is(err, engine.ErrClosed) {
		s.t.Errorf("Scan from before Close: %v, want ErrClosed", err)
	}
	if err := s.engine.Close(); err != nil && !errors.Is(err, engine.ErrClosed) {
		s.t.Errorf("second Close: %v, want nil or ErrClosed", err)
	}
}

func closeUnderWay(s *subject) {
	populate(s)
	ctx := s.t.Context()
	want, _ := s.model.scan(pods, "", "", 0)
	wantLog, _ := s.model.log(pods, 0)

	// reading is done by a reader once it has its first element, so that Close
	// comes in the midst of all of them.
	var reading, wg sync.WaitGroup
	reading.Add(3)
	wg.Go(func() {
		var once sync.Once
		got, err := during(s, s.engine.Scan(ctx, pods, "", "", 0), func() { once.Do(reading.Done) })
		finished(s, "Scan", want, got, err)
	})
	wg.Go(func() {
		var once sync.Once
		got, err := during(s, s.engine.Log(ctx, pods, 0), func() { once.Do(reading.Done) })
		finished(s, "Log", wantLog, got, err)
	})
	wg.Go(func() {
		var once sync.Once
		wantAll := s.model.load()
		got, err := load(ctx, s.engine, func(engine.Version) { once.Do(reading.Done) })
		if err == nil {
			finished(s, "Load", wantAll, got, err)
		} else if !errors.Is(err, engine.ErrClosed) {
			s.t.Errorf("Load: %v, want nil or ErrClosed", err)
		}
	})
	for name, call := range calls(s) {
		if name == "Commit" || name == "Recover" || name == "Drop" || name == "Backup" {
			continue // not to be called at the same time, or with effects the readers above see
		}
		wg.Go(func() {
			for {
				if err := call(); errors.Is(err, engine.ErrClosed) {
					return
				} else if err != nil {
					s.t.Errorf("%s beside Close: %v, want nil or ErrClosed", name, err)
					return
				}
			}
		})
	}
	reading.Wait()
	s.close()
	wg.Wait()
}

// finished says that an answer is all of want, or a beginning of it and then
// ErrClosed.
func finished[T any](s *subject, what string, want, got []T, err error) {
	s.t.Helper()
	if errors.Is(err, engine.ErrClosed) && len(got) <= len(want) {
		want, err = want[:len(got)], nil
	}
	s.compare(what, want, nil, got, err)
}
