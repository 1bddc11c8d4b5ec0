package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble replays its newest write-ahead log up to the first record it cannot
// read. That is right when the record was being written at the crash, and
// loses acknowledged transactions when it rotted later. Pebble's own means to
// tell these apart miss damage within the last 32 KiB block and most of what
// lies behind a group of more than a block. So every group starts with a note
// of how far the log was synced when the group was written, and a log is read
// here first: a broken record that a later note calls synced is damage.
//
// The last group has no note behind it until the log is sealed, which happens
// after a moment without commits and on Close. Until then its loss cannot be
// told from a commit that was interrupted.
//
// A note is WAL-only data at the start of a batch:
//
//	batch header(12) 03 10 "spn1" log number(4, little endian) synced(8, little endian)
const (
	noteMagic  = "spn1"
	noteLen    = len(noteMagic) + 4 + 8
	noteAt     = 14 // in the record: behind the batch's header, its kind and its length
	noteHeader = "\x03\x10"
)

// Of the log's format, which is LevelDB's with a log number and, in newer
// files, an offset in each header: blocks of 32 KiB hold chunks, a chunk is
// crc(4) length(2) type(1) log number(4) [offset(8)] payload, the checksum
// covers what follows it and the length, and a record is one or more chunks.
const (
	walBlock         = 32 << 10
	walHeader        = 11
	walHeaderSync    = 19
	walTypeFull      = 5 // 5 to 8: full, first, middle, last
	walTypeFirst     = 6
	walTypeFullSync  = 9 // 9 to 12: the same, with an offset
	walTypeFirstSync = 10
	walTypeLastSync  = 12
)

func isWAL(name string) bool      { return strings.HasSuffix(name, ".log") }
func isManifest(name string) bool { return strings.HasPrefix(name, "MANIFEST-") }

func walNumber(name string) (uint32, error) {
	n, err := strconv.ParseUint(strings.TrimSuffix(name, ".log"), 10, 32)
	return uint32(n), err
}

func appendNote(b []byte, log uint32, synced int64) []byte {
	b = append(b, noteMagic...)
	b = binary.LittleEndian.AppendUint32(b, log)
	return binary.LittleEndian.AppendUint64(b, uint64(synced))
}

// chunkAt returns the chunk of the given log that starts at b[0], if one does.
func chunkAt(b []byte, log uint32) (kind byte, payload []byte, ok bool) {
	if len(b) < walHeader {
		return 0, nil, false
	}
	kind = b[6]
	header := walHeader
	if kind >= walTypeFullSync {
		header = walHeaderSync
	}
	end := header + int(binary.LittleEndian.Uint16(b[4:]))
	if kind < walTypeFull || kind > walTypeLastSync || end > len(b) || binary.LittleEndian.Uint32(b[7:]) != log {
		return 0, nil, false
	}
	sum := crc32.Checksum(b[6:end], castagnoli)
	if binary.LittleEndian.Uint32(b) != (sum>>15|sum<<17)+0xa282ead8 {
		return 0, nil, false
	}
	return kind, b[header:end], true
}

// isTrailer reports whether the log was closed in order at b[0].
func isTrailer(b []byte, log uint32) bool {
	return len(b) >= walHeader && bytes.Equal(b[:7], []byte{0, 0, 0, 0, 0, 0, walTypeFull}) &&
		binary.LittleEndian.Uint32(b[7:]) == log+1
}

// noteIn returns how far the log was synced, by a note in a record's first
// chunk; 0 if there is none.
func noteIn(kind byte, payload []byte, log uint32) int64 {
	switch kind {
	case walTypeFull, walTypeFirst, walTypeFullSync, walTypeFirstSync:
	default:
		return 0
	}
	if len(payload) < noteAt+noteLen {
		return 0
	}
	note := payload[noteAt : noteAt+noteLen]
	if string(payload[noteAt-2:noteAt]) != noteHeader || string(note[:4]) != noteMagic ||
		binary.LittleEndian.Uint32(note[4:]) != log {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(note[8:]))
}

// checkWAL returns an error when a log is damaged in a part that was synced.
func checkWAL(disk vfs.FS, path string) error {
	log, err := walNumber(disk.PathBase(path))
	if err != nil {
		return fmt.Errorf("name of log %s: %w", path, err)
	}
	f, err := disk.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()

	broken := int64(-1) // where the first record that cannot be read begins
	buf := make([]byte, walBlock)
	for start := int64(0); ; start += walBlock {
		n, err := io.ReadFull(f, buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		block := buf[:n]
		if broken < 0 {
			end, done := walkBlock(block, log)
			if done {
				return nil
			}
			if end == n {
				continue
			}
			broken = start + int64(end)
			block = block[end:]
		}
		if synced := furthestNote(block, log); synced > broken {
			return fmt.Errorf("log %s is damaged at byte %d, though it was synced up to %d", path, broken, synced)
		}
	}
}

// walkBlock reads chunks from the start of a block and returns where the first
// one begins that cannot be read, len(block) if all can. done says that the log
// ended in order.
func walkBlock(block []byte, log uint32) (end int, done bool) {
	for at := 0; at < len(block); {
		rest := block[at:]
		if isTrailer(rest, log) {
			return at, true
		}
		kind, payload, ok := chunkAt(rest, log)
		switch {
		case ok && kind >= walTypeFullSync:
			at += walHeaderSync + len(payload)
		case ok:
			at += walHeader + len(payload)
		case len(block) == walBlock && len(rest) < walHeaderSync && len(bytes.Trim(rest, "\x00")) == 0:
			return len(block), false // padding: no header fits
		default:
			return at, false
		}
	}
	return len(block), false
}

// furthestNote looks for notes at any place in b: behind a broken chunk nobody
// knows where the next one starts.
func furthestNote(b []byte, log uint32) int64 {
	var furthest int64
	number := binary.LittleEndian.AppendUint32(nil, log)
	for at := 0; at+walHeader <= len(b); at++ {
		i := bytes.Index(b[at+7:], number)
		if i < 0 {
			break
		}
		at += i
		if kind, payload, ok := chunkAt(b[at:], log); ok {
			furthest = max(furthest, noteIn(kind, payload, log))
		}
	}
	return furthest
}
