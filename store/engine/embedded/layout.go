package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"setpoint.dev/setpoint/store/engine"
)

// The keys of the database and what lies under them. Numbers in keys are big
// endian, so that byte order is number order; ^rev is the revision with its bits
// inverted, so that an object's newest version comes first.
//
//	key                                            value
//	'm' "current"                                  revision of the newest transaction, 8 bytes
//	'm' "reserve"                                  highest reserved revision, 8 bytes
//	'm' 'f' plane 00 resource                      floor of the table, 8 bytes
//	'o' plane 00 resource 00 key 00 ^rev(8)        version
//	'l' plane 00 resource 00 rev(8) seq(4)         log entry
//
//	version:  flags(1) create prev time [revAt] [n index] [n provenance] value
//	entry:    flags(1) time prev key
//
// create, prev, time, revAt and n are uvarints in their shortest form; a flag
// says which optional part is there; value and key run to the end. Pebble
// checksums every block and every record of its log, so these carry none.
const (
	prefixMeta    = 'm'
	prefixFloor   = 'f'
	prefixVersion = 'o'
	prefixEntry   = 'l'
)

var (
	keyCurrent = []byte("mcurrent")
	keyReserve = []byte("mreserve")
)

const (
	flagDelete     = 1 << iota // the change removed the object
	flagValue                  // a value follows, be it empty
	flagRevAt                  // the value holds its revision's text
	flagIndex                  // index data follows
	flagProvenance             // provenance follows
	flagsVersion   = flagDelete | flagValue | flagRevAt | flagIndex | flagProvenance
)

const (
	revLen = 8
	seqLen = 4
)

var errMalformed = errors.New("malformed record")

func putRev(b []byte, rev engine.Revision) {
	binary.BigEndian.PutUint64(b, uint64(rev))
}

func decodeRev(b []byte) (engine.Revision, error) {
	if len(b) != revLen {
		return 0, fmt.Errorf("%w: revision of %d bytes", errMalformed, len(b))
	}
	return engine.Revision(binary.BigEndian.Uint64(b)), nil
}

// appendTable appends what the keys of a table begin with.
func appendTable(b []byte, prefix byte, t engine.Table) []byte {
	b = append(b, prefix)
	b = append(b, t.Plane...)
	b = append(b, 0)
	b = append(b, t.Resource...)
	return append(b, 0)
}

// appendObject appends what the keys of an object's versions begin with.
func appendObject(b []byte, t engine.Table, key string) []byte {
	b = appendTable(b, prefixVersion, t)
	b = append(b, key...)
	return append(b, 0)
}

func appendVersionKey(b []byte, t engine.Table, key string, rev engine.Revision) []byte {
	b = appendObject(b, t, key)
	return binary.BigEndian.AppendUint64(b, ^uint64(rev))
}

func appendEntryKey(b []byte, t engine.Table, rev engine.Revision, seq uint32) []byte {
	b = appendTable(b, prefixEntry, t)
	b = binary.BigEndian.AppendUint64(b, uint64(rev))
	return binary.BigEndian.AppendUint32(b, seq)
}

func floorKey(t engine.Table) []byte {
	b := append([]byte{prefixMeta, prefixFloor}, t.Plane...)
	b = append(b, 0)
	return append(b, t.Resource...)
}

// successor returns the smallest key above all that begin with prefix. No
// prefix in use ends in 0xff.
func successor(prefix []byte) []byte {
	b := bytes.Clone(prefix)
	b[len(b)-1]++
	return b
}

// cutName takes a NUL-terminated, non-empty name off the front of b.
func cutName(b []byte) (name, rest []byte, ok bool) {
	i := bytes.IndexByte(b, 0)
	if i <= 0 {
		return nil, nil, false
	}
	return b[:i], b[i+1:], true
}

// decodeTable splits a key of a version or an entry into its table and the
// rest. The names alias k.
func decodeTable(k []byte, prefix byte) (plane, resource, rest []byte, err error) {
	if len(k) == 0 || k[0] != prefix {
		return nil, nil, nil, fmt.Errorf("%w: key %q", errMalformed, k)
	}
	plane, rest, ok := cutName(k[1:])
	if ok {
		resource, rest, ok = cutName(rest)
	}
	if !ok {
		return nil, nil, nil, fmt.Errorf("%w: key %q", errMalformed, k)
	}
	return plane, resource, rest, nil
}

// decodeVersionKey splits what follows the table in a version's key. key
// aliases rest.
func decodeVersionKey(rest []byte) (key []byte, rev engine.Revision, err error) {
	key, tail, ok := cutName(rest)
	if !ok || len(tail) != revLen {
		return nil, 0, fmt.Errorf("%w: version key %q", errMalformed, rest)
	}
	return key, engine.Revision(^binary.BigEndian.Uint64(tail)), nil
}

// decodeEntryKey splits what follows the table in a log entry's key.
func decodeEntryKey(rest []byte) (rev engine.Revision, seq uint32, err error) {
	if len(rest) != revLen+seqLen {
		return 0, 0, fmt.Errorf("%w: entry key %q", errMalformed, rest)
	}
	return engine.Revision(binary.BigEndian.Uint64(rest)), binary.BigEndian.Uint32(rest[revLen:]), nil
}

