package embedded

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"setpoint.dev/setpoint/store/engine"
)

// guard stands between one Pebble instance and the disk.
//
// It notes the first operation that fails to change the data folder. From then
// on the instance is fenced: every further operation fails, so that nothing
// can be written by a Pebble that does not know what the disk holds. Pebble
// does not expect to live through such an error and may keep its locks for
// ever; the instance is then given up, and a fresh one opened on a fresh guard
// where that is of use.
//
// Operations outside the data folder, those on a backup, fail like any other
// and fence nothing. Neither does a file that cannot be read or removed.
type guard struct {
	disk   vfs.FS
	dir    string // the data folder
	log    *slog.Logger
	parts  *inventory
	broken chan struct{} // closed by the first fault

	ops   sync.RWMutex // held for reading during each operation
	first atomic.Pointer[fault]
	wal   atomic.Pointer[guardFile] // the log in use

	mu    sync.Mutex // guards files
	files map[*guardFile]struct{}

	readErrors atomic.Int64 // in a row
	flushed    atomic.Bool  // Pebble's background work has begun
	serving    atomic.Bool  // see compactions
}

type faultKind int

const (
	faultWrite faultKind = iota // a change of the disk failed; what was synced is there
	faultSpace                  // the same, for want of room
	faultSync                   // a sync failed: nobody knows what the disk holds
	faultOther                  // Pebble gave up for a reason of its own
)

// fault is what ended the use of a Pebble instance.
type fault struct {
	kind faultKind
	op   string
	path string
	err  error
}

func (f *fault) Error() string {
	if f.path == "" {
		return fmt.Sprintf("%s: %v", f.op, f.err)
	}
	return fmt.Sprintf("%s %s: %v", f.op, f.path, f.err)
}

// Unwrap gives the cause and what it means for whoever called.
func (f *fault) Unwrap() []error {
	switch f.kind {
	case faultSpace:
		return []error{engine.ErrNoSpace, f.err}
	case faultSync, faultOther:
		return []error{engine.ErrFailed, f.err}
	case faultWrite:
	}
	return []error{f.err}
}

// errFenced is what operations of a given-up instance get.
var errFenced = errors.New("store was fenced after a failed write")

func newGuard(disk vfs.FS, dir string, parts *inventory, log *slog.Logger) *guard {
	return &guard{
		disk:   disk,
		dir:    dir,
		log:    log,
		parts:  parts,
		broken: make(chan struct{}),
		files:  make(map[*guardFile]struct{}),
	}
}

// fault returns what fenced the instance, nil while it is whole.
func (g *guard) fault() *fault { return g.first.Load() }

// fence records the first fault and ends the instance.
func (g *guard) fence(f *fault) {
	if g.first.CompareAndSwap(nil, f) {
		g.log.Error("store stopped writing", "op", f.op, "path", f.path, "err", f.err)
		close(g.broken)
	}
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// inside reports whether a path lies in the data folder.
func (g *guard) inside(path string) bool {
	return path == g.dir || strings.HasPrefix(path, g.dir+"/")
}

// failed looks at the error of a change and fences where it must.
func (g *guard) failed(op, path string, kind faultKind, err error) error {
	if err == nil || !g.inside(path) {
		return err
	}
	if kind == faultWrite && isNoSpace(err) {
		kind = faultSpace
	}
	g.fence(&fault{kind: kind, op: op, path: path, err: err})
	return err
}

// enter begins an operation; each successful call is paired with leave.
func (g *guard) enter() error {
	g.ops.RLock()
	if g.first.Load() != nil {
		g.ops.RUnlock()
		return g.tell(errFenced)
	}
	return nil
}

func (g *guard) leave() { g.ops.RUnlock() }

// change runs an operation that alters the disk.
func (g *guard) change(op, path string, fn func() error) error {
	if err := g.enter(); err != nil {
		return err
	}
	err := g.failed(op, path, faultWrite, fn())
	g.leave()
	return g.tell(err)
}

// look runs an operation that alters nothing, or only tidies up.
func (g *guard) look(fn func() error) error {
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	return fn()
}

// release waits until no operation of a fenced instance is under way and
// closes its files.
func (g *guard) release() {
	g.ops.Lock()
	defer g.ops.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for f := range g.files {
		_ = f.File.Close()
	}
	clear(g.files)
}

// fatal is what a call into Pebble panics with when Pebble wants the process
// to end.
type fatal struct{}

// shield calls into Pebble. When Pebble gives up during the call, the result is
// the fault that fenced the instance.
func (g *guard) shield(fn func() error) (err error) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		// Pebble also panics by itself when its log fails to write.
		if _, ok := r.(fatal); !ok && g.fault() == nil {
			panic(r)
		}
		err = g.fault()
	}()
	return fn()
}

