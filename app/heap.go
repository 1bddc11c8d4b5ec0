package app

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The collector's pace. Go collects when as much is new as was in use, which
// for a small heap is some hundred times a minute under load: a fifth of all
// processor time. A server that is busy gets spare bytes to fill between two
// collections, however little is in use; one that is quiet for a while collects
// once more, gives the memory back and keeps to Go's pace.
const (
	spare       = 128 << 20
	goPercent   = 100 // Go's own pace
	paceEvery   = time.Second
	quietAfter  = 3 // looks without a collection
	maxPercent  = 3200
	liveMetric  = "/gc/heap/live:bytes"
	cycleMetric = "/gc/cycles/total:gc-cycles"
)

// paceHeap tends the collector's pace until ctx ends, and calls quiet when a time
// of much work is over. Who has set a pace by themselves keeps it.
func paceHeap(ctx context.Context, quiet func()) {
	if os.Getenv("GOGC") != "" {
		return
	}
	seen := []metrics.Sample{{Name: liveMetric}, {Name: cycleMetric}}
	var p pace
	for tick := time.NewTicker(paceEvery); ; {
		select {
		case <-tick.C:
			metrics.Read(seen)
			percent, changed := p.look(seen[0].Value.Uint64(), seen[1].Value.Uint64())
			if changed {
				debug.SetGCPercent(percent)
			}
			if changed && p.isQuiet() {
				quiet()
				metrics.Read(seen)
				p.cycles = seen[1].Value.Uint64() // a collection of its own is no sign of work
			}
		case <-ctx.Done():
			tick.Stop()
			return
		}
	}
}

// pace is how fast collections follow each other.
type pace struct {
	cycles  uint64 // at the last look
	quiet   int    // looks since the last collection
	percent int    // as it was set last; 0 for Go's own
}

// isQuiet says that nothing has been collected for a while.
func (p *pace) isQuiet() bool { return p.quiet >= quietAfter }

// look returns the percentage to go by, and whether it is another one: live
// bytes are in use after as many cycles.
func (p *pace) look(live, cycles uint64) (percent int, changed bool) {
	was := max(p.percent, goPercent)
	percent = was
	switch {
	case cycles != p.cycles:
		p.quiet = 0
		percent = min(max(int(spare*100/max(live, 1)), goPercent), maxPercent) //nolint:gosec // of some bytes
	default:
		if p.quiet++; p.isQuiet() {
			percent = goPercent
		}
	}
	p.cycles = cycles
	// Setting it stops the world, so what is near enough stays.
	if diff := percent - was; diff*8 < was && -diff*8 < was && percent != goPercent || percent == was {
		return was, false
	}
	p.percent = percent
	return percent, true
}
