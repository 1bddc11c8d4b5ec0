package watch

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"setpoint.dev/setpoint/store"
)

// TestRingReadersSeeAllOrAreTold reads a ring that is written to at full speed.
// Every reading must be without a gap, or be refused.
func TestRingReadersSeeAllOrAreTold(t *testing.T) {
	const writes = 300_000
	r := newRing(0, 8)
	var written atomic.Int64
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			told, refused := 0, 0
			for written.Load() < writes {
				upTo := store.Revision(written.Load())
				after := max(0, upTo-store.Revision(rand.IntN(9)))
				want, good := after, true
				ok := r.read(after, upTo, func(c *store.Change) bool {
					want++
					good = good && c.Rev == want
					return true
				})
				switch {
				case !ok:
					refused++
				case !good || want != upTo:
					t.Errorf("read %d to %d, good %v, want up to %d", after, want, good, upTo)
					return
				default:
					told++
				}
			}
			t.Logf("%d readings, %d refused", told, refused)
		})
	}
	object := &store.Object{}
	for rev := store.Revision(1); rev <= writes; rev++ {
		if r.full() {
			r.evict()
		}
		r.put(&store.Change{Rev: rev, New: object})
		written.Store(int64(rev))
	}
	readers.Wait()
}

func TestRingGrowsToItsLimit(t *testing.T) {
	r := newRing(10, 64)
	object := &store.Object{}
	for rev := store.Revision(11); rev <= 200; rev++ {
		if r.full() {
			r.evict()
		}
		r.put(&store.Change{Rev: rev, New: object})
		oldest := max(10, rev-64)
		if r.reaches(oldest-1) || !r.reaches(oldest) {
			t.Fatalf("at %d the floor is %d, want %d", rev, r.floor.Load(), oldest)
		}
		n := 0
		if ok := r.read(oldest, rev, func(*store.Change) bool { n++; return true }); !ok || n != int(rev-oldest) {
			t.Fatalf("read %d changes, %v; want %d", n, ok, rev-oldest)
		}
	}
	if n := len(*r.slots.Load()); n != 64 {
		t.Errorf("%d slots", n)
	}
}
