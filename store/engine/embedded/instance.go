package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"setpoint.dev/setpoint/store/engine"
)

const (
	blockCacheSize = 8 << 20
	blockSize      = 32 << 10 // the store reads all of it, or a version now and then
	memTableSize   = 4 << 20
	maxOpenFiles   = 256
	tableSize      = 4 << 20

	// sealAfter is how long a log goes without commits before it is sealed.
	sealAfter = 50 * time.Millisecond
)

const restoreHint = "if it cannot be mended, move the folder away and put a backup copy in its place"

// instance is one opening of the database. It serves until its guard is fenced
// or it is closed.
type instance struct {
	db    *pebble.DB
	guard *guard
	jobs  chan job // to the writing goroutine
	quit  chan struct{}
	done  chan struct{} // closed when the writing goroutine ended
	// written says that there were commits. It is the writing goroutine's.
	written bool
	write   *pebble.WriteOptions
	batch   *pebble.Batch // the committer's, kept for its buffer

	mu      sync.Mutex // guards cursors
	cursors map[*cursor]struct{}
}

type job struct {
	batch  *pebble.Batch
	result chan error
}

// openInstance opens or creates the database of a data folder. Whatever goes
// wrong, a Pebble that failed half way no longer touches the folder when it
// returns.
func openInstance(disk vfs.FS, cfg *Config, create bool) (*instance, error) {
	parts := &inventory{wals: make(map[string]struct{})}
	database := disk.PathJoin(cfg.Dir, databaseName)
	if !create {
		var err error
		if parts, err = checkFolder(disk, cfg.Dir); err != nil {
			return nil, fmt.Errorf("%s is not whole: %w; %s", cfg.Dir, err, restoreHint)
		}
	}
	g := newGuard(disk, cfg.Dir, parts, cfg.Logger)
	i := &instance{
		guard:   g,
		jobs:    make(chan job),
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
		write:   pebble.Sync,
		cursors: make(map[*cursor]struct{}),
	}
	if cfg.NoSync {
		i.write = pebble.NoSync
	}
	err := g.call(func() (err error) {
		i.db, err = pebble.Open(database, pebbleOptions(g, create))
		return err
	})
	if f := g.fault(); f != nil {
		g.release()
		return nil, f
	}
	if err != nil {
		g.fence(&fault{kind: faultOther, op: "open", path: database, err: err})
		g.release()
		return nil, fmt.Errorf("%s does not open: %w; %s", database, err, restoreHint)
	}
	i.batch = i.db.NewBatch()
	go i.writeLoop()
	return i, nil
}

// checkFolder looks for damage that Pebble would not report.
func checkFolder(disk vfs.FS, dir string) (*inventory, error) {
	parts, err := loadInventory(disk, dir)
	if err != nil {
		return nil, err
	}
	for name := range parts.wals {
		if err := checkWAL(disk, disk.PathJoin(dir, databaseName, name)); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

func pebbleOptions(g *guard, create bool) *pebble.Options {
	opts := &pebble.Options{
		FS:                          g,
		CacheSize:                   blockCacheSize,
		MemTableSize:                memTableSize,
		MemTableStopWritesThreshold: 3,
		L0CompactionThreshold:       8,
		L0StopWritesThreshold:       32,
		MaxOpenFiles:                maxOpenFiles,
		FormatMajorVersion:          pebble.FormatNewest,
		CompactionConcurrencyRange:  g.compactions,
		ErrorIfExists:               create,
		ErrorIfNotExists:            !create,
		Logger:                      &logger{guard: g, log: g.log},
		EventListener:               events(g),
	}
	for i := range opts.TargetFileSizes {
		opts.TargetFileSizes[i] = tableSize
	}
	// What is flushed is soon compacted again: it is not worth compressing.
	opts.Levels[0].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	for i := range opts.Levels {
		opts.Levels[i].BlockSize = blockSize
	}
	for i := 1; i < len(opts.Levels); i++ {
		opts.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.FastestCompression }
	}
	return opts
}

// compactions is how many compactions may run at a time: none until the store
// has loaded its objects or takes commits, unless far too many tables lie on
// the first level. Pebble asks when a table is flushed.
func (g *guard) compactions() (atLeast, atMost int) {
	if !g.serving.Load() {
		return 0, 2
	}
	return 1, 2
}

// events tells the log what goes wrong in the background. Damage in a table is
// an error of the read that met it, not the end of the process, which is what
// Pebble makes of it when nobody listens.
func events(g *guard) *pebble.EventListener {
	log := g.log
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			g.endRetry()
			log.Error("store background work failed", "err", err)
		},
		FlushBegin: func(pebble.FlushInfo) { g.flushed.Store(true) },
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			log.Error("store is damaged", "path", info.Path, "err", info.Details)
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			log.Warn("store writes wait for compaction", "reason", info.Reason)
		},
	}
}

