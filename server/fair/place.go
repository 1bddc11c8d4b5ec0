package fair

import (
	"context"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	work "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// Place is what a request takes up that has been let in: seats in the lane of its
// level, or in its queues. A nil Place is none.
type Place struct {
	rules  *rules
	given  atomic.Bool // back
	forget func()      // that it watches

	// In the lane.
	level  *level
	schema string
	seats  int
	begun  time.Time

	// In the queues, where another goroutine holds the seats: until left is closed,
	// and what it panicked with comes in ended.
	left  chan struct{}
	ended chan any

	// Of one that reads much, and takes turns: the request's context, nil when it does
	// no more, and its turn.
	ctx  context.Context //nolint:containedctx // it is that of what holds the place
	turn *turn
}

// Work is called before each part of the answer is written, and waits for the turn
// of one that takes turns.
func (p *Place) Work() {
	if p == nil || p.ctx == nil || p.turn != nil && !p.turn.over.Load() {
		return
	}
	p.turn = p.rules.bulk.begin(p.ctx, making)
}

// Pace is for the connection that the answer is written to; nil when it need not
// take turns.
func (p *Place) Pace() *Pace {
	if p == nil || p.ctx == nil {
		return nil
	}
	return &Pace{place: p}
}

// follows says that a watch has told what was there, and waits for what others do.
func (p *Place) follows() bool { return p.forget != nil && p.given.Load() }

// GiveBack implements seat.Seat.
func (p *Place) GiveBack() {
	if p == nil || p.given.Swap(true) {
		return
	}
	if p.left != nil {
		p.ctx = nil
		p.turn.end()
		close(p.left)
		return
	}
	p.rise()
}

// Leave is called once, when the request has been answered.
func (p *Place) Leave() {
	if p == nil {
		return
	}
	p.GiveBack()
	if p.forget != nil {
		p.forget()
	}
	if p.ended != nil {
		again(<-p.ended)
	}
}

// again panics with what somebody else has panicked with, if he has.
func again(failed any) {
	if failed != nil {
		panic(failed)
	}
}

// sit takes note of a request that has got its seats in the lane.
func (p *Place) sit(l *level, schema string, seats int) {
	p.level, p.schema, p.seats, p.begun = l, schema, seats, time.Now()
	if seats == 1 {
		p.rules.little.Store(p.begun.UnixNano())
	}
	ctx := context.Background()
	metrics.AddDispatch(ctx, l.name, schema)
	metrics.AddRequestsExecuting(ctx, l.name, schema, 1)
	metrics.AddSeatConcurrencyInUse(l.name, schema, seats)
}

// rise gives the lane's seats back.
func (p *Place) rise() {
	p.level.leave(p.seats)
	ctx := context.Background()
	metrics.AddRequestsExecuting(ctx, p.level.name, p.schema, -1)
	metrics.AddSeatConcurrencyInUse(p.level.name, p.schema, -p.seats)
	metrics.ObserveExecutionDuration(ctx, p.level.name, p.schema, time.Since(p.begun))
}

// judged is how upstream has classified a request.
type judged struct {
	schema *flowcontrolv1.FlowSchema
	level  *flowcontrolv1.PriorityLevelConfiguration
}

// tell says by which schema and level the request was judged.
func (j judged) tell(h http.Header) {
	h[schemaHeader], h[levelHeader] = []string{string(j.schema.UID)}, []string{string(j.level.UID)}
}

// queue has a request wait for seats in its level's queues; false says that it has
// been refused. Upstream has whoever comes to his turn call a function; here that
// is a goroutine which waits until the place is given back.
func (p *Place) queue(w http.ResponseWriter, r *http.Request, digest flowcontrol.RequestDigest, cost work.WorkEstimate) bool {
	seated := make(chan struct{})
	p.left, p.ended = make(chan struct{}), make(chan any, 1)
	var by judged
	go func() {
		defer func() { p.ended <- recover() }()
		ctx, cancel := patience(r.Context())
		defer cancel()
		p.rules.control.Handle(ctx, digest,
			func(s *flowcontrolv1.FlowSchema, l *flowcontrolv1.PriorityLevelConfiguration, _ string) {
				by = judged{s, l}
			},
			func() work.WorkEstimate { return cost }, func(bool) {},
			func() {
				close(seated)
				<-p.left
			})
	}()
	select {
	case <-seated:
		by.tell(w.Header())
		if cost.InitialSeats > 1 { // a write that many watch has those at its end
			p.ctx = r.Context()
			p.Work()
		}
		return true
	case failed := <-p.ended: // it has had no turn, for it would wait to be told to leave
		again(failed)
		by.tell(w.Header())
		p.rules.refuse(w, by.level.Name)
		return false
	}
}

// refuse says when to try again. Compat: as text.
func (r *rules) refuse(w http.ResponseWriter, level string) {
	r.refused.RecordDroppedRequest(level)
	w.Header().Set("Retry-After", strconv.FormatInt(r.refused.GetRetryAfter(level), 10))
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}
