package enginetest

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"setpoint.dev/setpoint/store/engine"
)

// spoil changes every byte of a version and what may lie behind its slices.
func spoil(v engine.Version) {
	for _, b := range [][]byte{v.Value, v.Index, v.Provenance} {
		for i := range b {
			b[i] ^= 0xff
		}
		_ = append(b, "0123456789abcdef"...)
	}
}

func bytesKept(s *subject) {
	keys := numbered(100)
	s.commit(puts(pods, keys...))
	s.commit(puts(pods, keys...))
	read := func() []engine.Version {
		s.t.Helper()
		all, err := collect(s.t, s.engine.Scan(s.t.Context(), pods, "", "", 0))
		if err != nil {
			s.t.Fatalf("Scan: %v", err)
		}
		versions, err := collect(s.t, s.engine.Versions(s.t.Context(), pods, keys[7]))
		if err != nil {
			s.t.Fatalf("Versions: %v", err)
		}
		one, err := s.engine.Get(s.t.Context(), pods, keys[8], 2)
		if err != nil {
			s.t.Fatalf("Get: %v", err)
		}
		return append(append(all, versions...), one)
	}
	want := read()
	for i := range want {
		want[i] = clone(want[i])
	}

	// Changing them changes neither the engine nor another reader's.
	kept := read()
	for _, v := range read() {
		spoil(v)
	}
	s.compare("read again", want, nil, read(), nil)
	s.compare("kept beside a reader who changed his", want, nil, kept, nil)

	// One version's bytes end before the next one's begin.
	grown := read()
	for i := range grown {
		_ = append(grown[i].Value, "0123456789abcdef"...)
		_ = append(grown[i].Index, "0123456789abcdef"...)
		_ = append(grown[i].Provenance, "0123456789abcdef"...)
	}
	s.compare("after appending to each", want, nil, grown, nil)

	// They outlive the versions and the engine.
	s.commit(puts(pods, keys...))
	s.compact(pods, 3)
	s.check()
	s.close()
	s.compare("kept after Close", want, nil, kept, nil)
}

func bytesEmpty(s *subject) {
	kinds := [][]byte{nil, {}, []byte("some")}
	for i := range 27 {
		txn := s.txn(put(pods, fmt.Sprint("key-", i)))
		txn.Provenance = kinds[i%3]
		txn.Changes[0].Value = kinds[i/3%3]
		txn.Changes[0].Index = kinds[i/9]
		txn.Changes[0].RevAt = -1
		s.commitTxn(txn)
	}
	s.checkScan(pods, "", "", 0)
}

func bytesRevAt(s *subject) {
	for _, frame := range [][2]string{{"", " behind"}, {"before ", " and behind"}, {"before ", ""}, {"", ""}} {
		for range 12 { // one and two digits
			txn := s.txn(put(pods, "a"), put(pods, "b"))
			text := strconv.FormatInt(int64(txn.Rev), 10)
			txn.Changes[0].Value = []byte(frame[0] + text + frame[1])
			txn.Changes[0].RevAt = len(frame[0])
			txn.Changes[1].RevAt = -1
			s.commitTxn(txn)
			s.checkScan(pods, "", "", 0)
			s.checkGet(pods, "a", txn.Rev)
		}
	}
}

func bytesDelete(s *subject) {
	s.commit(puts(pods, "a", "b"))
	txn := s.txn(del(pods, "a"), del(pods, "b"))
	txn.Changes[0].Value, txn.Changes[0].RevAt = nil, -1
	s.commitTxn(txn)
	s.checkVersions(pods, "a")
	s.checkVersions(pods, "b")

	// What it deletes stays as long as the deletion can be read.
	s.compact(pods, 1)
	s.checkVersions(pods, "a")
	s.checkGet(pods, "a", 1)
	s.checkGet(pods, "a", 2)
}

func bytesLarge(s *subject) {
	r := rand.New(rand.NewPCG(2, 2))
	random := make([]byte, 1<<20)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	for i := range 3 {
		txn := s.txn(put(pods, "large"), put(pods, "small"), put(nodes, "even"))
		txn.Changes[0].Value, txn.Changes[0].RevAt = random, -1
		txn.Changes[2].Value, txn.Changes[2].RevAt = make([]byte, 1<<20), -1
		txn.Changes[2].Index = random[:100_000*i]
		txn.Provenance = random[:50_000*i]
		s.commitTxn(txn)
	}
}
