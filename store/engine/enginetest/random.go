package enginetest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"setpoint.dev/setpoint/store/engine"
)

var seed = flag.Uint64("enginetest.seed", 0, "repeat the random run of the engine suite that logged this seed")

// randomRuns compares engine and model over random operations: once as always,
// and once as never before.
func randomRuns(t *testing.T, open func(t *testing.T, dir string) engine.Engine, durable bool) {
	seeds := []uint64{1, uint64(time.Now().UnixNano())}
	if *seed != 0 {
		seeds = []uint64{*seed}
	}
	steps := 2500
	if testing.Short() {
		steps = 800
	}
	for i, seed := range seeds {
		t.Run(fmt.Sprint("random operations give the answers of the model ", i), func(t *testing.T) {
			t.Logf("seed %d", seed)
			r := &random{
				subject: newSubject(t, open),
				Rand:    rand.New(rand.NewPCG(seed, seed)),
				durable: durable,
			}
			for range steps {
				r.step()
				if t.Failed() {
					t.Fatalf("repeat with -enginetest.seed=%d", seed)
				}
			}
			r.check()
		})
	}
}

type random struct {
	*subject
	*rand.Rand
	durable bool
}

var (
	randomPlanes    = []string{"main", "a", "a\x01", "ab"}
	randomResources = []string{"pods", "pod", "a", "a\xff"}
	randomKeys      = slices.DeleteFunc(slices.Clone(exotic), func(key string) bool { return len(key) > 100 })
)

func pick[T any](r *random, from []T) T {
	return from[r.IntN(len(from))]
}

func (r *random) table() engine.Table {
	return engine.Table{Plane: pick(r, randomPlanes), Resource: pick(r, randomResources)}
}

// rev returns a revision from 0 to a little above Current, the newer the more
// likely.
func (r *random) rev() engine.Revision {
	newest := int64(r.model.last)
	return engine.Revision(max(r.Int64N(newest+4), r.Int64N(newest+4)))
}

// step does one operation. Reads are of random tables, so some are of tables
// that do not exist.
func (r *random) step() {
	switch n := r.IntN(1000); {
	case n < 350:
		r.write()
	case n < 450:
		r.checkScan(r.table(), "", "", 0)
	case n < 550:
		r.checkScan(r.table(), pick(r, randomKeys), pick(r, randomKeys), r.rev())
	case n < 680:
		r.checkLog(r.table(), r.rev())
	case n < 780:
		r.checkVersions(r.table(), pick(r, randomKeys))
	case n < 880:
		r.readVersion()
	case n < 900:
		r.checkTables()
		r.checkCurrent()
	case n < 920:
		r.checkLoad()
	case n < 930:
		r.reserve(r.model.last + engine.Revision(r.IntN(50)))
	case n < 985:
		r.lift()
	case n < 990:
		r.drop(pick(r, randomPlanes))
	case n < 995 && r.durable:
		r.reopen()
	case n < 998:
		r.check()
	}
}

// write commits a group of up to four transactions with up to six changes.
// Objects that are there are deleted or updated, others created.
func (r *random) write() {
	var group []engine.Txn
	for range 1 + r.IntN(4) {
		if r.IntN(10) == 0 {
			r.model.last += engine.Revision(r.IntN(5)) // given out elsewhere
		}
		var ws []write
		for range 1 + r.IntN(6) {
			w := put(r.table(), pick(r, randomKeys))
			if slices.ContainsFunc(ws, func(o write) bool { return o.table == w.table && o.key == w.key }) {
				continue
			}
			_, live := r.model.live(w.table, w.key)
			w.delete = live && r.IntN(3) == 0
			ws = append(ws, w)
		}
		txn := r.txn(ws...)
		r.model.commit(txn)
		group = append(group, txn)
	}
	if err := r.engine.Commit(r.t.Context(), group, 0); err != nil {
		r.t.Fatalf("Commit: %v", err)
	}
}

// readVersion gets a version that is there, or one that is not.
func (r *random) readVersion() {
	t, key, rev := r.table(), pick(r, randomKeys), r.rev()
	if versions := r.model.retained(t, key); len(versions) > 0 && r.IntN(4) > 0 {
		rev = pick(r, versions).Rev
	}
	r.checkGet(t, key, rev)
}

// lift compacts a table that exists.
func (r *random) lift() {
	t, upTo := r.table(), r.rev()
	if _, ok := r.model.tables[t]; !ok {
		return
	}
	if r.model.reserved > r.model.last {
		// The floor could come to lie above revisions that are yet to be
		// committed; a store does not ask for that.
		upTo = min(upTo, r.model.last)
	}
	r.compact(t, upTo)
}
