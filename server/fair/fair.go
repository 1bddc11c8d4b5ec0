// Package fair shares the server among those who ask, so that one who asks for
// much takes the time of nobody else.
//
// In come requests whose users and questions are known; each is let in once
// there is room for it, or refused with 429 and when to try again. FlowSchemas
// say which priority level a request belongs to and whose turn it takes there,
// PriorityLevelConfigurations how many seats a level has, how it queues and what
// it lends; a list takes as many seats as its objects are bytes.
//
// Queueing, lending, metrics and the objects' status are upstream's library's, so
// they mean what they mean there. Requests that take one seat pass beside the
// queues while there is room, in a lane that costs them next to nothing and that
// no list stands in (level.go).
//
// What always holds: the seats of a level's lane and of its queues are together
// those that the level has. A request has its seats while it is worked on, not while it waits for others (package
// seat); a watch has them until it has sent what was there when it began. Requests
// of the exempt level never wait.
package fair

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	work "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/server/route"
)

// Size says how many objects a resource has, by its name as in "pods" or
// "deployments.apps", and how large they are on average, in bytes; false when
// there is no such resource.
type Size func(resource string) (objects, average int64, known bool)

// Gate lets requests in.
type Gate struct {
	client kubernetes.Interface
	seats  int
	size   Size
	logger *slog.Logger
	rules  atomic.Pointer[rules] // nil until they are known
}

// rules are what a gate that runs goes by.
type rules struct {
	control  flowcontrol.Interface
	estimate work.WorkEstimatorFunc
	refused  flowcontrol.DroppedRequestsTracker
	levels   *levels
	little   atomic.Int64              // when somebody has asked for little the last time, in nanoseconds
	bulk     *bulk                     // turns of those who read much
	schemas  atomic.Pointer[[]*schema] // in order: the first that matches counts
	debug    *mux.PathRecorderMux
}

// New returns a gate with as many seats. It reads schemas and levels through
// client, from Run on; until it knows them all are let in.
func New(client kubernetes.Interface, seats int, size Size, logger *slog.Logger) *Gate {
	return &Gate{client: client, seats: seats, size: size, logger: logger}
}

// Run follows schemas and levels until ctx ends, and sees to it that those are
// there which have to be.
func (g *Gate) Run(ctx context.Context) error {
	metrics.Register()
	shared, clock := informers.NewSharedInformerFactory(g.client, 0), eventclock.Real{}
	r := &rules{levels: newLevels(clock), refused: flowcontrol.NewDroppedRequestsTracker(), debug: mux.NewPathRecorderMux("fairness")}
	r.bulk = newBulk(&r.little)
	r.control = flowcontrol.NewTestable(flowcontrol.TestableConfig{
		Name: "Controller", Clock: clock, AsFieldManager: flowcontrol.ConfigConsumerAsFieldManager,
		FoundToDangling: func(found bool) bool { return !found }, InformerFactory: shared, FlowcontrolClient: g.client.FlowcontrolV1(),
		ServerConcurrencyLimit: g.seats, ReqsGaugeVec: metrics.PriorityLevelConcurrencyGaugeVec, ExecSeatsGaugeVec: metrics.PriorityLevelExecutionSeatsGaugeVec,
		QueueSetFactory: r.levels,
	})
	r.control.Install(r.debug)
	r.estimate = work.NewWorkEstimator(g.stats, r.control.GetInterestedWatchCount, work.DefaultWorkEstimatorConfig(), r.control.GetMaxSeats)
	if err := r.follow(shared.Flowcontrol().V1()); err != nil {
		return err
	}
	shared.Start(ctx.Done())
	defer shared.Shutdown()
	var parts errgroup.Group
	parts.Go(func() error { return r.control.Run(ctx.Done()) })
	parts.Go(func() error {
		if r.known(ctx, shared) {
			g.rules.Store(r)
			g.tend(ctx, shared.Flowcontrol().V1())
		}
		return nil
	})
	if err := parts.Wait(); ctx.Err() == nil {
		return err
	}
	return nil // it is told to end, and may say that it has not begun
}

// known waits until all levels are known that there are; false when ctx ends
// before.
func (r *rules) known(ctx context.Context, shared informers.SharedInformerFactory) bool {
	for _, synced := range shared.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return false
		}
	}
	for {
		all, _ := shared.Flowcontrol().V1().PriorityLevelConfigurations().Lister().List(labels.Everything()) // from memory
		if !slices.ContainsFunc(all, func(l *flowcontrolv1.PriorityLevelConfiguration) bool { return r.levels.find(l.Name) == nil }) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-r.levels.made:
		}
	}
}

func (g *Gate) stats(resource string) (storage.Stats, error) {
	objects, average, known := g.size(resource)
	if !known {
		return storage.Stats{}, work.ObjectCountNotFoundErr
	}
	return storage.Stats{ObjectCount: objects, EstimatedAverageObjectSizeBytes: average}, nil
}

// ServeHTTP says what waits and what is worked on. Compat: in upstream's tables,
// under /debug/api_priority_and_fairness/.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if now := g.rules.Load(); now != nil {
		now.debug.ServeHTTP(w, r)
		return
	}
	http.NotFound(w, r)
}

// Enter waits until it is the turn of a request. It returns the place that the
// request has from then on, which is nil for one that takes up none; false says
// that the request has been refused and answered.
func (g *Gate) Enter(w http.ResponseWriter, r *http.Request) (*Place, bool) {
	what, now := route.From(r.Context()), g.rules.Load()
	if now == nil || what.Long() && what.Verb != "watch" {
		return nil, true
	}
	who, _ := request.UserFrom(r.Context())
	if who == nil {
		who = &user.DefaultInfo{}
	}
	s, l := now.classify(who, what.RequestInfo)
	cost := now.cost(r, what, s, l)
	p := &Place{rules: now}
	if l != nil && cost.AdditionalLatency == 0 && l.enter(cost.MaxSeats()) {
		p.sit(l, s.name, cost.MaxSeats())
		s.tell(w.Header())
	} else if !p.queue(w, r, flowcontrol.RequestDigest{RequestInfo: what.RequestInfo, User: who}, cost) {
		return nil, false
	}
	if what.Verb == "watch" {
		p.forget = now.control.RegisterWatch(r)
	}
	return p, true
}

// cost is how many seats a request takes, for how long. Writes of those who never
// wait are not held against anybody; what their lists take others go without.
func (r *rules) cost(req *http.Request, what *route.Request, s *schema, l *level) work.WorkEstimate {
	cost := work.WorkEstimate{InitialSeats: 1}
	switch what.Verb {
	case "list", "watch":
		cost = r.estimate(req, s.name, s.level)
	case "create", "update", "patch", "delete":
		if l == nil || !l.exempt {
			cost = r.estimate(req, s.name, s.level)
		}
	}
	metrics.ObserveWorkEstimatedSeats(s.level, s.name, cost.MaxSeats())
	return cost
}

// maxWait bounds how long a request waits for its turn; one that has a deadline
// waits for a quarter of its time. Compat: as upstream.
const maxWait = time.Minute

// patience bounds how long a request waits for its turn.
func patience(ctx context.Context) (context.Context, context.CancelFunc) {
	within := maxWait
	if end, has := ctx.Deadline(); has {
		within = min(within, time.Until(end)/4)
	}
	return context.WithTimeout(ctx, within)
}

// The headers that tell by which schema and level a request was judged, as
// net/http spells them. Compat: they have UIDs, for names may be nobody else's
// business.
var (
	schemaHeader = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
	levelHeader  = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
)
