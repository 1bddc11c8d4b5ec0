// Package route says what a request asks for: method and URL in, verb,
// resource, namespace, name and subresource out. Nothing is looked up.
package route

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	"setpoint.dev/setpoint/store"
)

// Request is what is asked for.
type Request struct {
	*request.RequestInfo
	// Plane is the line of history that is asked.
	Plane string
}

var factory = request.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

// Planes is what RBAC knows planes as, in PlanesGroup.
const (
	Planes      = "planes"
	PlanesGroup = "setpoint.dev"
)

// Resolve reads a request. It fails on paths and queries that no resource can
// have.
func Resolve(r *http.Request) (*Request, error) {
	if info := ofPlanes(r); info != nil {
		return &Request{RequestInfo: info, Plane: store.Main}, nil
	}
	info, err := factory.NewRequestInfo(r)
	if err != nil {
		return nil, err
	}
	return &Request{RequestInfo: info, Plane: store.Main}, nil
}

// ofPlanes is a request for planes themselves, /planes or /planes/NAME; nil for
// all others. One for something in a plane that gets here is for a plane that is
// not there, and asks for that plane.
func ofPlanes(r *http.Request) *request.RequestInfo {
	path, is := strings.CutPrefix(r.URL.Path, "/"+Planes)
	if !is || path != "" && path[0] != '/' {
		return nil
	}
	name, _, inside := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	info := &request.RequestInfo{
		IsResourceRequest: true, Path: r.URL.Path, Verb: strings.ToLower(r.Method),
		APIPrefix: "apis", APIGroup: PlanesGroup, APIVersion: "v1alpha1", Resource: Planes, Name: name, Parts: []string{Planes},
	}
	switch {
	case inside:
		info.Verb = "get"
	case r.Method == http.MethodGet && name == "":
		info.Verb = "list"
	case r.Method == http.MethodPost && name != "":
		info.Verb = "create"
	case name == "":
		info.Verb = "none" // nothing else can be done with all of them
	}
	return info
}

// OfPlanes says that planes themselves are asked for.
func (r *Request) OfPlanes() bool {
	return r.IsResourceRequest && r.APIGroup == PlanesGroup && r.Resource == Planes
}

// Long says that a request may take as long as it likes.
func (r *Request) Long() bool {
	switch r.Verb {
	case "watch", "proxy":
		return true
	}
	if !r.IsResourceRequest {
		return strings.HasPrefix(r.Path, "/debug/pprof/")
	}
	switch r.Subresource {
	case "attach", "exec", "proxy", "log", "portforward":
		return true
	}
	return false
}

type key struct{}

// With gives a context the request, also in the form that upstream's
// strategies look for.
func With(ctx context.Context, r *Request) context.Context {
	ctx = request.WithRequestInfo(ctx, r.RequestInfo)
	if r.Namespace != "" || r.IsResourceRequest {
		ctx = request.WithNamespace(ctx, r.Namespace)
	}
	return context.WithValue(ctx, key{}, r)
}

// From returns the request that With has put into a context; nil when none.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(key{}).(*Request)
	return r
}
