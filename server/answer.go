package server

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"setpoint.dev/setpoint/metrics"
	"setpoint.dev/setpoint/server/audit"
	"setpoint.dev/setpoint/server/fair"
	"setpoint.dev/setpoint/server/h2"
	"setpoint.dev/setpoint/server/rest"
	"setpoint.dev/setpoint/server/route"
)

// answer is what a request gets: it keeps the status and size for whoever
// counts them, lets the audit log listen, and cuts off clients that do not
// read.
type answer struct {
	http.ResponseWriter
	begun time.Time
	code  int
	size  int
	// audited, measured and place are set by the steps of those names.
	audited  *audit.Entry
	measured metrics.Ongoing
	place    *fair.Place // what it takes up; nil for nothing

	control *http.ResponseController
	cancel  context.CancelFunc // ends what the request has started
	// patience is how long one write may take, 0 as long as it likes; watchdog ends
	// one that takes longer. Of HTTP/2 neither: see bound.
	patience time.Duration
	watchdog *time.Timer
	http1    bool

	mu      sync.Mutex // guards writing
	writing bool
}

// watchFrom is the size of an answer from which on its writes are watched: a
// smaller one fits into what the connection takes without its client.
const watchFrom = 16 << 10

// partSize is how much is written at once. Who writes more may have to wait for
// others in between.
const partSize = 128 << 10

func newAnswer(w http.ResponseWriter, r *http.Request, patience time.Duration) *answer {
	a := &answer{ResponseWriter: w, begun: time.Now(), control: http.NewResponseController(w), cancel: func() {}, http1: r.ProtoMajor == 1 && r.TLS != nil}
	if a.http1 {
		a.deadline(time.Time{}) // of the request before, see end
	}
	a.bound(patience)
	return a
}

// bound says how long one write may take; 0 is as long as it likes. A
// connection that can sees to it by itself, and only when a write has to wait.
func (a *answer) bound(patience time.Duration) {
	if w, can := a.ResponseWriter.(interface{ SetPatience(d time.Duration) }); can {
		w.SetPatience(patience)
		return
	}
	a.patience = patience
}

// take takes note of the place that the request has been let in to.
func (a *answer) take(place *fair.Place) {
	a.place = place
	pace := place.Pace()
	if w, can := a.ResponseWriter.(interface{ SetPace(p h2.Pace) }); can && pace != nil {
		w.SetPace(pace)
	}
}

// deadline bounds all writes of the connection.
func (a *answer) deadline(t time.Time) {
	_ = a.control.SetWriteDeadline(t) // what cannot be bounded does not block, either
}

// GiveBack implements seat.Seat: a request that only waits is not counted among
// those under way, and takes up no place.
func (a *answer) GiveBack() {
	a.measured.Leave()
	a.place.GiveBack()
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) {
	if a.code == 0 && code >= http.StatusOK {
		a.code = code
		a.audited.Started(code, a.Header())
	}
	a.ResponseWriter.WriteHeader(code)
}

// Hijack implements http.Hijacker: from then on the connection is not this
// server's to bound or to count.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := a.control.Hijack()
	if err == nil {
		a.http1, a.code = false, http.StatusSwitchingProtocols
		a.audited.Started(a.code, a.Header())
	}
	return conn, buffered, err
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.wrote(p); a.size < watchFrom {
		return a.ResponseWriter.Write(p)
	}
	n := 0
	for {
		a.place.Work()
		wrote, err := a.writePart(p[n:min(len(p), n+partSize)])
		if n += wrote; err != nil || n == len(p) {
			return n, err
		}
	}
}

// writePart writes as much as is written at once.
func (a *answer) writePart(p []byte) (int, error) {
	a.watch()
	defer a.rest()
	return a.ResponseWriter.Write(p)
}

// WriteFlush implements rest.FlushWriter.
func (a *answer) WriteFlush(p []byte) (int, error) {
	direct, can := a.ResponseWriter.(rest.FlushWriter)
	if !can || len(p) > partSize {
		n, err := a.Write(p)
		a.Flush()
		return n, err
	}
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.wrote(p); a.size >= watchFrom {
		a.place.Work()
	}
	return direct.WriteFlush(p)
}

