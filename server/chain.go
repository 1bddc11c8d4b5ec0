package server

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/server/authn"
	"setpoint.dev/setpoint/server/authz"
	"setpoint.dev/setpoint/server/rest"
	"setpoint.dev/setpoint/server/route"
	"setpoint.dev/setpoint/server/seat"
)

// step is one thing that happens to a request before it is answered. It
// returns the request to go on with, or an error that is the answer.
type step func(*answer, *http.Request) (*http.Request, error)

// steps are what a request passes through, in order.
func (s *Server) steps() []step {
	return []step{
		number,        // the request's id
		warn,          // where warnings are gathered
		resolve,       // what is asked
		s.limit,       // how long it may take
		s.measure,     // how often, how long
		s.identify,    // who asks
		s.record,      // the audit log
		s.impersonate, // as whom
		s.enter,       // is it their turn
		s.allow,       // may they
	}
}

// ServeHTTP takes a request through the steps to whoever answers it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.underWay.Add(1)
	defer s.underWay.Add(-1)
	var nowhere error
	if s.Planes != nil {
		other, inner, err := s.Planes.Inside(r)
		if other != nil {
			other.ServeHTTP(w, inner)
			return
		}
		nowhere = err
	}
	s.serve(w, r, nowhere)
}

// Refusing takes requests through the steps and then refuses them: who may not ask
// does not hear why.
func (s *Server) Refusing(why error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, why) })
}

// serve takes a request of this server's own plane through the steps. One that is
// refused hears why after them.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, refused error) {
	a := newAnswer(w, r, s.WriteTimeout)
	defer func() { s.finish(a, r, recover()) }()
	for _, next := range s.chain {
		var err error
		if r, err = pass(next, a, r); err != nil {
			if !errors.Is(err, errAnswered) {
				rest.WriteError(a, r, err)
			}
			return
		}
	}
	if refused != nil {
		rest.WriteError(a, r, refused)
		return
	}
	if s.Planes != nil && route.From(r.Context()).OfPlanes() {
		s.Planes.ServeHTTP(a, r)
		return
	}
	if other := s.Elsewhere(r.URL.Path); other != nil {
		other.ServeHTTP(a, r)
		return
	}
	if route.From(r.Context()).IsResourceRequest {
		s.REST.ServeHTTP(a, r)
		return
	}
	s.mux.ServeHTTP(a, r)
}

// limit bounds the time of a request that is not meant to last: the server's
// bound, or a shorter one that the client asks for. A body that is not there by
// then is not waited for.
func (s *Server) limit(a *answer, r *http.Request) (*http.Request, error) {
	if what := route.From(r.Context()); what.Long() {
		if what.Subresource != "" {
			a.bound(0) // a person may read a log, or nothing may come for long
		}
		return r, nil
	}
	within := s.RequestTimeout
	if text := r.URL.Query().Get("timeout"); text != "" {
		asked, err := time.ParseDuration(text)
		if err != nil {
			return nil, apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
		}
		if asked > 0 {
			within = min(within, asked)
		}
	}
	end := a.begun.Add(within)
	if r.Body != http.NoBody {
		_ = a.control.SetReadDeadline(end) // what cannot be bounded does not block, either
	}
	ctx, cancel := context.WithDeadline(seat.With(r.Context(), a), end)
	a.cancel = cancel
	return r.WithContext(ctx), nil
}

// finish ends a request, which may have panicked with something that is not
// nil. One that had begun to answer is cut off, so that its client does not
// take a part for the whole.
func (s *Server) finish(a *answer, r *http.Request, panicked any) {
	defer a.end()
	defer a.place.Leave()
	defer a.cancel()
	begun := a.code != 0
	if panicked != nil && panicked != http.ErrAbortHandler { //nolint:errorlint // a panic's value
		s.Logger.Error("a request panicked", "panic", panicked, "method", r.Method, "path", r.URL.Path, "stack", string(debug.Stack()))
		if !begun {
			rest.WriteError(a, r, apierrors.NewInternalError(errors.New("this request caused apiserver to panic. Look in the logs for details")))
		}
	}
	a.audited.End(panicked)
	code := a.code
	if code == 0 {
		code = http.StatusOK // what net/http sends
	}
	a.measured.End(code, a.size)
	if panicked != nil && begun {
		panic(http.ErrAbortHandler)
	}
}

// errAnswered is returned by a step that has answered the request itself.
var errAnswered = errors.New("answered")

// pass takes a step and keeps the request when the step fails.
func pass(next step, a *answer, r *http.Request) (*http.Request, error) {
	after, err := next(a, r)
	if err != nil {
		return r, err
	}
	return after, nil
}

// number gives the request its id: the client's, if it has one.
func number(a *answer, r *http.Request) (*http.Request, error) {
	id := r.Header.Get("Audit-Id")
	if id == "" {
		id = uuid.NewString()
	}
	a.Header().Set("Audit-Id", id)
	a.Header().Set("Cache-Control", "no-cache, private") // unless the answer says otherwise
	ctx := audit.WithAuditContext(r.Context())
	audit.WithAuditID(ctx, types.UID(id))
	return r.WithContext(ctx), nil
}

// warn lets whoever handles the request warn the client.
func warn(a *answer, r *http.Request) (*http.Request, error) {
	return r.WithContext(warning.WithWarningRecorder(r.Context(), &warnings{header: a.Header()})), nil
}

