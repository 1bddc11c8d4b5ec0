// Package embedded is the engine that keeps the store in a folder on this
// machine, in a Pebble database.
//
// In come groups of transactions; each group is one batch and one sync. Out
// come versions and log entries from a consistent state of the database. What
// lies where is drawn in layout.go (keys and records) and format.go (files).
//
// What always holds:
//
//   - A group whose Commit returned nil is found by every later Open, whole.
//     A group that was interrupted is found whole or not at all.
//   - A folder opens only if it is whole. A log that ends in the middle of its
//     last group is whole; a missing or damaged file is not, and the error
//     says which. Pebble is laxer in places: see inventory.go and wal.go.
//   - After a failed sync nothing is written any more until the process is
//     restarted. A sync is never tried again: the kernel may have dropped what
//     it could not write and report success the second time.
//   - A full disk refuses commits and nothing else, and they succeed again when
//     there is room.
//   - No failure of the disk ends the process or blocks a call for ever: see
//     guard.go.
//
// Two locks meet in Engine: life, then state. Neither is held while a caller's
// function runs.
package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"setpoint.dev/setpoint/store/engine"
)

// Config says where a store lies. Its zero value works once Dir is set.
type Config struct {
	// Dir is the data folder. Open creates it if need be.
	Dir string
	// Logger hears of trouble, and at debug level of what Pebble does;
	// slog.Default() if nil.
	Logger *slog.Logger
	// FS is the file system that holds Dir; the machine's if nil.
	FS vfs.FS
	// Reserve is how many bytes of the disk are left free: with less room,
	// commits are refused before anything is written. 0 means 64 MiB, a
	// negative value none.
	Reserve int64
	// NoSync acknowledges commits that a power cut may take back. It is for
	// control planes that end with a test, and shows that the crash test notices; a
	// store that runs with it breaks the engine's contract.
	NoSync bool
}

// Engine is a store in a folder. See engine.Engine for its methods.
type Engine struct {
	cfg     Config
	disk    vfs.FS
	lock    interface{ Close() error }
	space   space
	closing chan struct{} // closed by Close

	life   sync.RWMutex // held for reading by calls that use inst, for writing to replace it
	inst   *instance
	closed bool

	state     sync.Mutex // guards the fields below
	committed engine.Revision
	reserve   engine.Revision
	floors    map[engine.Table]engine.Revision

	// unsettled says that a group's outcome is unknown until Recover. Only
	// Commit and Recover look at it, and they come from one goroutine.
	unsettled bool
	note      [noteLen]byte
}

var _ engine.Engine = (*Engine)(nil)

// Open opens the store in a folder, or creates it in one that is empty or
// missing.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	e, err := open(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return e, nil
}