func decodeFloorKey(k []byte) (engine.Table, error) {
	if len(k) > 2 && k[0] == prefixMeta && k[1] == prefixFloor {
		plane, resource, ok := strings.Cut(string(k[2:]), "\x00")
		if ok && plane != "" && resource != "" && !strings.Contains(resource, "\x00") {
			return engine.Table{Plane: plane, Resource: resource}, nil
		}
	}
	return engine.Table{}, fmt.Errorf("%w: floor key %q", errMalformed, k)
}

func uvarintLen(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

// cutUvarint takes a number off the front of b. It accepts the shortest form
// only, so that a record has one encoding.
func cutUvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 || n != uvarintLen(v) {
		return 0, nil, false
	}
	return v, b[n:], true
}

// cutBytes takes a non-empty counted part off the front of b. The part's
// capacity ends with it.
func cutBytes(b []byte) (part, rest []byte, ok bool) {
	n, rest, ok := cutUvarint(b)
	if !ok || n == 0 || n > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:n:n], rest[n:], true
}

func versionFlags(c *engine.Change, provenance []byte) byte {
	var flags byte
	if c.Delete {
		flags |= flagDelete
	}
	if c.Value != nil {
		flags |= flagValue
	}
	if c.RevAt >= 0 {
		flags |= flagRevAt
	}
	if len(c.Index) > 0 {
		flags |= flagIndex
	}
	if len(provenance) > 0 {
		flags |= flagProvenance
	}
	return flags
}

// versionLen is the number of bytes that appendVersion adds.
func versionLen(c *engine.Change, time int64, provenance []byte) int {
	n := 1 + uvarintLen(uint64(c.Create)) + uvarintLen(uint64(c.Prev)) + uvarintLen(uint64(time)) + len(c.Value)
	if c.RevAt >= 0 {
		n += uvarintLen(uint64(c.RevAt))
	}
	if len(c.Index) > 0 {
		n += uvarintLen(uint64(len(c.Index))) + len(c.Index)
	}
	if len(provenance) > 0 {
		n += uvarintLen(uint64(len(provenance))) + len(provenance)
	}
	return n
}

func appendVersion(b []byte, c *engine.Change, time int64, provenance []byte) []byte {
	b = append(b, versionFlags(c, provenance))
	b = binary.AppendUvarint(b, uint64(c.Create))
	b = binary.AppendUvarint(b, uint64(c.Prev))
	b = binary.AppendUvarint(b, uint64(time))
	if c.RevAt >= 0 {
		b = binary.AppendUvarint(b, uint64(c.RevAt))
	}
	if len(c.Index) > 0 {
		b = binary.AppendUvarint(b, uint64(len(c.Index)))
		b = append(b, c.Index...)
	}
	if len(provenance) > 0 {
		b = binary.AppendUvarint(b, uint64(len(provenance)))
		b = append(b, provenance...)
	}
	return append(b, c.Value...)
}

// decodeVersion fills in all of v but its plane, resource, key and revision.
// The byte slices of v alias b.
func decodeVersion(b []byte, v *engine.Version) error {
	if len(b) == 0 || b[0]&^flagsVersion != 0 {
		return fmt.Errorf("%w: version flags", errMalformed)
	}
	flags, rest := b[0], b[1:]
	var create, prev, time uint64
	create, rest, ok := cutUvarint(rest)
	if ok {
		prev, rest, ok = cutUvarint(rest)
	}
	if ok {
		time, rest, ok = cutUvarint(rest)
	}
	v.RevAt = -1
	if ok && flags&flagRevAt != 0 {
		var at uint64
		at, rest, ok = cutUvarint(rest)
		ok = ok && at <= math.MaxInt32
		v.RevAt = int(at)
	}
	v.Index, v.Provenance, v.Value = nil, nil, nil
	if ok && flags&flagIndex != 0 {
		v.Index, rest, ok = cutBytes(rest)
	}
	if ok && flags&flagProvenance != 0 {
		v.Provenance, rest, ok = cutBytes(rest)
	}
	if !ok {
		return fmt.Errorf("%w: version", errMalformed)
	}
	if flags&flagValue != 0 {
		v.Value = rest
	} else if len(rest) > 0 {
		return fmt.Errorf("%w: version has %d bytes too many", errMalformed, len(rest))
	}
	v.Delete = flags&flagDelete != 0
	v.Create, v.Prev, v.Time = engine.Revision(create), engine.Revision(prev), int64(time)
	return nil
}

func entryLen(c *engine.Change, time int64) int {
	return 1 + uvarintLen(uint64(time)) + uvarintLen(uint64(c.Prev)) + len(c.Key)
}

func appendEntry(b []byte, c *engine.Change, time int64) []byte {
	var flags byte
	if c.Delete {
		flags |= flagDelete
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, uint64(time))
	b = binary.AppendUvarint(b, uint64(c.Prev))
	return append(b, c.Key...)
}

// decodeEntry fills in all of a log entry but its revision.
func decodeEntry(b []byte) (engine.Entry, error) {
	if len(b) == 0 || b[0]&^flagDelete != 0 {
		return engine.Entry{}, fmt.Errorf("%w: entry flags", errMalformed)
	}
	time, rest, ok := cutUvarint(b[1:])
	var prev uint64
	if ok {
		prev, rest, ok = cutUvarint(rest)
	}
	if !ok || len(rest) == 0 || bytes.IndexByte(rest, 0) >= 0 {
		return engine.Entry{}, fmt.Errorf("%w: entry", errMalformed)
	}
	return engine.Entry{
		Time:   int64(time),
		Key:    string(rest),
		Prev:   engine.Revision(prev),
		Delete: b[0]&flagDelete != 0,
	}, nil
}