// Bounds of what a client is warned of.
const (
	maxWarnings    = 20
	maxWarningText = 4096
)

// warnings writes each warning once into the response's headers.
type warnings struct {
	mu     sync.Mutex // guards the fields below
	header http.Header
	said   map[string]bool
	size   int
}

// AddWarning implements warning.Recorder.
func (w *warnings) AddWarning(agent, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.said[text] || len(w.said) >= maxWarnings || w.size+len(text) > maxWarningText {
		return
	}
	if agent == "" {
		agent = "-"
	}
	value, err := utilnet.NewWarningHeader(299, agent, text)
	if err != nil {
		return // a text that no header can hold
	}
	if w.said == nil {
		w.said = map[string]bool{}
	}
	w.said[text] = true
	w.size += len(text)
	w.header.Add("Warning", value)
}

func resolve(_ *answer, r *http.Request) (*http.Request, error) {
	what, err := route.Resolve(r)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return r.WithContext(route.With(r.Context(), what)), nil
}

// identify finds out who asks. Who asks from inside the process is known.
func (s *Server) identify(a *answer, r *http.Request) (*http.Request, error) {
	if caller := client.Caller(r.Context()); caller != nil {
		return r.WithContext(request.WithUser(r.Context(), caller)), nil
	}
	if s.Self != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && s.Self(r.TLS.PeerCertificates[0]) {
		return nil, s.refuse(a, r, errors.New("the server asks itself"))
	}
	who, ok, err := s.Authn.AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, s.refuse(a, r, err)
	}
	r.Header.Del("Authorization") // not to be seen by anyone further on
	return r.WithContext(request.WithUser(r.Context(), who.User)), nil
}

// refuse is the answer to a request from nobody that is known, which the audit
// log hears of, too.
func (s *Server) refuse(a *answer, r *http.Request, why error) error {
	if _, err := s.record(a, r); err == nil && why != nil {
		audit.AddAuditAnnotation(r.Context(), "authentication.k8s.io/failure", "Authentication failed")
	}
	return apierrors.NewUnauthorized("Unauthorized")
}

// record begins the request's entry in the audit log.
func (s *Server) record(a *answer, r *http.Request) (*http.Request, error) {
	if s.Audit != nil {
		a.audited = s.Audit.Begin(r, attributesOf(r.Context(), r.URL.Path), a.begun, route.From(r.Context()).Long())
	}
	return r, nil
}

// impersonate finds out as whom the request is made.
func (s *Server) impersonate(a *answer, r *http.Request) (*http.Request, error) {
	if !impersonates(r.Header) {
		return r, nil
	}
	attributes := attributesOf(r.Context(), r.URL.Path)
	as, err := authn.ImpersonateFor(r, attributes, s.Authz)
	if err != nil {
		a.Header().Set("X-Content-Type-Options", "nosniff")
		return nil, err
	}
	if as == nil {
		return r, nil
	}
	audit.LogImpersonatedUser(r.Context(), as.User, as.Constraint)
	return r.WithContext(request.WithUser(authn.WithImpersonator(r.Context(), attributes.User), as.User)), nil
}

func impersonates(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// enter waits until it is the request's turn. It comes before anything is asked
// about what the user may, for that costs something, too.
func (s *Server) enter(a *answer, r *http.Request) (*http.Request, error) {
	if s.Fair == nil {
		return r, nil
	}
	place, in := s.Fair.Enter(a, r)
	if !in {
		return nil, errAnswered
	}
	a.take(place)
	if route.From(r.Context()).Long() && place != nil {
		// A watch counts as such when it has given its place back.
		r = r.WithContext(seat.With(r.Context(), place))
	}
	return r, nil
}

// allow asks whether the user may.
func (s *Server) allow(a *answer, r *http.Request) (*http.Request, error) {
	attributes := attributesOf(r.Context(), r.URL.Path)
	decision, reason, err := s.Authz.Authorize(r.Context(), attributes)
	if decision == authorizer.DecisionAllow {
		return r, nil
	}
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	a.Header().Set("X-Content-Type-Options", "nosniff")
	return nil, authz.Forbidden(attributes, reason)
}

// attributesOf are what authorizers are asked about.
func attributesOf(ctx context.Context, path string) authorizer.AttributesRecord {
	what := route.From(ctx)
	who, _ := request.UserFrom(ctx)
	if who == nil {
		who = &user.DefaultInfo{}
	}
	a := authorizer.AttributesRecord{
		User: who, Verb: what.Verb, Namespace: what.Namespace, APIGroup: what.APIGroup, APIVersion: what.APIVersion,
		Resource: what.Resource, Subresource: what.Subresource, Name: what.Name,
		ResourceRequest: what.IsResourceRequest, Path: path,
	}
	// A selector that cannot be read narrows nothing down for authorizers; the
	// verb says what is wrong with it.
	if what.FieldSelector != "" {
		if f, err := fields.ParseSelector(what.FieldSelector); err != nil {
			a.FieldSelectorParsingErr = err
		} else {
			a.FieldSelectorRequirements = f.Requirements()
		}
	}
	if what.LabelSelector != "" {
		if l, err := labels.Parse(what.LabelSelector); err != nil {
			a.LabelSelectorParsingErr = err
		} else {
			a.LabelSelectorRequirements, _ = l.Requirements()
		}
	}
	return a
}
