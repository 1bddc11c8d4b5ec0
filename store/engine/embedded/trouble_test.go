package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/embedded"
)

func TestFolderInUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	e := open(t, embedded.Config{Dir: dir})
	_, err := embedded.Open(t.Context(), embedded.Config{Dir: dir, Logger: quiet()})
	if err == nil {
		t.Fatal("opens twice")
	}
	for _, want := range []string{dir, fmt.Sprintf("process %d", os.Getpid())} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(t, embedded.Config{Dir: dir}).Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFailedSyncIsFinal(t *testing.T) {
	h := history{keys: 5, padding: 100}
	disk := vfs.NewMem()
	var failing atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && family(op) == "sync" && strings.HasSuffix(op.Path, ".log") {
			return syscall.EIO
		}
		return nil
	})
	e := open(t, embedded.Config{Dir: dir, FS: errorfs.Wrap(disk, inject)})
	h.commit(t, e, 3)
	failing.Store(true)
	err := e.Commit(t.Context(), h.group(e.Current(), 3), 0)
	if !errors.Is(err, engine.ErrUnknown) || !errors.Is(err, engine.ErrFailed) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("Commit: %v, want ErrUnknown, ErrFailed and the cause", err)
	}
	// The disk is fine again, and must not be believed.
	failing.Store(false)
	if err := e.Commit(t.Context(), h.group(e.Current(), 3), 0); !errors.Is(err, engine.ErrFailed) {
		t.Errorf("Commit: %v, want ErrFailed", err)
	}
	if err := e.Recover(t.Context()); !errors.Is(err, engine.ErrFailed) {
		t.Errorf("Recover: %v, want ErrFailed", err)
	}
	for _, err := range e.Scan(t.Context(), pods, "", "", 0) {
		if err == nil {
			t.Error("Scan goes on")
		}
	}
	if got := e.Current(); got != 3 {
		t.Errorf("Current is %d, want 3", got)
	}
	_ = e.Close()
	again := open(t, embedded.Config{Dir: dir, FS: disk})
	if rev, _, err := h.verify(t.Context(), again); err != nil || rev != 3 && rev != 6 {
		t.Errorf("after a restart at %d: %v", rev, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// sized is a disk with as much room as the test says.
type sized struct {
	vfs.FS
	free atomic.Int64
}

func (s *sized) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: uint64(s.free.Load()), TotalBytes: 1 << 40}, nil
}

func (s *sized) Unwrap() vfs.FS { return s.FS }

