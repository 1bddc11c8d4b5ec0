package enginetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"setpoint.dev/setpoint/store/engine"
)

// exotic are keys that run into each other when they are not told apart with
// care: prefixes of each other, with bytes next to separators, with the
// lowest and the highest bytes, longer than any buffer. Any of them also makes
// the name of a plane or resource.
var exotic = []string{
	"a", "a/b", "a/b/c", "a0", "ab", "a\x01", "a\x01b", "a\x01\x01", "a\xff", "a\xff\xff", "a\xffb",
	"b", " ", "/", "é", "default/web-1", "default/web-10", "default/web-2",
	"\x01", "\x01\x01", "\x01\xff", "\xff", "\xff\x01", "\xff\xff", "\xff\xff\xff\xff\xff\xff\xff\xff\xff",
	strings.Repeat("k", 4095), strings.Repeat("k", 4096), strings.Repeat("k", 4096) + "\x01",
}

func tablesApart(s *subject) {
	var tables []engine.Table
	for _, name := range exotic {
		tables = append(tables,
			engine.Table{Plane: name, Resource: "r"},
			engine.Table{Plane: "p", Resource: name},
			engine.Table{Plane: name, Resource: name})
	}
	for i, t := range tables {
		// One object of its own and one that all tables have.
		s.commit(append(puts(t, fmt.Sprint("own-", i)), put(t, "r")))
	}
	s.checkTables()
	for _, t := range tables {
		s.checkScan(t, "", "", 0)
		s.checkLog(t, 0)
		s.checkVersions(t, "r")
		s.checkVersions(t, "own-0")
	}
	s.checkLoad()
}

func scanRange(s *subject) {
	s.commit(puts(pods, exotic...))
	s.commit(puts(nodes, exotic...), puts(pods, exotic[:10]...), puts(pods, exotic[5:15]...))
	bounds := []string{""}
	for _, key := range exotic {
		bounds = append(bounds, key)
		if len(key) < 3 {
			bounds = append(bounds, key+"\x00", key+"\x02")
		}
	}
	for _, from := range bounds {
		for _, to := range bounds {
			s.checkScan(pods, from, to, 0)
		}
		s.checkScan(pods, from, "", 1)
		s.checkScan(pods, "", from, 2)
	}
	for _, key := range exotic {
		s.checkVersions(pods, key)
	}
}

func scanAt(s *subject) {
	s.commit(puts(pods, "a", "b"))
	s.commit(puts(nodes, "a"))
	s.commit(puts(pods, "b"))
	s.commit(puts(pods, "c"))
	s.commit([]write{del(pods, "a")})
	s.commit(puts(pods, "a"))
	for at, want := range []string{
		0: "a6 b3 c4", // now
		1: "a1 b1",
		2: "a1 b1",
		3: "a1 b3",
		4: "a1 b3 c4",
		5: "b3 c4",
		6: "a6 b3 c4",
		7: "a6 b3 c4",
	} {
		objects, err := collect(s.t, s.engine.Scan(s.t.Context(), pods, "", "", engine.Revision(at)))
		var got []string
		for _, v := range objects {
			got = append(got, fmt.Sprint(v.Key, v.Rev))
		}
		s.compare(fmt.Sprint("Scan at ", at), want, nil, strings.Join(got, " "), err)
	}
}

func scanDeleted(s *subject) {
	keys := numbered(60)
	s.commit(puts(pods, keys...))
	for i := range keys {
		if i%3 != 1 {
			s.commit([]write{del(pods, keys[i])})
		}
	}
	s.checkScan(pods, "", "", 0)
	s.checkScan(pods, keys[10], keys[30], 20)
	for _, key := range keys {
		if _, ok := s.model.live(pods, key); ok {
			s.commit([]write{del(pods, key)})
		}
	}
	s.checkScan(pods, "", "", 0)
	s.checkTables()
}

func scanRecreated(s *subject) {
	s.commit(puts(pods, "a"), puts(pods, "a"))
	s.commit([]write{del(pods, "a")})
	s.commit(puts(pods, "a"), puts(pods, "a"))
	for at, want := range map[engine.Revision]engine.Revision{1: 1, 2: 1, 4: 4, 5: 4, 0: 4} {
		got, err := collect(s.t, s.engine.Scan(s.t.Context(), pods, "", "", at))
		if err != nil || len(got) != 1 || got[0].Create != want {
			s.t.Errorf("Scan at %d yields %v, %v; want one object created at %d", at, got, err, want)
		}
	}
}

// populate fills several tables with so many objects that reading them takes
// more than one step: 1200 each, some updated and some deleted.
func populate(s *subject) {
	keys := numbered(1200)
	for _, t := range []engine.Table{pods, nodes, fork} {
		s.commit(puts(t, keys...))
		var ws []write
		for i := 0; i < len(keys); i += 5 {
			ws = append(ws, write{table: t, key: keys[i], delete: i%2 == 0})
		}
		s.commit(ws)
	}
}

func loadParts(s *subject) {
	populate(s)
	type progress struct {
		busy atomic.Bool
		last string
	}
	var mu sync.Mutex // guards the two below
	var seen int
	parts := map[int]*progress{}
	err := s.engine.Load(s.t.Context(), func(part int, v engine.Version) error {
		mu.Lock()
		seen++
		p := parts[part]
		if p == nil {
			p = &progress{}
			parts[part] = p
		}
		mu.Unlock()
		if !p.busy.CompareAndSwap(false, true) {
			return fmt.Errorf("part %d is read by two goroutines at a time", part)
		}
		defer p.busy.Store(false)
		place := v.Plane + "\x00" + v.Resource + "\x00" + v.Key
		if place <= p.last {
			return fmt.Errorf("part %d yields %q after %q", part, place, p.last)
		}
		p.last = place
		return nil
	})
	if err != nil {
		s.t.Errorf("Load: %v", err)
	}
	if want := len(s.model.load()); seen != want {
		s.t.Errorf("Load yields %d objects, want %d", seen, want)
	}
}

func loadError(s *subject) {
	populate(s)
	stop := errors.New("enough")
	var returned atomic.Bool
	var late atomic.Int32
	var calls atomic.Int32
	err := s.engine.Load(s.t.Context(), func(int, engine.Version) error {
		if returned.Load() {
			late.Add(1)
		}
		if calls.Add(1) > 10 {
			return stop
		}
		return nil
	})
	returned.Store(true)
	if !errors.Is(err, stop) {
		s.t.Errorf("Load returns %v, want the error of fn", err)
	}
	s.checkLoad()
	if n := late.Load(); n > 0 {
		s.t.Errorf("Load calls fn %d times after it returned", n)
	}
}
