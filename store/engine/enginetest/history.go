package enginetest

import (
	"errors"
	"math/rand/v2"
	"slices"

	"setpoint.dev/setpoint/store/engine"
)

func versions(s *subject) {
	value := func(text string) engine.Change {
		return engine.Change{
			Plane: "main", Resource: "pods", Key: "a",
			Value: []byte(text), RevAt: -1, Index: []byte("index of " + text),
		}
	}
	var want []engine.Version
	for i, c := range []engine.Change{value("one"), value("two"), value("gone"), value("three")} {
		v := engine.Version{Change: c, Rev: engine.Revision(10 * (i + 1)), Time: int64(1000 + i/2), Provenance: []byte{0, byte(i), 255}}
		switch i {
		case 0:
			v.Create = 10
		case 1:
			v.Prev, v.Create = 10, 10
		case 2:
			v.Prev, v.Create, v.Delete = 20, 10, true
		case 3:
			v.Create = 40
		}
		want = append(want, v)
		// A neighbour on each side must not show.
		next, before := v.Change, v.Change
		next.Key, before.Key = "a/", "Z"
		s.commitTxn(engine.Txn{
			Rev: v.Rev, Time: v.Time, Provenance: v.Provenance,
			Changes: []engine.Change{next, v.Change, before},
		})
	}
	got, err := collect(s.t, s.engine.Versions(s.t.Context(), pods, "a"))
	s.compare("Versions", want, nil, got, err)

	got, err = collect(s.t, s.engine.Versions(s.t.Context(), pods, "never"))
	s.compare("Versions of an object that never was", []engine.Version(nil), nil, got, err)
}

func get(s *subject) {
	s.commit(puts(pods, "a", "b"))
	s.commit(puts(pods, "a"))
	s.commit([]write{del(pods, "a")})
	s.commit(puts(nodes, "a"))
	s.commit(puts(pods, "a"))
	for rev := engine.Revision(1); rev <= 6; rev++ {
		s.checkGet(pods, "a", rev)
		s.checkGet(pods, "b", rev)
		s.checkGet(pods, "c", rev)
		s.checkGet(nodes, "a", rev)
		s.checkGet(fork, "a", rev)
	}
	v, err := s.engine.Get(s.t.Context(), pods, "a", 3)
	if err != nil || !v.Delete || v.Prev != 2 || v.Create != 1 {
		s.t.Errorf("Get of a deletion returns %+v, %v", v, err)
	}
	if _, err := s.engine.Get(s.t.Context(), pods, "a", 4); !errors.Is(err, engine.ErrCompacted) {
		s.t.Errorf("Get of another object's revision: %v, want ErrCompacted", err)
	}
}

func logOrder(s *subject) {
	keys := append(numbered(1000), exotic...)
	r := rand.New(rand.NewPCG(1, 1))
	for range 3 {
		r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		var ws []write
		for i, key := range keys {
			// Changes of other tables in between belong to their logs.
			ws = append(ws, put(pods, key), put([]engine.Table{nodes, fork}[i%2], key))
		}
		s.commit(ws)
		var got []string
		for l, err := range s.engine.Log(s.t.Context(), pods, s.model.last-1) {
			if err != nil {
				s.t.Fatalf("Log: %v", err)
			}
			got = append(got, l.Key)
		}
		if !slices.Equal(got, keys) {
			s.t.Errorf("Log is not in the order of the transaction: %s", diff(keys, got))
		}
	}
}

func logResume(s *subject) {
	for i := range 40 {
		switch i % 4 {
		case 0:
			s.commit(puts(pods, "a", "b", "c"))
		case 1:
			s.commit(puts(nodes, "a"))
		case 2:
			s.commit([]write{del(pods, "b"), put(fork, "b")})
		case 3:
			s.model.last += 3 // a gap
			s.commit(puts(pods, "c", "a"))
		}
	}
	for after := range s.model.last + 2 {
		s.checkLog(pods, after)
		s.checkLog(nodes, after)
		s.checkLog(fork, after)
	}
}