const (
	shieldName   = "embedded.(*guard).shield"
	rotationName = "pebble/v2.(*DB).rotateWAL"
	openingName  = "pebble/v2.Open"
	markerName   = "atomicfs.(*Marker).Move"
)

// within reports whether the calling goroutine is inside a function. It is
// asked only when something has failed.
func within(name string) bool {
	pcs := make([]uintptr, 256)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, name) {
			return true
		}
		if !more {
			return false
		}
	}
}

// giveUp ends what the calling goroutine is doing in Pebble; it does not
// return. A call of ours unwinds to shield, a goroutine of Pebble's ends.
func (g *guard) giveUp(reason string) {
	g.fence(&fault{kind: faultOther, op: "pebble", err: errors.New(reason)})
	if within(shieldName) {
		panic(fatal{})
	}
	runtime.Goexit()
}

// endRetry ends a goroutine of Pebble's whose work failed because the instance
// is fenced. Pebble would try again at once, for ever.
func (g *guard) endRetry() {
	if g.fault() != nil && !within(shieldName) {
		runtime.Goexit()
	}
}

// tell returns the outcome of an operation to Pebble, except for an error in
// three places where that would end the process.
//
//   - Naming a new manifest, Pebble panics in a goroutine of its own. That
//     goroutine is ended.
//
// In the other two nothing could recover. The goroutine waits for ever; it is
// one of ours, whoever waits for it is told by broken, and it costs what the
// given-up instance holds.
//
//   - Changing from one log to the next, Pebble panics with a lock released
//     that a deferred call releases again.
//   - Opening, once the log was replayed and flushed, Pebble takes down its file
//     cache while its background work still uses it.
func (g *guard) tell(err error) error {
	if err == nil || g.fault() == nil {
		return err
	}
	if within(rotationName) || g.flushed.Load() && within(openingName) {
		select {}
	}
	if within(markerName) && !within(shieldName) {
		runtime.Goexit()
	}
	return err
}

// track registers an open file so that release can close it.
func (g *guard) track(f vfs.File, path string) *guardFile {
	gf := &guardFile{File: f, guard: g, path: path, name: g.disk.PathBase(path)}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.files[gf] = struct{}{}
	return gf
}

func (g *guard) open(op, path string, kind func(op, path string, fn func() error) error, fn func() (vfs.File, error)) (*guardFile, error) {
	var gf *guardFile
	err := kind(op, path, func() error {
		f, err := fn()
		if err == nil {
			gf = g.track(f, path)
		}
		return err
	})
	return gf, err
}

func (g *guard) lookAt(_, _ string, fn func() error) error { return g.look(fn) }

// begun makes a new log the log in use.
func (g *guard) begun(f *guardFile) error {
	// Pebble syncs the folder as well, but only after it has the file.
	dir := g.disk.PathDir(f.path)
	if err := syncDir(g, dir); err != nil {
		return err
	}
	if err := g.parts.walCreated(g, g.dir, f.name); err != nil {
		return err
	}
	g.wal.Store(f)
	return nil
}