func TestReserve(t *testing.T) {
	h := history{keys: 5, padding: 100}
	disk := &sized{FS: vfs.NewMem()}
	disk.free.Store(1 << 30)
	e := open(t, embedded.Config{Dir: dir, FS: disk, Reserve: 1 << 20})
	h.commit(t, e, 3)
	disk.free.Store(1 << 19)
	var err error
	for try := 0; err == nil && try < 100_000; try++ {
		err = e.Commit(t.Context(), h.group(e.Current(), 1), 0)
	}
	if !errors.Is(err, engine.ErrNoSpace) || errors.Is(err, engine.ErrUnknown) {
		t.Fatalf("Commit: %v, want ErrNoSpace alone", err)
	}
	h.mustHold(t, e, e.Current())
	disk.free.Store(1 << 30)
	h.commit(t, e, 3)
	h.mustHold(t, e, e.Current())
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFullDisk fills the disk in the middle of commits, without a reserve to
// notice it first, and makes room again.
func TestFullDisk(t *testing.T) {
	h := history{keys: 20, padding: 3000}
	var full atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && family(op) != "" && family(op) != "sync" && op.Kind != errorfs.OpRemove {
			return &os.PathError{Op: "write", Path: op.Path, Err: syscall.ENOSPC}
		}
		return nil
	})
	disk := vfs.NewMem()
	e := open(t, embedded.Config{Dir: dir, FS: errorfs.Wrap(disk, inject)})
	for range 5 {
		h.commit(t, e, 10)
		full.Store(true)
		before := e.Current()
		group := h.group(before, 4)
		err := e.Commit(t.Context(), group, 0)
		if !errors.Is(err, engine.ErrNoSpace) || errors.Is(err, engine.ErrFailed) {
			t.Fatalf("Commit: %v, want ErrNoSpace", err)
		}
		for range 3 {
			if err := e.Recover(t.Context()); !errors.Is(err, engine.ErrNoSpace) {
				t.Fatalf("Recover: %v, want ErrNoSpace", err)
			}
		}
		full.Store(false)
		if err := e.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := e.Current(); got != before && got != group[len(group)-1].Rev {
			t.Fatalf("recovered at %d, committed %d", got, before)
		}
		h.mustHold(t, e, e.Current())
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDiskUse overwrites objects for long and looks at the folder.
func TestDiskUse(t *testing.T) {
	const keys, keep, size = 500, 1000, 2048
	rounds := 200
	if sampled() {
		rounds = 40
	}
	dir := filepath.Join(t.TempDir(), "store")
	e := open(t, embedded.Config{Dir: dir})
	var largest int64
	for round := range engine.Revision(rounds) {
		var group []engine.Txn
		for k := range engine.Revision(keys) {
			rev := round*keys + k + 1
			group = append(group, engine.Txn{Rev: rev, Changes: []engine.Change{{
				Plane: "main", Resource: "pods", Key: key(int(k)), Prev: max(0, rev-keys), Create: k + 1, Value: noise(rev, size), RevAt: -1,
			}}})
			if len(group) == 50 {
				if err := e.Commit(t.Context(), group, 0); err != nil {
					t.Fatal(err)
				}
				group = group[:0]
			}
		}
		if err := e.Compact(t.Context(), pods, e.Current()-keep); err != nil {
			t.Fatal(err)
		}
		largest = max(largest, du(t, dir))
	}
	retained := int64((keys + keep) * size)
	// Logs are kept for reuse: as many as there may be memtables, and one.
	logs := int64(5 * 16 << 20)
	t.Logf("%d MiB written, %.1f MiB retained, folder at most %d MiB, at the end %d MiB",
		keys*rounds*size>>20, float64(retained)/(1<<20), largest>>20, du(t, dir)>>20)
	if largest > 10*retained+logs {
		t.Errorf("folder grew to %d bytes, %d are retained", largest, retained)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// noise does not compress.
func noise(seed engine.Revision, n int) []byte {
	b := make([]byte, n)
	x := uint64(seed)*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

func du(t *testing.T, dir string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		// Files come and go meanwhile.
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // see above
		}
		if info, err := d.Info(); err == nil {
			size += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

func TestBackupDuringStorm(t *testing.T) {
	h := history{keys: 20, padding: 1000}
	e := open(t, embedded.Config{Dir: filepath.Join(t.TempDir(), "store")})
	for i := range 5 {
		// What is read below should not outgrow the reading, so the storm
		// lasts no longer than the copying.
		ctx, cancel := context.WithCancel(t.Context())
		begun, done := make(chan struct{}), make(chan error, 1)
		go func() {
			var err error
			for n := 0; err == nil && ctx.Err() == nil; n++ {
				if n == 20 {
					close(begun)
				}
				err = e.Commit(t.Context(), h.group(e.Current(), 5), 0)
			}
			done <- err
		}()
		select {
		case <-begun:
		case err := <-done:
			t.Fatal(err)
		}
		copied := filepath.Join(t.TempDir(), fmt.Sprintf("copy-%d", i))
		before := e.Current()
		if err := e.Backup(t.Context(), copied); err != nil {
			t.Fatal(err)
		}
		after := e.Current() + 5
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := e.Backup(t.Context(), copied); err == nil {
			t.Error("Backup writes over a copy")
		}
		c := open(t, embedded.Config{Dir: copied})
		rev, _, err := h.verify(t.Context(), c)
		if err != nil || rev < before || rev > after || rev%5 != 0 {
			t.Errorf("copy is at %d, the store went from %d to %d: %v", rev, before, after, err)
		}
		h.commit(t, c, 5)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	h.mustHold(t, e, e.Current())
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNothingToReplay: a store that was closed opens without making a table of
// what its log holds; one that was killed makes one.
func TestNothingToReplay(t *testing.T) {
	h := history{keys: 20, padding: 2000}
	for _, clean := range []bool{true, false} {
		disk, rev := stormed(t, h, clean)
		var made atomic.Int64
		count := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
				made.Add(1)
			}
			return nil
		})
		e := open(t, embedded.Config{Dir: dir, FS: errorfs.Wrap(disk, count)})
		if got, _, err := h.verify(t.Context(), e); err != nil || got != rev {
			t.Errorf("clean %t: opens at %d, acknowledged %d: %v", clean, got, rev, err)
		}
		if replayed := made.Load() > 0; replayed == clean {
			t.Errorf("clean %t: opening makes %d tables", clean, made.Load())
		}
	}
}
