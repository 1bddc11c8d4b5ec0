package embedded

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const inventoryName = "INVENTORY"

const inventoryHead = "setpoint-inventory 1\n"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// inventory remembers beside the database which of its files it cannot do
// without, because Pebble opens without some of them and then holds less than
// it did: a missing write-ahead log is taken for one that never was, and a
// manifest is read up to its first broken record.
//
//	setpoint-inventory 1
//	manifest MANIFEST-000008 1342 9bd1a0c3     first bytes of the manifest and their CRC-32C
//	wal 000012.log                             one line for each log that may hold transactions
//	sum 0e1f22a7                               CRC-32C of the lines above
//
// It is rewritten after a log is created and before a log or a manifest is
// removed, both rare. In between it lags behind, safely: what it does not name
// yet has nothing in it, and what a newer manifest made superfluous is still
// in the folder.
type inventory struct {
	mu       sync.Mutex // guards the fields below and the file
	wals     map[string]struct{}
	manifest manifestMark
	written  string
}

// manifestMark is a prefix of a manifest that was synced.
type manifestMark struct {
	name string
	size int64
	crc  uint32
}

func (v *inventory) textLocked() string {
	var b strings.Builder
	b.WriteString(inventoryHead)
	if m := v.manifest; m.name != "" {
		fmt.Fprintf(&b, "manifest %s %d %08x\n", m.name, m.size, m.crc)
	}
	for _, name := range slices.Sorted(maps.Keys(v.wals)) {
		fmt.Fprintf(&b, "wal %s\n", name)
	}
	fmt.Fprintf(&b, "sum %08x\n", crc32.Checksum([]byte(b.String()), castagnoli))
	return b.String()
}

func (v *inventory) parse(text string) error {
	v.wals = make(map[string]struct{})
	for line := range strings.Lines(text) {
		var name string
		if _, err := fmt.Sscanf(line, "wal %s\n", &name); err == nil {
			v.wals[name] = struct{}{}
			continue
		}
		var m manifestMark
		if _, err := fmt.Sscanf(line, "manifest %s %d %x\n", &m.name, &m.size, &m.crc); err == nil {
			v.manifest = m
		}
	}
	// One text has one meaning: whatever else was there, the sum included,
	// shows here.
	if v.textLocked() != text {
		return errors.New("it is damaged")
	}
	v.written = text
	return nil
}

// save writes the inventory to the data folder if it changed.
func (v *inventory) saveLocked(disk vfs.FS, dir string) error {
	text := v.textLocked()
	if text == v.written {
		return nil
	}
	if err := writeFile(disk, dir, inventoryName, []byte(text)); err != nil {
		return err
	}
	v.written = text
	return nil
}

// loadInventory reads the inventory of a data folder and checks that the
// database holds what it names.
func loadInventory(disk vfs.FS, dir string) (*inventory, error) {
	text, err := readFile(disk, disk.PathJoin(dir, inventoryName))
	if err != nil {
		return nil, err
	}
	v := &inventory{}
	if err := v.parse(string(text)); err != nil {
		return nil, fmt.Errorf("%s: %w", inventoryName, err)
	}
	database := disk.PathJoin(dir, databaseName)
	for name := range v.wals {
		if _, err := disk.Stat(disk.PathJoin(database, name)); err != nil {
			return nil, fmt.Errorf("write-ahead log: %w", err)
		}
	}
	if v.manifest.name != "" {
		got, err := markManifest(disk, database, v.manifest.name, v.manifest.size)
		if err != nil {
			return nil, fmt.Errorf("manifest: %w", err)
		}
		if got != v.manifest {
			return nil, fmt.Errorf("manifest %s is damaged within its first %d bytes", v.manifest.name, v.manifest.size)
		}
	}
	return v, nil
}

// takeInventory lists the files of a database that nobody writes to.
func takeInventory(disk vfs.FS, database string) (*inventory, error) {
	names, err := disk.List(database)
	if err != nil {
		return nil, err
	}
	v := &inventory{wals: make(map[string]struct{})}
	for _, name := range names {
		switch {
		case isWAL(name):
			v.wals[name] = struct{}{}
		case isManifest(name):
			info, err := disk.Stat(disk.PathJoin(database, name))
			if err != nil {
				return nil, err
			}
			if v.manifest, err = markManifest(disk, database, name, info.Size()); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func markManifest(disk vfs.FS, database, name string, size int64) (manifestMark, error) {
	f, err := disk.Open(disk.PathJoin(database, name))
	if err != nil {
		return manifestMark{}, err
	}
	sum := crc32.New(castagnoli)
	n, err := io.Copy(sum, io.LimitReader(f, size))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return manifestMark{name: name, size: n, crc: sum.Sum32()}, err
}

// walCreated is called once a log's name is durable and before it is used.
func (v *inventory) walCreated(disk vfs.FS, dir, name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wals[name] = struct{}{}
	return v.saveLocked(disk, dir)
}

// willRemove is called before a log or manifest loses its name.
func (v *inventory) willRemove(disk vfs.FS, dir, name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.wals, name)
	if v.manifest.name == name {
		v.manifest = manifestMark{}
	}
	return v.saveLocked(disk, dir)
}

func (v *inventory) manifestSynced(m manifestMark) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.manifest = m
}

// exists reports whether a file is there; an error other than its absence
// counts as there.
func exists(disk vfs.FS, path string) bool {
	_, err := disk.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
