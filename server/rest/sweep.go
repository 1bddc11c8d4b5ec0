package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/api/initializers/v1alpha1"
	"setpoint.dev/setpoint/watch"
)

// The pace of Sweep.
const (
	// sweepEvery is the least time between two looks at what waits.
	sweepEvery = 50 * time.Millisecond
	// sweepAgain is after how long a step that failed is taken again, and a
	// stream that broke is opened again.
	sweepAgain = time.Second
	// leaseEvery is how often leases of initializers are looked at.
	leaseEvery = 10 * time.Second
	// statusEvery is the least time between two writes of a configuration's
	// status, and agesEvery how often one is written only because time passes.
	statusEvery = 2 * time.Second
	agesEvery   = 30 * time.Second
	// sweepAtOnce is how many objects are acted on at the same time.
	sweepAtOnce = 16
	// stepTime is how long one step may take: webhooks are asked about objects
	// that are complete.
	stepTime = 30 * time.Second
)

const configurationsTable = v1alpha1.Resource + "." + "admissionregistration.k8s.io"

// Sweep sees to it that no object of plane main waits for initializers beyond
// its time, and says in the status of configurations what waits, until ctx
// ends. It sleeps while nothing changes and nothing is due. What fails is told
// of and tried again.
func (h *Handler) Sweep(ctx context.Context, failed func(error)) error {
	for ctx.Err() == nil {
		s := &sweeper{
			h: h, failed: failed, records: map[types.UID]*initializer.Record{}, configurations: map[string]*v1alpha1.InitializerConfiguration{},
			gone: map[string]time.Time{}, told: map[string]time.Time{},
		}
		if err := s.run(ctx); err != nil && ctx.Err() == nil {
			failed(err)
			select {
			case <-time.After(sweepAgain):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// sweeper is what Sweep knows. One goroutine owns it.
type sweeper struct {
	h              *Handler
	failed         func(error)
	records        map[types.UID]*initializer.Record
	configurations map[string]*v1alpha1.InitializerConfiguration
	gone           map[string]time.Time // names that no configuration has any more
	told           map[string]time.Time // when the status of a configuration was last written
	checked        bool                 // records of objects that are gone have been removed
}

// run follows records and configurations, and acts when something is due.
func (s *sweeper) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	records, configurations := make(chan watch.Batch), make(chan watch.Batch)
	g.Go(func() error { return s.h.follow(ctx, waitingTable, records) })
	g.Go(func() error { return s.h.follow(ctx, configurationsTable, configurations) })
	g.Go(func() error {
		next := time.NewTimer(time.Hour)
		defer next.Stop()
		known := 0 // of the two, those whose initial state has been read
		for {
			select {
			case b := <-records:
				s.readRecords(b)
				known += initial(b)
			case b := <-configurations:
				s.readConfigurations(b)
				known += initial(b)
			case <-next.C:
				next.Reset(s.pass(ctx))
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
			if known == 2 {
				next.Reset(sweepEvery)
			}
		}
	})
	return g.Wait()
}

func initial(b watch.Batch) int {
	if b.InitialEnd {
		return 1
	}
	return 0
}

// follow hands on what is in a table, and what happens to it.
func (h *Handler) follow(ctx context.Context, table string, to chan<- watch.Batch) error {
	w, err := h.Hub.Watch(ctx, watch.Options{Plane: h.Plane, Resource: table, Initial: true})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		// The events of a batch are good until the next call.
		batch.Events = slices.Clone(batch.Events)
		select {
		case to <- batch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *sweeper) readRecords(b watch.Batch) {
	for _, e := range b.Events {
		uid := types.UID(e.Object.Key())
		delete(s.records, uid)
		if e.Type == watch.Deleted {
			continue
		}
		if r, err := readRecord(e.Object); err != nil {
			s.failed(err)
		} else {
			s.records[uid] = r
		}
	}
}

func (s *sweeper) readConfigurations(b watch.Batch) {
	for _, e := range b.Events {
		delete(s.configurations, e.Object.Key())
		if e.Type == watch.Deleted {
			continue
		}
		c := &v1alpha1.InitializerConfiguration{}
		if err := json.Unmarshal(e.Object.Value(), c); err != nil {
			s.failed(err)
		} else {
			s.configurations[e.Object.Key()] = c
		}
	}
}

// pass does what is due, and returns when to look again.
func (s *sweeper) pass(ctx context.Context) time.Duration {
	now := time.Now()
	if !s.checked {
		s.checked = s.check(ctx)
	}
	all := slices.SortedFunc(maps.Values(s.configurations), func(a, b *v1alpha1.InitializerConfiguration) int { return strings.Compare(a.Name, b.Name) })
	facts := initializer.Facts{
		Records: slices.Collect(maps.Values(s.records)), Terms: initializer.AllTerms(all, s.h.Initializers.Default()),
		Gone: s.gone, Default: s.h.Initializers.Default(), Acted: s.h.Health.LastActed, Now: now,
	}
	s.mourn(facts)
	plan := initializer.MakePlan(facts)
	for _, r := range plan.Overdue {
		s.h.Health.Overdue(r.Head(), r.HeadSince, now)
	}
	for _, name := range plan.Deadlocked {
		s.h.Health.Deadlocked(name, now)
	}
	s.h.Health.Keep(func(name string) bool { _, is := facts.Terms[name]; return is })
	backlog := initializer.Backlogs(facts.Records)
	configured := map[string]initializer.Backlog{}
	for name := range facts.Terms {
		configured[name] = backlog[name]
	}
	s.h.backlog.Store(&configured)

	next := time.Hour
	if !plan.Next.IsZero() {
		next = min(next, plan.Next.Sub(now))
	}
	if s.act(ctx, plan.Steps, facts) {
		next = min(next, sweepAgain)
	}
	return max(min(next, s.tell(ctx, all, now)), sweepEvery)
}

// check removes the records of objects that are not there. Records come and go
// with their objects, so there are none but after trouble.
func (s *sweeper) check(ctx context.Context) bool {
	for uid, r := range s.records {
		if err := s.h.step(ctx, r, initializer.Step{UID: uid}, initializer.Terms{}); err != nil {
			s.failed(err)
			return false
		}
	}
	return true
}

// mourn takes note of names that objects wait for and no configuration has any
// more.
func (s *sweeper) mourn(f initializer.Facts) {
	waits := map[string]bool{}
	for _, r := range f.Records {
		for _, name := range r.Assigned {
			if _, is := f.Terms[name]; !is && slices.Contains(r.Pending, name) {
				waits[name] = true
			}
		}
	}
	maps.DeleteFunc(s.gone, func(name string, _ time.Time) bool { return !waits[name] })
	for name := range waits {
		if s.gone[name].IsZero() {
			s.gone[name] = f.Now
		}
	}
}

// act takes the steps of a plan, some at the same time, and says whether one
// has failed.
func (s *sweeper) act(ctx context.Context, steps []initializer.Step, f initializer.Facts) bool {
	var again atomic.Bool
	var g errgroup.Group
	g.SetLimit(sweepAtOnce)
	for _, step := range steps {
		r, terms := s.records[step.UID], f.Default
		if t, is := f.Terms[step.Name]; is {
			terms = t
		}
		g.Go(func() error {
			if err := s.h.step(ctx, r, step, terms); err != nil && ctx.Err() == nil {
				again.Store(true)
				s.failed(fmt.Errorf("%s %s of %s %s/%s: %w", step.Do, step.Name, r.Resource.Resource, r.Namespace, r.Name, err))
			}
			return nil
		})
	}
	_ = g.Wait() // errors have been told of
	return again.Load()
}

// tell writes the status of configurations where it has changed, and returns
// when to look again.
func (s *sweeper) tell(ctx context.Context, all []*v1alpha1.InitializerConfiguration, now time.Time) time.Duration {
	next := time.Hour
	leases := false
	seen := initializer.Seen{
		Records: slices.Collect(maps.Values(s.records)), Health: s.h.Health, Now: now,
		Lease: func(ref v1alpha1.Reference) string { leases = true; return s.h.lease(ctx, ref, now) },
	}
	for name, status := range initializer.Statuses(all, seen) {
		have := s.configurations[name].Status
		since := now.Sub(s.told[name])
		waits := slices.ContainsFunc(status.Initializers, func(i v1alpha1.InitializerStatus) bool { return i.Pending > 0 })
		switch differs := initializer.Differ(have, status); {
		case differs && since < statusEvery:
			next = min(next, statusEvery-since)
		case differs, waits && since >= agesEvery:
			s.told[name] = now
			err := s.h.writeStatusOf(ctx, name, status)
			if err == nil {
				err = s.h.raise(ctx, s.configurations[name], initializer.Alarms(have, status))
			}
			if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
				s.failed(err)
				next = min(next, sweepAgain)
			}
		}
		for _, i := range status.Initializers {
			if until := s.h.Health.LockedUntil(i.Name, now); !until.IsZero() {
				next = min(next, until.Sub(now))
			}
		}
		if waits {
			next = min(next, agesEvery)
		}
	}
	maps.DeleteFunc(s.told, func(name string, _ time.Time) bool { return s.configurations[name] == nil })
	if leases {
		next = min(next, leaseEvery)
	}
	return next
}

// lease says why a lease does not speak for its initializer.
func (h *Handler) lease(ctx context.Context, ref v1alpha1.Reference, now time.Time) string {
	lease, err := lookup[coordinationv1.Lease](ctx, Lookup{Store: h.Store}, "leases.coordination.k8s.io", ref.Namespace+"/"+ref.Name, ref.Name)
	switch {
	case err != nil:
		return fmt.Sprintf("lease %s/%s: %v", ref.Namespace, ref.Name, err)
	case !initializer.Holds(lease, now):
		return fmt.Sprintf("lease %s/%s has expired", ref.Namespace, ref.Name)
	default:
		return ""
	}
}

// writeStatusOf writes the status of a configuration.
func (h *Handler) writeStatusOf(ctx context.Context, name string, status v1alpha1.InitializerConfigurationStatus) error {
	r := h.Kinds().Find(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, v1alpha1.Resource)
	if r == nil {
		return errors.New("configurations of initializers are not served")
	}
	return h.Amend(ctx, r, "status", "", name, func(obj runtime.Object) error {
		c, ok := obj.(*v1alpha1.InitializerConfiguration)
		if !ok {
			return fmt.Errorf("unexpected object %T", obj)
		}
		c.Status = status
		return nil
	})
}

// raise makes events of what has become of a configuration's initializers.
func (h *Handler) raise(ctx context.Context, configuration *v1alpha1.InitializerConfiguration, alarms []initializer.Alarm) error {
	if len(alarms) == 0 {
		return nil
	}
	r := h.Kinds().Find(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, v1alpha1.Resource)
	c, err := h.inside(ctx, r, "update", "", configuration.Name, "")
	if err != nil {
		return err
	}
	for _, a := range alarms {
		c.report(configuration, "Initializer"+a.Condition, fmt.Sprintf("initializer %q: %s", a.Name, a.Message))
	}
	return nil
}

// expired is the result of an object whose initializer has not acted in time, or
// cannot.
func expired(r *initializer.Record, step initializer.Step, within time.Duration) *metav1.Status {
	name, why := step.Name, fmt.Sprintf("did not act within %s", within)
	if step.Locked {
		why = "cannot act: its own pods wait for this one"
	}
	late := apierrors.NewTimeoutError(fmt.Sprintf("initializer %q %s", name, why), 0).ErrStatus
	late.Details = &metav1.StatusDetails{
		Name: r.Name, Group: r.Resource.Group, Kind: r.Resource.Resource, UID: r.UID,
		Causes: []metav1.StatusCause{pendingCause(name, time.Since(r.HeadSince))},
	}
	return &late
}
