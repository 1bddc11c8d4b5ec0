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

// level is a priority level: upstream's queues, and a lane beside them.
//
//	lane open:   nobody is in the queues; up to half of the seats are the lane's
//	             to give, without a lock and without a queue
//	lane closed: somebody wants more than that; all who come go to the queues,
//	             which have the level's seats less those still taken in the lane
//
// It is closed by the first that comes to the queues, and opened when the last has
// left them. Half, because upstream lets one request in that wants more than all
// seats there are when it sees nobody else.
type level struct {
	name   string
	exempt bool

	lane         atomic.Int64 // seats taken, and closed while it is
	room         atomic.Int64 // seats that it may give
	highest      atomic.Int64 // seats taken in it since they were last shared out
	begun, ended atomic.Int64 // requests in it, ever

	demand *demand

	mu        sync.Mutex // guards the fields below
	queues    fq.QueueSet
	queueing  fq.QueuingConfig
	dispatch  fq.DispatchingConfig
	inQueues  int // requests that the queues know of
	laneTaken int // seats that they have been told are taken
}

// closed is added to the seats of a lane that is closed.
const closed = 1 << 40

// enter takes seats in the lane, if it is open and has them.
func (l *level) enter(seats int) bool {
	for {
		taken := l.lane.Load()
		after := taken + int64(seats)
		if after > l.room.Load() { // so is every lane that is closed
			return false
		}
		if l.lane.CompareAndSwap(taken, after) {
			if after > l.highest.Load() {
				l.highest.Store(after)
				l.demand.raise(after)
			}
			return true
		}
	}
}

// leave gives seats of the lane back.
func (l *level) leave(seats int) {
	if l.lane.Add(-int64(seats)) < closed {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lane.Load() >= closed {
		l.lendLocked()
	}
}

// closeLocked has all who come go to the queues.
func (l *level) closeLocked() {
	if l.lane.Load() < closed {
		l.lane.Add(closed)
	}
	l.lendLocked()
}

// openLocked has those who come take seats in the lane again, once the queues hold
// none. Some are held for a while after a write that many watch.
func (l *level) openLocked() {
	if l.inQueues == 0 && l.lane.Load() >= closed && l.queues.IsIdle() {
		l.lane.Add(-closed)
	}
}

// lendLocked tells the queues how many seats there are beside those of the lane.
func (l *level) lendLocked() {
	taken := int(l.lane.Load() % closed)
	if taken == l.laneTaken {
		return
	}
	l.laneTaken = taken
	change, err := l.queues.BeginConfigChange(l.queueing)
	if err != nil {
		return // they have taken the same before
	}
	change.Complete(l.besideLocked())
}

// besideLocked are the seats that the lane leaves to the queues.
func (l *level) besideLocked() fq.DispatchingConfig {
	d := l.dispatch
	d.ConcurrencyLimit = max(0, d.ConcurrencyLimit-l.laneTaken)
	return d
}

// StartRequest implements fq.QueueSet.
func (l *level) StartRequest(ctx context.Context, width *work.WorkEstimate, hash uint64, flow, schema string, what, who any, note fq.QueueNoteFn) (fq.Request, bool) {
	l.come()
	req, idle := l.queues.StartRequest(ctx, width, hash, flow, schema, what, who, note)
	if req == nil {
		l.goAway()
		return nil, idle
	}
	return turn{req, l}, false
}

func (l *level) come() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inQueues++
	if !l.exempt {
		l.closeLocked()
	}
}

func (l *level) goAway() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inQueues--
	l.openLocked()
}

// turn is a request in the queues.
type turn struct {
	fq.Request
	level *level
}

// Finish implements fq.Request.
func (t turn) Finish(execute func()) bool {
	defer t.level.goAway()
	return t.Request.Finish(func() {
		t.level.begun.Add(1)
		defer t.level.ended.Add(1)
		execute()
	})
}

// IsIdle implements fq.QueueSet. Who is in the lane of a level that goes does not
// hold it.
func (l *level) IsIdle() bool { return l.queues.IsIdle() }

// Dump implements fq.QueueSet: requests of the lane are among those that are
// worked on.
func (l *level) Dump(details bool) debug.QueueSetDump {
	d := l.queues.Dump(details)
	begun, ended := l.begun.Load(), l.ended.Load()
	d.Dispatched = int(begun)
	d.Executing = int(max(0, begun-ended))
	d.SeatsInUse += int(l.lane.Load() % closed)
	return d
}

// BeginConfigChange implements fq.QueueSet.
func (l *level) BeginConfigChange(q fq.QueuingConfig) (fq.QueueSetCompleter, error) {
	next, err := l.queues.BeginConfigChange(q)
	if err != nil {
		return nil, err
	}
	return change{level: l, queueing: q, next: next}, nil
}

// change is a configuration that a level is about to have.
type change struct {
	level    *level
	queueing fq.QueuingConfig
	next     fq.QueueSetCompleter
	made     func() // called when it is a new level's
}

// Complete implements fq.QueueSetCompleter. It is called whenever seats are shared
// out.
func (c change) Complete(d fq.DispatchingConfig) fq.QueueSet {
	l := c.level
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.lane.Load() % closed
	l.queueing, l.dispatch, l.laneTaken = c.queueing, d, int(taken)
	l.queues = c.next.Complete(l.besideLocked())
	l.room.Store(int64(d.ConcurrencyLimit / 2))
	if l.exempt {
		l.room.Store(math.MaxInt64)
	}
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
	return change{level: l, queueing: q, next: next, made: func() { s.add(l) }}, nil
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
