package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/embedded"
)

// family groups the operations that a disk can fail.
func family(op errorfs.Op) string {
	switch op.Kind {
	case errorfs.OpFileWrite:
		return "write"
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		return "sync"
	case errorfs.OpCreate, errorfs.OpRename, errorfs.OpReuseForWrite, errorfs.OpLink, errorfs.OpMkdirAll, errorfs.OpRemove:
		return "name"
	default:
		return ""
	}
}

// failing fails the n-th operation of a family, once.
type failing struct {
	family string
	n      int64
	err    error
	count  atomic.Int64
	hit    atomic.Pointer[string]
}

func (f *failing) String() string { return "failing" }

func (f *failing) MaybeError(op errorfs.Op) error {
	if family(op) != f.family || strings.HasSuffix(op.Path, "LOCK") || f.count.Add(1) != f.n {
		return nil
	}
	where := fmt.Sprintf("%v of %s", op.Kind, op.Path)
	f.hit.Store(&where)
	return &os.PathError{Op: f.family, Path: op.Path, Err: f.err}
}

// work is what the fault test does to a store: it commits, compacts, reads,
// backs up and reopens, and goes on after a fault as the store would. acked
// follows what was acknowledged; maybe is the end of a group whose outcome is
// unknown.
type work struct {
	h            history
	fs           vfs.FS
	acked, maybe engine.Revision
}

func (w *work) run(ctx context.Context) error {
	for round := range 2 {
		e, err := embedded.Open(ctx, embedded.Config{Dir: dir, FS: w.fs, Logger: quiet()})
		if err != nil {
			return err
		}
		err = w.use(ctx, e, round)
		if err := errors.Join(err, e.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (w *work) use(ctx context.Context, e *embedded.Engine, round int) error {
	for i := range 6 {
		if err := w.commit(ctx, e); err != nil {
			return err
		}
		if i%3 == 2 {
			if err := e.Compact(ctx, pods, e.Current()-20); err != nil {
				continue // the next commit tells what to do
			}
		}
		if i == 4 {
			// A copy that fails may do so without harm to the store.
			if err := e.Backup(ctx, fmt.Sprintf("/copy%d", round)); err != nil && exists(w.fs, fmt.Sprintf("/copy%d/FORMAT", round)) {
				return fmt.Errorf("failed backup left its folder: %w", err)
			}
		}
		for _, err := range e.Scan(ctx, pods, "", "", 0) {
			if err != nil {
				break
			}
		}
	}
	return nil
}

func (w *work) commit(ctx context.Context, e *embedded.Engine) error {
	group := w.h.group(w.acked, 6)
	for try := 0; ; try++ {
		err := e.Commit(ctx, group, 0)
		if err == nil {
			w.acked, w.maybe = group[len(group)-1].Rev, 0
			return nil
		}
		if try > 3 {
			return fmt.Errorf("tried %d times: %w", try, err)
		}
		if !errors.Is(err, engine.ErrUnknown) {
			if !errors.Is(err, engine.ErrNoSpace) {
				return err
			}
			continue
		}
		w.maybe = group[len(group)-1].Rev
		if rerr := e.Recover(ctx); rerr != nil {
			if !errors.Is(err, engine.ErrFailed) && errors.Is(rerr, engine.ErrFailed) && errors.Is(err, syscall.ENOSPC) {
				return fmt.Errorf("no way back from a full disk: %w", rerr)
			}
			return errors.Join(err, rerr)
		}
		if got := e.Current(); got == w.maybe {
			w.acked, w.maybe = got, 0
			return nil
		} else if got != w.acked {
			return fmt.Errorf("LOST: recovered at %d, want %d or %d", got, w.acked, w.maybe)
		}
		w.maybe = 0
	}
}

func exists(fs vfs.FS, path string) bool {
	_, err := fs.Stat(path)
	return err == nil
}

// within fails the test with all stacks when fn takes too long.
func within(t *testing.T, d time.Duration, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(d):
		var stacks bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		t.Fatalf("hangs:\n%s", &stacks)
	}
}

// TestFaultAtEverySite fails each operation of a workload in turn and looks at
// what a healthy disk then shows: after the failure alone, and after a power
// cut that took all that was not synced.
func TestFaultAtEverySite(t *testing.T) {
	h := history{keys: 8, padding: 6000}
	var mu sync.Mutex
	sites, hits, ended := map[string]int{}, map[string]int{}, map[string]int{}
	type cell struct {
		family string
		err    error
	}
	var wg sync.WaitGroup
	limit := make(chan struct{}, 2)
	for _, c := range []cell{
		{"write", syscall.EIO},
		{"write", syscall.ENOSPC},
		{"sync", syscall.EIO},
		{"sync", syscall.ENOSPC},
		{"name", syscall.EIO},
		{"name", syscall.ENOSPC},
	} {
		// Background work moves sites about a little: go on until no fault
		// was hit for a while.
		count := &failing{family: c.family, n: -1}
		if err := (&work{h: h, fs: errorfs.Wrap(vfs.NewMem(), count)}).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		total := count.count.Load() + 5
		sites[c.family] = int(total)
		step := int64(1)
		if sampled() {
			step = 7
		}
		for n := int64(1); n <= total; n += step {
			limit <- struct{}{}
			wg.Go(func() {
				defer func() { <-limit }()
				disk := vfs.NewCrashableMem()
				inject := &failing{family: c.family, n: n, err: c.err}
				w := &work{h: h, fs: errorfs.Wrap(disk, inject)}
				var err error
				within(t, 2*time.Minute, func() { err = w.run(t.Context()) })
				where := inject.hit.Load()
				mu.Lock()
				defer mu.Unlock()
				if where == nil {
					if err != nil {
						t.Errorf("%s %d: %v without a fault", c.family, n, err)
					}
					return
				}
				name := c.family + " " + c.err.Error()
				hits[name]++
				if c.family == "sync" && err == nil && strings.Contains(*where, dir) {
					t.Errorf("%s: carried on after a failed sync", *where)
				}
				switch {
				case err == nil:
					ended[name+": carried on"]++
				case errors.Is(err, engine.ErrFailed):
					ended[name+": failed for good"]++
				default:
					ended[name+": refused"]++
				}
				if err != nil && (strings.Contains(err.Error(), "LOST") || strings.Contains(err.Error(), "no way back") || strings.Contains(err.Error(), "left its folder")) {
					t.Errorf("%s: %v", *where, err)
				}
				for _, left := range []struct {
					what string
					fs   *vfs.MemFS
				}{
					{"as it was", disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, uint64(n)))})},
					{"after a power cut", disk.CrashClone(vfs.CrashCloneCfg{})},
				} {
					e, err := embedded.Open(t.Context(), embedded.Config{Dir: dir, FS: left.fs, Logger: quiet()})
					if err != nil {
						t.Errorf("%s, %s: acknowledged %d: %v", *where, left.what, w.acked, err)
						continue
					}
					rev, _, err := h.verify(t.Context(), e)
					if err != nil || rev != w.acked && rev != w.maybe {
						t.Errorf("%s, %s: at %d, acknowledged %d, perhaps %d: %v", *where, left.what, rev, w.acked, w.maybe, err)
					}
					if err := e.Close(); err != nil {
						t.Errorf("%s, %s: %v", *where, left.what, err)
					}
				}
			})
		}
		wg.Wait()
	}
	t.Logf("sites: %v; faults that hit: %v", sites, hits)
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range ended {
			if !yield(name) {
				return
			}
		}
	}) {
		t.Logf("%s %d", name, ended[name])
	}
}
