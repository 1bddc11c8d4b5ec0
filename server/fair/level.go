package fair

import (
	"context"
	"math"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/util/flowcontrol/debug"
	fq "k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	work "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// level is a priority level: upstream's queues, and a lane beside them. Half of the
// level's seats, rounded down, are the lane's: it gives one to each request that
// takes no more than one, while it has any, without a lock and without a queue.
// All others go to the queues, which have the other half. So those who ask for
// little do not wait for those who ask for much, and there are never more let in
// than the level has seats.
type level struct {
	name   string
	exempt bool // the lane gives to all

	lane         atomic.Int64 // seats taken
	room         atomic.Int64 // seats that it has
	highest      atomic.Int64 // seats taken since they were last shared out
	begun, ended atomic.Int64 // requests in it, ever

	demand *demand
	queues atomic.Pointer[fq.QueueSet]
}

// enter takes seats in the lane, if it has them.
func (l *level) enter(seats int) bool {
	if seats > 1 && !l.exempt {
		return false
	}
	for {
		taken := l.lane.Load()
		after := taken + int64(seats)
		if after > l.room.Load() {
			return false
		}
		if l.lane.CompareAndSwap(taken, after) {
			if after > l.highest.Load() {
				l.highest.Store(after)
				l.demand.raise(after)
			}
			l.begun.Add(1)
			return true
		}
	}
}

// leave gives seats of the lane back.
func (l *level) leave(seats int) {
	l.lane.Add(-int64(seats))
	l.ended.Add(1)
}

func (l *level) inner() fq.QueueSet { return *l.queues.Load() }

// StartRequest implements fq.QueueSet.
func (l *level) StartRequest(ctx context.Context, width *work.WorkEstimate, hash uint64, flow, schema string, what, who any, note fq.QueueNoteFn) (fq.Request, bool) {
	return l.inner().StartRequest(ctx, width, hash, flow, schema, what, who, note)
}

// IsIdle implements fq.QueueSet. Who is in the lane of a level that goes does not
// hold it.
func (l *level) IsIdle() bool { return l.inner().IsIdle() }

// Dump implements fq.QueueSet: requests of the lane are among those that are
// worked on.
func (l *level) Dump(details bool) debug.QueueSetDump {
	d := l.inner().Dump(details)
	begun, ended := l.begun.Load(), l.ended.Load()
	d.Dispatched += int(begun)
	d.Executing += int(max(0, begun-ended))
	d.SeatsInUse += int(l.lane.Load())
	return d
}

// BeginConfigChange implements fq.QueueSet.
func (l *level) BeginConfigChange(q fq.QueuingConfig) (fq.QueueSetCompleter, error) {
	next, err := l.inner().BeginConfigChange(q)
	if err != nil {
		return nil, err
	}
	return change{level: l, next: next}, nil
}

// change is a configuration that a level is about to have.
type change struct {
	level *level
	next  fq.QueueSetCompleter
	made  func() // called when it is a new level's
}

// Complete implements fq.QueueSetCompleter. It is called whenever seats are shared
// out.
func (c change) Complete(d fq.DispatchingConfig) fq.QueueSet {
	l, room := c.level, d.ConcurrencyLimit/2
	l.room.Store(int64(room))
	if l.exempt {
		l.room.Store(math.MaxInt64)
	}
	d.ConcurrencyLimit -= room
	queues := c.next.Complete(d)
	l.queues.Store(&queues)
	taken := l.lane.Load()
	l.highest.Store(taken)
	l.demand.begin(taken)
	if c.made != nil {
		c.made()
	}
	return l
}

// demand tells upstream how many seats a level wants, by which seats are lent and
// borrowed: what its queues want, and the most that its lane has given since they
// were last shared out.
type demand struct {
	metrics.Gauge
	mu           sync.Mutex // guards the fields below
	queues, lane float64
}

// Set implements metrics.Gauge, for the queues.
func (d *demand) Set(seats float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queues = seats
	d.Gauge.Set(d.queues + d.lane)
}

// raise says that the lane has given so many seats.
func (d *demand) raise(lane int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lane = max(d.lane, float64(lane))
	d.Gauge.Set(d.queues + d.lane)
}

// begin says how many the lane has given when seats have been shared out.
func (d *demand) begin(lane int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lane = float64(lane)
	d.Gauge.Set(d.queues + d.lane)
}

// levels makes the levels, and knows them by name.
type levels struct {
	upstream fq.QueueSetFactory
	byName   sync.Map      // string to *level
	made     chan struct{} // says that there is one more
}

func newLevels(clock eventclock.Interface) *levels {
	return &levels{upstream: queueset.NewQueueSetFactory(clock), made: make(chan struct{}, 1)}
}

// BeginConstruction implements fq.QueueSetFactory.
func (s *levels) BeginConstruction(q fq.QueuingConfig, requests metrics.RatioedGaugePair, seats metrics.RatioedGauge, wanted metrics.Gauge) (fq.QueueSetCompleter, error) {
	l := &level{name: q.Name, exempt: q.DesiredNumQueues < 0, demand: &demand{Gauge: wanted}}
	next, err := s.upstream.BeginConstruction(q, requests, seats, l.demand)
	if err != nil {
		return nil, err
	}
	return change{level: l, next: next, made: func() { s.add(l) }}, nil
}

func (s *levels) add(l *level) {
	s.byName.Store(l.name, l)
	select {
	case s.made <- struct{}{}:
	default: // it has been said
	}
}

func (s *levels) find(name string) *level {
	l, ok := s.byName.Load(name)
	if !ok {
		return nil
	}
	return l.(*level)
}