func open(ctx context.Context, cfg Config) (_ *Engine, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if cfg.FS == nil {
		cfg.FS = vfs.Default
	}
	if vfs.Root(cfg.FS) == vfs.Default {
		if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
			return nil, err
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Reserve == 0 {
		cfg.Reserve = defaultReserve
	}
	disk := cfg.FS
	if err := makeFolder(disk, cfg.Dir); err != nil {
		return nil, err
	}
	lock, err := lockFolder(disk, cfg.Dir)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		cfg:     cfg,
		disk:    disk,
		lock:    lock,
		space:   space{disk: disk, dir: cfg.Dir, reserve: cfg.Reserve},
		closing: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	create, err := prepareFolder(disk, cfg.Dir)
	if err != nil {
		return nil, err
	}
	inst, err := openInstance(disk, &cfg, create)
	if err != nil {
		return nil, err
	}
	if create {
		err = writeFile(disk, cfg.Dir, formatName, []byte(formatText))
	}
	if err == nil {
		err = e.adopt(inst)
	}
	if err != nil {
		_ = inst.close(false)
		return nil, err
	}
	return e, nil
}

// makeFolder creates the data folder and makes its name durable.
func makeFolder(disk vfs.FS, dir string) error {
	if exists(disk, dir) {
		return nil
	}
	if err := disk.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(disk, disk.PathDir(dir))
}

// adopt makes inst the engine's instance, with the state it holds.
func (e *Engine) adopt(inst *instance) error {
	committed, reserve, floors, err := inst.readMeta()
	if err != nil {
		return fmt.Errorf("%s is not whole: %w; %s", e.cfg.Dir, err, restoreHint)
	}
	e.inst = inst
	e.state.Lock()
	defer e.state.Unlock()
	e.committed, e.reserve, e.floors = committed, max(reserve, e.reserve), floors
	return nil
}

// readMeta reads everything under 'm'.
func (i *instance) readMeta() (committed, reserve engine.Revision, floors map[engine.Table]engine.Revision, err error) {
	c, err := i.newCursor([]byte{prefixMeta}, []byte{prefixMeta + 1})
	if err != nil {
		return 0, 0, nil, err
	}
	defer c.close()
	floors = make(map[engine.Table]engine.Revision)
	read := func(k, v []byte) error {
		rev, err := decodeRev(v)
		if err != nil {
			return fmt.Errorf("%q: %w", k, err)
		}
		switch {
		case string(k) == string(keyCurrent):
			committed = rev
		case string(k) == string(keyReserve):
			reserve = rev
		default:
			t, err := decodeFloorKey(k)
			if err != nil {
				return err
			}
			floors[t] = rev
		}
		return nil
	}
	ok := c.step(first, read)
	for ok {
		ok = c.step(next, read)
	}
	return committed, reserve, floors, c.failure()
}

// Current implements engine.Engine.
func (e *Engine) Current() engine.Revision {
	e.state.Lock()
	defer e.state.Unlock()
	return max(e.committed, e.reserve)
}

// acknowledged is the newest revision whose commit returned. Reads go no
// further, because Pebble shows a batch before it is durable. They ask after
// they opened their cursor: a revision from before may be compacted by then.
func (e *Engine) acknowledged() engine.Revision {
	e.state.Lock()
	defer e.state.Unlock()
	return e.committed
}

func (e *Engine) floor(t engine.Table) engine.Revision {
	e.state.Lock()
	defer e.state.Unlock()
	return e.floors[t]
}

// use returns the instance for a call; the caller then owes life.RUnlock.
func (e *Engine) use() (*instance, error) {
	e.life.RLock()
	if e.closed {
		e.life.RUnlock()
		return nil, engine.ErrClosed
	}
	return e.inst, nil
}

// Commit implements engine.Engine.
func (e *Engine) Commit(ctx context.Context, group []engine.Txn, reserve engine.Revision) error {
	if err := e.commit(ctx, group, reserve); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func (e *Engine) commit(ctx context.Context, group []engine.Txn, reserve engine.Revision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.mend(ctx); err != nil {
		return err
	}
	inst, err := e.use()
	if err != nil {
		return err
	}
	defer e.life.RUnlock()

	e.state.Lock()
	committed, reserved := e.committed, e.reserve
	e.state.Unlock()
	size, err := measure(group, committed)
	if err != nil {
		return err
	}
	if len(group) == 0 && reserve <= reserved {
		return nil
	}
	if err := e.space.check(size); err != nil {
		return err
	}
	b := inst.batch
	b.Reset()
	if err := b.LogData(inst.note(e.note[:0]), nil); err != nil {
		return err
	}
	for i := range group {
		if err := encodeTxn(b, &group[i]); err != nil {
			return err
		}
	}
	var rev [revLen]byte
	if len(group) > 0 {
		committed = group[len(group)-1].Rev
		putRev(rev[:], committed)
		if err := b.Set(keyCurrent, rev[:], nil); err != nil {
			return err
		}
	}
	if reserve > reserved {
		reserved = reserve
		putRev(rev[:], reserved)
		if err := b.Set(keyReserve, rev[:], nil); err != nil {
			return err
		}
	}
	if err := inst.apply(b); err != nil {
		e.unsettled = true
		return errors.Join(engine.ErrUnknown, err)
	}
	e.state.Lock()
	defer e.state.Unlock()
	e.committed, e.reserve = committed, reserved
	return nil
}

// mend replaces an instance that was fenced between commits. With a group
// unsettled that is for Recover to do.
func (e *Engine) mend(ctx context.Context) error {
	inst, err := e.use()
	if err != nil {
		return err
	}
	e.life.RUnlock()
	f := inst.guard.fault()
	switch {
	case f == nil:
		return nil
	case e.unsettled || f.kind == faultSync || f.kind == faultOther:
		return errors.Join(engine.ErrUnknown, f)
	}
	return e.Recover(ctx)
}

// measure checks a group and returns about how many bytes it takes.
func measure(group []engine.Txn, after engine.Revision) (int64, error) {
	var size int64
	for i := range group {
		txn := &group[i]
		if txn.Rev <= after {
			return 0, fmt.Errorf("revision %d follows %d", txn.Rev, after)
		}
		after = txn.Rev
		for j := range txn.Changes {
			c := &txn.Changes[j]
			for _, name := range [...]string{c.Plane, c.Resource, c.Key} {
				if name == "" || strings.IndexByte(name, 0) >= 0 {
					return 0, fmt.Errorf("revision %d: change of %q %q %q: names are not empty and hold no NUL byte",
						txn.Rev, c.Plane, c.Resource, c.Key)
				}
			}
			size += int64(len(c.Value) + len(c.Index) + len(txn.Provenance) + 3*len(c.Key) + 64)
		}
	}
	return size, nil
}

// encodeTxn adds a transaction to a batch, straight into the batch's buffer.
func encodeTxn(b *pebble.Batch, txn *engine.Txn) error {
	for seq := range txn.Changes {
		c := &txn.Changes[seq]
		t := engine.Table{Plane: c.Plane, Resource: c.Resource}
		table := 1 + len(t.Plane) + 1 + len(t.Resource) + 1

		op := b.SetDeferred(table+len(c.Key)+1+revLen, versionLen(c, txn.Time, txn.Provenance))
		appendVersionKey(op.Key[:0], t, c.Key, txn.Rev)
		appendVersion(op.Value[:0], c, txn.Time, txn.Provenance)
		if err := op.Finish(); err != nil {
			return err
		}
		op = b.SetDeferred(table+revLen+seqLen, entryLen(c, txn.Time))
		appendEntryKey(op.Key[:0], t, txn.Rev, uint32(seq))
		appendEntry(op.Value[:0], c, txn.Time)
		if err := op.Finish(); err != nil {
			return err
		}
	}
	return nil
}

// Recover implements engine.Engine.
func (e *Engine) Recover(ctx context.Context) error {
	if err := e.recover(ctx); err != nil {
		return fmt.Errorf("recover store: %w", err)
	}
	return nil
}

func (e *Engine) recover(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.life.Lock()
	defer e.life.Unlock()
	if e.closed {
		return engine.ErrClosed
	}
	f := e.inst.guard.fault()
	if f == nil {
		e.unsettled = false
		return nil
	}
	if f.kind == faultSync || f.kind == faultOther {
		return f
	}
	if err := e.space.checkNow(); err != nil {
		return err
	}
	e.inst.stopReads()
	e.inst.abandon()
	inst, err := openInstance(e.disk, &e.cfg, false)
	if err != nil {
		return e.unrecovered(err)
	}
	if err := e.adopt(inst); err != nil {
		if cerr := inst.close(false); cerr != nil {
			err = cerr
		}
		return e.unrecovered(err)
	}
	e.unsettled = false
	return nil
}

// unrecovered looks at why a fresh instance did not open. After a failed sync
// nothing is tried again.
func (e *Engine) unrecovered(err error) error {
	if f, ok := errors.AsType[*fault](err); ok && (f.kind == faultSync || f.kind == faultOther) {
		e.inst.guard.first.Store(f)
	}
	return err
}

// Close implements engine.Engine. It waits for calls under way; iterations end
// at their next step.
func (e *Engine) Close() error {
	e.state.Lock()
	select {
	case <-e.closing:
		e.state.Unlock()
		return nil
	default:
		close(e.closing)
	}
	e.state.Unlock()

	e.life.Lock()
	defer e.life.Unlock()
	e.closed = true
	err := e.inst.close(e.space.checkNow() == nil)
	if err := errors.Join(err, e.lock.Close()); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// setFloor adds a table's floor to a batch.
func setFloor(b *pebble.Batch, t engine.Table, floor engine.Revision) error {
	return b.Set(floorKey(t), binary.BigEndian.AppendUint64(nil, uint64(floor)), nil)
}
