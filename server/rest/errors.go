package rest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/server/route"
	"setpoint.dev/setpoint/store"
)

// errNoPage says that nothing is served under the path.
var errNoPage = errors.New("404 page not found")

// outside is an error of the way to a kind. Compat: it is told in the
// representations that do not depend on one.
type outside struct {
	error
}

func (e outside) Unwrap() error { return e.error }

// notServed is the answer to a path or method that a served group version does
// not have.
func notServed(code int) error {
	return outside{apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", http.StatusText(code), 0, false)}
}

// nothingHere is the answer to a path that is not served. Compat: a built-in
// group says so in a Status, others as a page.
func (c *call) nothingHere() error {
	for _, r := range c.Kinds().All() {
		if r.Group == c.info.APIGroup && r.Custom == nil {
			return notServed(http.StatusNotFound)
		}
	}
	return errNoPage
}

// optimisticLock is what a client reads whose object has changed meanwhile.
// Compat: clients compare this text.
const optimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

// status turns any error of the request path into the Status that a client
// gets.
func (c *call) status(err error) *metav1.Status {
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status := known.Status()
		return &status
	}
	as := func(e *apierrors.StatusError) *metav1.Status { return &e.ErrStatus }
	unsupported, isUnsupported := errors.AsType[*codec.UnsupportedError](err)
	switch {
	case isUnsupported:
		return as(unsupportedMediaType(unsupported))
	case errors.Is(err, store.ErrCompacted):
		return as(apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result."))
	case errors.Is(err, store.ErrNoPlane):
		return as(apierrors.NewNotFound(c.resource.GroupResource(), c.info.Plane))
	case errors.Is(err, store.ErrNoSpace):
		return as(apierrors.NewGenericServerResponse(http.StatusInsufficientStorage, c.info.Verb, c.resource.GroupResource(), c.info.Name, err.Error(), 0, true))
	case errors.Is(err, store.ErrClosed):
		return as(apierrors.NewServiceUnavailable("the server is shutting down"))
	case errors.Is(err, context.DeadlineExceeded):
		return as(apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0))
	default:
		return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
	}
}

func unsupportedMediaType(err *codec.UnsupportedError) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: err.Error(),
	}}
}

// fail answers with an error.
func (c *call) fail(err error) {
	if errors.Is(err, errNoPage) {
		http.Error(c.w, err.Error(), http.StatusNotFound)
		return
	}
	status := c.status(err)
	status.Kind, status.APIVersion = "Status", "v1"
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	offered := codec.Representations
	if _, is := errors.AsType[outside](err); is {
		offered = codec.Basics()
	}
	out, err := c.accepted(offered, false)
	if err != nil {
		c.writeRaw(int(status.Code), status)
		return
	}
	c.out = out
	c.writeObject(int(status.Code), status)
}

// writeRaw answers a client that accepts nothing that a Status can be in.
// Compat: it reads indented JSON.
func (c *call) writeRaw(code int, status *metav1.Status) {
	body, _ := json.MarshalIndent(status, "", "  ") // of texts and numbers
	c.out = representation{Representation: codec.Find(codec.JSON)}
	c.writeBody(code, body)
}

// writeStatus answers with a Status that is no error.
func (c *call) writeStatus(code int, status *metav1.Status) {
	status.Kind, status.APIVersion = "Status", "v1"
	c.writeObject(code, status)
}

// writeObject encodes and writes an object of the meta group.
func (c *call) writeObject(code int, obj runtime.Object) {
	encode := c.common().Encode
	if c.out.pretty {
		encode = c.common().EncodePretty
	}
	body, err := encode(c.out.info, obj, metav1.SchemeGroupVersion)
	if err != nil {
		http.Error(c.w, err.Error(), http.StatusInternalServerError)
		return
	}
	c.writeBody(code, body)
}

// WriteError answers a request that did not get as far as a verb.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	c := &call{Handler: &Handler{codecs: shared}, ctx: r.Context(), w: w, r: r, info: &route.Request{}}
	c.fail(outside{err})
}

// shared speaks to clients whose request did not get as far as a handler.
var shared = &codecs{}