// TryWriteFlush implements rest.FlushWriter.
func (a *answer) TryWriteFlush(p []byte) bool {
	direct, can := a.ResponseWriter.(rest.FlushWriter)
	if !can || a.code == 0 || !direct.TryWriteFlush(p) {
		return false
	}
	a.wrote(p)
	return true
}

// wrote takes note of a part.
func (a *answer) wrote(p []byte) {
	a.audited.Wrote(p)
	a.size += len(p)
}

// Flush implements http.Flusher.
func (a *answer) Flush() {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	a.watch()
	defer a.rest()
	_ = a.control.Flush() // the client has gone
}

// watch ends a write that has not returned in time. Writes on the connection
// fail from then on.
func (a *answer) watch() {
	if a.patience == 0 {
		return
	}
	a.setWriting(true)
	if a.watchdog == nil {
		a.watchdog = time.AfterFunc(a.patience, a.bark)
	} else {
		a.watchdog.Reset(a.patience)
	}
}

// rest says that the write has returned.
func (a *answer) rest() {
	if a.patience == 0 {
		return
	}
	a.watchdog.Stop()
	a.setWriting(false)
}

func (a *answer) setWriting(is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writing = is
}

// bark ends the write. It holds the lock so that the handler does not return
// meanwhile: what it writes to is gone then.
func (a *answer) bark() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.writing {
		a.deadline(time.Now())
	}
}

// end bounds what is written after the handler has returned.
func (a *answer) end() {
	if a.http1 && a.patience > 0 {
		a.deadline(time.Now().Add(a.patience))
	}
}

// isMutating says that a request may change something.
func isMutating(what *route.Request) bool {
	switch what.Verb {
	case "get", "list", "watch":
		return false
	}
	return true
}

// measure begins to count a request.
func (s *Server) measure(a *answer, r *http.Request) (*http.Request, error) {
	if s.Metrics != nil {
		what := route.From(r.Context())
		a.measured = s.Metrics.Begin(s.labels(what, r), a.begun, what.Long(), isMutating(what))
	}
	return r, nil
}

// labels are what a request is counted under. What the server does not know is
// counted without a name: clients can make up any number of them.
func (s *Server) labels(what *route.Request, r *http.Request) metrics.Request {
	q := metrics.Request{Verb: verbLabel(what, r), DryRun: dryRunLabel(r)}
	if !what.IsResourceRequest {
		_, q.Subresource = s.mux.Handler(r) // the pattern of the path
		return q
	}
	resource := s.REST.Kinds().Find(what.APIGroup, what.APIVersion, what.Resource)
	if resource == nil || what.Subresource != "" && resource.Subresources[what.Subresource] == nil {
		return q
	}
	q.Group, q.Version, q.Resource, q.Subresource = what.APIGroup, what.APIVersion, what.Resource, what.Subresource
	switch {
	case what.Name != "" || what.Verb == "create":
		q.Scope = "resource"
	case what.Namespace != "":
		q.Scope = "namespace"
	default:
		q.Scope = "cluster"
	}
	return q
}

// verbLabel is upstream's word for a verb.
func verbLabel(what *route.Request, r *http.Request) string {
	if what.IsResourceRequest {
		switch what.Verb {
		case "list", "watch", "deletecollection":
			return strings.ToUpper(what.Verb)
		}
		switch what.Subresource {
		case "attach", "exec", "proxy", "portforward":
			return "CONNECT"
		}
	}
	switch r.Method {
	case http.MethodPatch:
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch+") {
			return "APPLY"
		}
		return r.Method
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions:
		return r.Method
	}
	return "other"
}

func dryRunLabel(r *http.Request) string {
	if !strings.Contains(r.URL.RawQuery, "dryRun") {
		return ""
	}
	for _, v := range r.URL.Query()["dryRun"] {
		if v != "All" {
			return "invalid"
		}
	}
	return "All"
}
