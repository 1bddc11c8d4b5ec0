package aggregate

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

// Bounds of checks. A server is asked every checkEvery; one that fails is asked
// again after retryFirst, and then after twice as long each time, up to
// checkEvery. AtOnce says how many APIServices are checked at the same time, and
// attempts how often a check asks before it gives up: a service may have
// endpoints that do not answer.
const (
	checkEvery  = 30 * time.Second
	retryFirst  = 250 * time.Millisecond
	atOnce      = 5
	attempts    = 5
	probeWithin = 5 * time.Second
	fetchWithin = 5 * time.Second
	writeWithin = 30 * time.Second
	maxDocument = 64 << 20
)

// Run keeps the conditions of APIServices true until ctx ends. It is to be
// called once.
func (a *Aggregator) Run(ctx context.Context) error {
	var checks sync.WaitGroup
	defer checks.Wait()
	defer a.end()
	free := make(chan struct{}, atOnce)
	next := time.NewTimer(checkEvery)
	defer next.Stop()
	drain := a.Drain
	for {
		names, wait := a.line()
		next.Stop()
		if wait > 0 {
			next.Reset(wait)
		}
		for _, name := range names {
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			checks.Go(func() {
				defer func() { <-free }()
				a.check(ctx, name)
			})
		}
		select {
		case <-next.C:
		case <-a.due:
		case <-drain:
			a.end()
			drain = nil
		case <-ctx.Done():
			return nil
		}
	}
}

// line takes out those whose check is due, and says how long it is until the
// next one is; 0 when there is none.
func (a *Aggregator) line() (names []string, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for name, e := range a.entries {
		switch {
		case e.checkAt.IsZero() || e.checking:
		case !e.checkAt.After(now):
			e.checking, e.checkAt = true, time.Time{}
			names = append(names, name)
		case wait == 0 || e.checkAt.Sub(now) < wait:
			wait = e.checkAt.Sub(now)
		}
	}
	return names, wait
}

// check looks at the server of an APIService, notes what it serves, and writes
// the condition when it has changed.
func (a *Aggregator) check(ctx context.Context, name string) {
	a.mu.Lock()
	e := a.entries[name]
	if e == nil {
		a.mu.Unlock()
		return
	}
	service, b := e.service, e.backend
	before := e.found
	a.mu.Unlock()

	condition := a.look(ctx, service, b)
	now := found{fresh: b == nil}
	if b != nil && condition.Status == apiregistrationv1.ConditionTrue {
		now = b.discover(ctx, before)
	}
	if ctx.Err() != nil {
		return // what was found is that this server ends
	}
	// Requests and discovery go by it before anybody reads of it.
	if !a.note(name, service, condition, now) {
		return
	}
	err := a.tell(ctx, service, condition)
	if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		a.Logger.Error("the condition of an APIService was not written", "apiservice", name, "error", err)
	}
	a.plan(name, err == nil && now.fresh)
}

// note takes the outcome of a check of an APIService. It returns false when
// that is no longer what is registered; it is in line again then.
func (a *Aggregator) note(name string, checked *apiregistrationv1.APIService, condition apiregistrationv1.APIServiceCondition, now found) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[name]
	if e == nil {
		return false
	}
	if e.service.UID != checked.UID || !equalSpecs(e.service, checked) {
		e.checking = false
		a.wake()
		return false
	}
	if !e.found.same(now) {
		a.joined = nil
	}
	e.is, e.found = &condition, now
	a.connectLocked(e)
	return true
}

// plan says when an APIService is to be checked next.
func (a *Aggregator) plan(name string, well bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.wake()
	e := a.entries[name]
	if e == nil {
		return
	}
	e.checking = false
	if well {
		e.failures = 0
	}
	switch {
	case !e.checkAt.IsZero(): // something has changed meanwhile
	case e.backend == nil && well: // nothing can happen to it
	case well:
		e.checkAt = time.Now().Add(checkEvery)
	default:
		e.checkAt = time.Now().Add(min(retryFirst<<min(e.failures, 10), checkEvery))
		e.failures++
	}
}

