package embedded

import (
	"bytes"
	"testing"

	"setpoint.dev/setpoint/store/engine"
)

func FuzzDecodeVersion(f *testing.F) {
	for _, v := range []engine.Version{
		{Change: engine.Change{Create: 1, RevAt: -1}},
		{Change: engine.Change{Create: 7, Prev: 6, Value: []byte{}, RevAt: 0}, Time: 1},
		{Change: engine.Change{Create: 1 << 40, Prev: 300, Delete: true, Value: []byte("value"), RevAt: 200, Index: []byte("index")}, Time: 1 << 41, Provenance: []byte("who")},
	} {
		f.Add(appendVersion(nil, &v.Change, v.Time, v.Provenance))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var v engine.Version
		if err := decodeVersion(b, &v); err != nil {
			return
		}
		again := appendVersion(nil, &v.Change, v.Time, v.Provenance)
		if !bytes.Equal(b, again) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, v, again)
		}
		if n := versionLen(&v.Change, v.Time, v.Provenance); n != len(b) {
			t.Errorf("versionLen of %+v is %d, want %d", v, n, len(b))
		}
	})
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(appendEntry(nil, &engine.Change{Key: "a"}, 0))
	f.Add(appendEntry(nil, &engine.Change{Key: "default/web", Prev: 12345, Delete: true}, 1<<41))
	f.Fuzz(func(t *testing.T, b []byte) {
		entry, err := decodeEntry(b)
		if err != nil {
			return
		}
		c := engine.Change{Key: entry.Key, Prev: entry.Prev, Delete: entry.Delete}
		again := appendEntry(nil, &c, entry.Time)
		if !bytes.Equal(b, again) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, entry, again)
		}
		if n := entryLen(&c, entry.Time); n != len(b) {
			t.Errorf("entryLen of %+v is %d, want %d", entry, n, len(b))
		}
	})
}

func FuzzDecodeKey(f *testing.F) {
	table := engine.Table{Plane: "main", Resource: "pods"}
	f.Add(appendVersionKey(nil, table, "default/web", 7))
	f.Add(appendEntryKey(nil, table, 1<<40, 3))
	f.Add(floorKey(table))
	f.Add(keyCurrent)
	f.Fuzz(func(t *testing.T, k []byte) {
		same := func(again []byte) {
			if !bytes.Equal(k, again) {
				t.Errorf("%q decodes and encodes to %q", k, again)
			}
		}
		if plane, resource, rest, err := decodeTable(k, prefixVersion); err == nil {
			if key, rev, err := decodeVersionKey(rest); err == nil {
				same(appendVersionKey(nil, engine.Table{Plane: string(plane), Resource: string(resource)}, string(key), rev))
			}
		}
		if plane, resource, rest, err := decodeTable(k, prefixEntry); err == nil {
			if rev, seq, err := decodeEntryKey(rest); err == nil {
				same(appendEntryKey(nil, engine.Table{Plane: string(plane), Resource: string(resource)}, rev, seq))
			}
		}
		if table, err := decodeFloorKey(k); err == nil {
			same(floorKey(table))
		}
	})
}