// logger is Pebble's logger. Its Fatalf does not return, as Pebble expects,
// but leaves the process alive.
type logger struct {
	guard *guard
	log   *slog.Logger
}

// Infof implements pebble.Logger.
func (l *logger) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("pebble", "message", strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}

// Errorf implements pebble.Logger.
func (l *logger) Errorf(format string, args ...any) {
	if l.guard.fault() == nil {
		l.log.Error("pebble", "message", strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}

// Fatalf implements pebble.Logger.
func (l *logger) Fatalf(format string, args ...any) {
	l.guard.giveUp(fmt.Sprintf(format, args...))
}

// call runs a call into Pebble that may wait for its background work, and
// returns early when the instance is fenced: that work then never ends.
func (g *guard) call(fn func() error) error {
	result := make(chan error, 1)
	go func() { result <- g.shield(fn) }()
	return g.await(result)
}

// await returns a result, or the fault that makes it pointless to wait. A
// result that is there counts, whatever happened after.
func (g *guard) await(result <-chan error) error {
	select {
	case err := <-result:
		return g.explain(err)
	case <-g.broken:
	}
	select {
	case err := <-result:
		return g.explain(err)
	default:
		return g.fault()
	}
}

// explain puts the fault that fenced the instance in place of an error that
// only followed from it.
func (g *guard) explain(err error) error {
	if f := g.fault(); f != nil && err != nil {
		return f
	}
	return err
}

// writeLoop applies the committer's batches. The committer does not do so
// itself because Pebble may never return from it.
func (i *instance) writeLoop() {
	defer close(i.done)
	seal := time.NewTimer(sealAfter)
	seal.Stop()
	for {
		select {
		case j := <-i.jobs:
			i.written = true
			i.guard.serving.Store(true)
			err := i.guard.shield(func() error { return i.db.Apply(j.batch, i.write) })
			j.result <- err
			seal.Reset(sealAfter)
		case <-seal.C:
			// A failure is for the next commit to report.
			_ = i.seal()
		case <-i.quit:
			return
		}
		if i.guard.fault() != nil {
			return
		}
	}
}

// seal puts a note behind the last group.
func (i *instance) seal() error {
	return i.guard.shield(func() error { return i.db.LogData(i.note(nil), i.write) })
}

// note says how far the log in use is synced.
func (i *instance) note(b []byte) []byte {
	f := i.guard.wal.Load()
	log, err := walNumber(f.name)
	if err != nil {
		return b // no log of Pebble's has such a name
	}
	return appendNote(b, log, f.synced.Load())
}

// apply writes the committer's batch and waits until it is durable.
func (i *instance) apply(b *pebble.Batch) error {
	result := make(chan error, 1)
	select {
	case i.jobs <- job{batch: b, result: result}:
		return i.guard.await(result)
	case <-i.guard.broken:
		return i.guard.fault()
	}
}

// stopReads ends all iterations; their next step returns ErrClosed or the
// fault.
func (i *instance) stopReads() {
	i.mu.Lock()
	open := make([]*cursor, 0, len(i.cursors))
	for c := range i.cursors {
		open = append(open, c)
	}
	i.mu.Unlock()
	for _, c := range open {
		c.stop(engine.ErrClosed)
	}
}

// close ends the instance in good order, or gives it up if it is fenced. A tidy
// one leaves no commits in the log, so that the next opening has none to replay.
func (i *instance) close(tidy bool) error {
	i.stopReads()
	close(i.quit)
	select {
	case <-i.done:
	case <-i.guard.broken:
	}
	if i.guard.fault() == nil {
		err := i.guard.call(func() error {
			err := i.seal()
			if tidy && i.written {
				err = errors.Join(err, i.db.Flush())
			}
			return errors.Join(err, i.batch.Close(), i.db.Close())
		})
		if i.guard.fault() == nil {
			return err
		}
	}
	i.abandon()
	return i.guard.fault()
}

// abandon leaves a fenced instance to itself: nothing it still does reaches
// the disk.
func (i *instance) abandon() {
	i.guard.release()
}