// Create implements vfs.FS.
func (g *guard) Create(path string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.open("create", path, g.change, func() (vfs.File, error) { return g.disk.Create(path, category) })
	if err != nil {
		return nil, err
	}
	if isWAL(f.name) && g.inside(path) {
		if err := g.begun(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// Link implements vfs.FS.
func (g *guard) Link(from, to string) error {
	return g.change("link", to, func() error { return g.disk.Link(from, to) })
}

// Open implements vfs.FS.
func (g *guard) Open(path string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := g.open("open", path, g.lookAt, func() (vfs.File, error) { return g.disk.Open(path, opts...) })
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenReadWrite implements vfs.FS.
func (g *guard) OpenReadWrite(path string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := g.open("open", path, g.change, func() (vfs.File, error) { return g.disk.OpenReadWrite(path, category, opts...) })
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenDir implements vfs.FS.
func (g *guard) OpenDir(path string) (vfs.File, error) {
	f, err := g.open("open", path, g.lookAt, func() (vfs.File, error) { return g.disk.OpenDir(path) })
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Remove implements vfs.FS.
func (g *guard) Remove(path string) error {
	if name := g.disk.PathBase(path); g.inside(path) && (isWAL(name) || isManifest(name)) {
		if err := g.parts.willRemove(g, g.dir, name); err != nil {
			return err
		}
	}
	return g.look(func() error { return g.disk.Remove(path) })
}

// RemoveAll implements vfs.FS.
func (g *guard) RemoveAll(path string) error {
	return g.look(func() error { return g.disk.RemoveAll(path) })
}

// Rename implements vfs.FS.
func (g *guard) Rename(from, to string) error {
	return g.change("rename", to, func() error { return g.disk.Rename(from, to) })
}

// ReuseForWrite implements vfs.FS.
func (g *guard) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := g.parts.willRemove(g, g.dir, g.disk.PathBase(from)); err != nil {
		return nil, err
	}
	f, err := g.open("reuse", to, g.change, func() (vfs.File, error) { return g.disk.ReuseForWrite(from, to, category) })
	if err != nil {
		return nil, err
	}
	if err := g.begun(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// MkdirAll implements vfs.FS.
func (g *guard) MkdirAll(path string, perm os.FileMode) error {
	return g.change("mkdir", path, func() error { return g.disk.MkdirAll(path, perm) })
}

// Lock implements vfs.FS. The data folder's own lock covers the database, and a
// given-up instance could never return this one.
func (*guard) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// List implements vfs.FS.
func (g *guard) List(path string) (names []string, err error) {
	err = g.look(func() error {
		names, err = g.disk.List(path)
		return err
	})
	return names, err
}

// Stat implements vfs.FS.
func (g *guard) Stat(path string) (info vfs.FileInfo, err error) {
	err = g.look(func() error {
		info, err = g.disk.Stat(path)
		return err
	})
	return info, err
}

// PathBase implements vfs.FS.
func (g *guard) PathBase(path string) string { return g.disk.PathBase(path) }

// PathJoin implements vfs.FS.
func (g *guard) PathJoin(elem ...string) string { return g.disk.PathJoin(elem...) }

// PathDir implements vfs.FS.
func (g *guard) PathDir(path string) string { return g.disk.PathDir(path) }

// GetDiskUsage implements vfs.FS.
func (g *guard) GetDiskUsage(path string) (vfs.DiskUsage, error) { return g.disk.GetDiskUsage(path) }

// Unwrap implements vfs.FS.
func (g *guard) Unwrap() vfs.FS { return g.disk }

// guardFile is an open file of a guarded instance.
type guardFile struct {
	vfs.File
	guard *guard
	path  string
	name  string

	// Pebble writes and syncs a log or manifest from one goroutine at a time;
	// synced is read by others.
	written int64
	crc     uint32
	synced  atomic.Int64
}

// Write implements vfs.File.
func (f *guardFile) Write(p []byte) (int, error) {
	g := f.guard
	if err := g.enter(); err != nil {
		return 0, err
	}
	if isManifest(f.name) {
		f.crc = crc32.Update(f.crc, castagnoli, p)
	}
	n, err := f.File.Write(p)
	f.written += int64(n)
	err = g.failed("write", f.path, faultWrite, err)
	g.leave()
	return n, g.tell(err)
}

// WriteAt implements vfs.File.
func (f *guardFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.guard.change("write", f.path, func() error {
		n, err = f.File.WriteAt(p, off)
		return err
	})
	return n, err
}

// Read implements vfs.File.
func (f *guardFile) Read(p []byte) (n int, err error) {
	err = f.guard.look(func() error {
		n, err = f.File.Read(p)
		return err
	})
	return n, err
}

// ReadAt implements vfs.File.
func (f *guardFile) ReadAt(p []byte, off int64) (int, error) {
	g := f.guard
	if err := g.enter(); err != nil {
		return 0, err
	}
	n, err := f.File.ReadAt(p, off)
	g.leave()
	if err == nil || errors.Is(err, io.EOF) {
		if g.readErrors.Load() != 0 {
			g.readErrors.Store(0)
		}
		return n, err
	}
	// Pebble retries a flush or compaction at once and for ever, and reports
	// it holding its lock. This is the one place to slow it down.
	tries := g.readErrors.Add(1)
	select {
	case <-time.After(min(time.Millisecond<<min(tries, 10), time.Second)):
	case <-g.broken:
	}
	return n, err
}

// Preallocate implements vfs.File. Pebble does not look at the result; a disk
// without room shows when it is written to.
func (f *guardFile) Preallocate(offset, length int64) error {
	return f.guard.look(func() error { return f.File.Preallocate(offset, length) })
}

// Stat implements vfs.File.
func (f *guardFile) Stat() (info vfs.FileInfo, err error) {
	err = f.guard.look(func() error {
		info, err = f.File.Stat()
		return err
	})
	return info, err
}

func (f *guardFile) sync(fn func() error) error {
	g := f.guard
	if err := g.enter(); err != nil {
		return err
	}
	err := g.failed("sync", f.path, faultSync, fn())
	g.leave()
	if err != nil {
		return g.tell(err)
	}
	f.synced.Store(f.written)
	// The inventory's lock is not taken inside an operation: its holder runs
	// operations itself.
	if isManifest(f.name) && g.inside(f.path) {
		g.parts.manifestSynced(manifestMark{name: f.name, size: f.written, crc: f.crc})
	}
	return nil
}

// Sync implements vfs.File.
func (f *guardFile) Sync() error { return f.sync(f.File.Sync) }

// SyncData implements vfs.File.
func (f *guardFile) SyncData() error { return f.sync(f.File.SyncData) }

// SyncTo implements vfs.File.
func (f *guardFile) SyncTo(length int64) (full bool, err error) {
	g := f.guard
	if err := g.enter(); err != nil {
		return false, err
	}
	full, err = f.File.SyncTo(length)
	err = g.failed("sync", f.path, faultSync, err)
	g.leave()
	return full, g.tell(err)
}

// Close implements vfs.File. It works on a fenced instance, too.
func (f *guardFile) Close() error {
	g := f.guard
	if g.fault() != nil {
		_ = g.tell(errFenced)
	}
	g.ops.RLock()
	defer g.ops.RUnlock()
	g.mu.Lock()
	_, open := g.files[f]
	delete(g.files, f)
	g.mu.Unlock()
	if !open {
		return nil
	}
	return f.File.Close()
}

// Prefetch implements vfs.File.
func (f *guardFile) Prefetch(offset, length int64) error {
	return f.guard.look(func() error { return f.File.Prefetch(offset, length) })
}