// look says whether an APIService can be used.
func (a *Aggregator) look(ctx context.Context, s *apiregistrationv1.APIService, b *backend) apiregistrationv1.APIServiceCondition {
	is := func(status apiregistrationv1.ConditionStatus, reason, message string, args ...any) apiregistrationv1.APIServiceCondition {
		return apiregistrationv1.APIServiceCondition{
			Type: apiregistrationv1.Available, Status: status, LastTransitionTime: metav1.Now(),
			Reason: reason, Message: fmt.Sprintf(message, args...),
		}
	}
	const yes, no, unknown = apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown
	ref := s.Spec.Service
	if ref == nil {
		return helper.NewLocalAvailableAPIServiceCondition()
	}
	service, err := a.Objects.GetService(ctx, ref.Namespace, ref.Name)
	switch {
	case apierrors.IsNotFound(err):
		return is(no, "ServiceNotFound", "service/%s in %q is not present", ref.Name, ref.Namespace)
	case err != nil:
		return is(unknown, "ServiceAccessError", "service/%s in %q cannot be checked due to: %v", ref.Name, ref.Namespace, err)
	}
	if service.Spec.Type == corev1.ServiceTypeClusterIP {
		i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port(ref) })
		if i < 0 {
			return is(no, "ServicePortError", "service/%s in %q is not listening on port %d", ref.Name, ref.Namespace, port(ref))
		}
		name := service.Spec.Ports[i].Name
		found, err := a.Objects.GetEndpointSlices(ctx, ref.Namespace, ref.Name)
		switch {
		case err != nil:
			return is(unknown, "EndpointsAccessError", "service/%s in %q cannot be checked due to: %v", ref.Name, ref.Namespace, err)
		case len(found) == 0:
			return is(no, "EndpointsNotFound", "cannot find endpointslices for service/%s in %q", ref.Name, ref.Namespace)
		case !slices.ContainsFunc(found, func(s *discoveryv1.EndpointSlice) bool { return isReady(s, name) }):
			return is(no, "MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q", ref.Name, ref.Namespace, name)
		}
	}
	if b != nil {
		if err := b.probe(ctx); err != nil {
			return is(no, "FailedDiscoveryCheck", "%v", err)
		}
	}
	return is(yes, "Passed", "all checks passed")
}

// isReady says that a slice has an endpoint that takes requests on a port.
func isReady(s *discoveryv1.EndpointSlice, port string) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.Conditions.Ready == nil || *e.Conditions.Ready
	}) && slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
		return p.Name != nil && *p.Name == port && p.Port != nil
	})
}

// probe asks a server for the document that it must have. When that fails it
// asks several times at once: one answer is enough.
func (b *backend) probe(ctx context.Context) error {
	failure := b.ask(ctx)
	if failure == nil {
		return nil
	}
	results := make(chan error, attempts-1)
	for range attempts - 1 {
		go func() { results <- b.ask(ctx) }()
	}
	answered := false
	for range attempts - 1 {
		if err := <-results; err == nil {
			answered = true
		} else {
			failure = err
		}
	}
	if answered {
		return nil
	}
	b.close() // a broken connection is not to be used again
	return failure
}

func (b *backend) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	at, err := b.of.resolve(ctx, b.service.Spec.Service)
	if err != nil {
		return err
	}
	at.Path = root(groupVersion(b.service))
	answer, err := b.get(ctx, at, discoverer, nil)
	if err == nil {
		_ = answer.Body.Close() // only its status counts
		if answer.StatusCode < http.StatusOK || answer.StatusCode >= http.StatusMultipleChoices {
			err = fmt.Errorf("bad status from %v: %d", at, answer.StatusCode)
		}
	}
	if err != nil {
		return fmt.Errorf("failing or missing response from %v: %w", at, err)
	}
	return nil
}

func equalSpecs(a, b *apiregistrationv1.APIService) bool {
	return apiequality.Semantic.DeepEqual(a.Spec, b.Spec)
}

// sameCondition leaves out since when it holds.
func sameCondition(a, b apiregistrationv1.APIServiceCondition) bool {
	a.LastTransitionTime = b.LastTransitionTime
	return a == b
}
