package fair

import (
	"context"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	work "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// Judge says which schema a request is judged by here, and by upstream.
func (g *Gate) Judge(who user.Info, what *request.RequestInfo) (here, upstream string) {
	r := g.rules.Load()
	if r == nil {
		return "", ""
	}
	s, _ := r.classify(who, what)
	r.control.Handle(context.Background(), flowcontrol.RequestDigest{RequestInfo: what, User: who},
		func(s *flowcontrolv1.FlowSchema, _ *flowcontrolv1.PriorityLevelConfiguration, _ string) {
			upstream = s.Name
		},
		func() work.WorkEstimate { return work.WorkEstimate{InitialSeats: 1} }, func(bool) {}, func() {})
	return s.name, upstream
}

// Bulk is bulk for tests.
type Bulk bulk

// NewBulk makes one.
func NewBulk() *Bulk { return (*Bulk)(newBulk(new(atomic.Int64))) }

// AsksForLittle says that somebody does.
func (b *Bulk) AsksForLittle() { b.little.Store(time.Now().UnixNano()) }

// Begin waits for a turn at making an answer, and returns what ends it; false when
// there is none.
func (b *Bulk) Begin(ctx context.Context) (end func(), has bool) { return b.begin(ctx, making) }

// BeginWriting does so for one at writing an answer.
func (b *Bulk) BeginWriting(ctx context.Context) (end func(), has bool) {
	return b.begin(ctx, writing)
}

func (b *Bulk) begin(ctx context.Context, work int) (end func(), has bool) {
	t := (*bulk)(b).begin(ctx, work)
	return t.end, t != nil
}

// NewPaces are those of connections that each write an answer of one who reads
// much, beside somebody who has just asked for little; follow says that the first
// is of a watch, which has told what was there.
func NewPaces(connections int) (paces []*Pace, follow func()) {
	r := &rules{}
	r.bulk = newBulk(&r.little)
	r.little.Store(time.Now().UnixNano())
	for range connections {
		paces = append(paces, (&Place{rules: r, ctx: context.Background()}).Pace())
	}
	return paces, func() {
		paces[0].place.forget = func() {}
		paces[0].place.given.Store(true)
	}
}
