// Package planes serves the planes over the API: lists, forks and drops them, and
// finds who answers for what is below one.
//
//	GET    /planes                                  all planes
//	GET    /planes/NAME                             one
//	POST   /planes/NAME?from=PLANE&revision=N       a fork; main and now unless said
//	                   &controllers=true            with controllers of its own
//	DELETE /planes/NAME                             it goes, and what is in it
//	any    /planes/NAME/...                         what the root has, in that plane
//	GET    /at/N/..., /planes/NAME/at/N/...         what it had at a revision
//
// The first four pass the steps of the main server, where they are requests for
// planes.setpoint.dev; the others pass those of the plane's own, and where there
// is no such plane the main server's, as requests to get it. Nothing here knows
// what a plane is made of: a Keeper does.
package planes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"setpoint.dev/setpoint/server/route"
)

// Main is the plane at the root.
const Main = "main"

// resource is what RBAC knows planes as.
var resource = schema.GroupResource{Group: route.PlanesGroup, Resource: route.Planes}

const apiVersion = route.PlanesGroup + "/v1alpha1"

// Plane is a plane as clients see it.
type Plane struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Name `json:"metadata"`
	Spec            Spec `json:"spec"`
}

// Name is what a plane is called.
type Name struct {
	Name string `json:"name"`
}

// Spec says where a plane comes from.
type Spec struct {
	// From is the plane that it was forked from, and Revision the last that they
	// share; main has none.
	From     string `json:"from,omitempty"`
	Revision uint64 `json:"revision,omitempty"`
	// Controllers says that controllers run in it.
	Controllers bool `json:"controllers,omitempty"`
}

// list is all planes.
type list struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct{} `json:"metadata"`
	Items           []Plane  `json:"items"`
}

// New is a plane with its kind filled in.
func New(name string, spec Spec) Plane {
	return Plane{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "Plane"}, Metadata: Name{name}, Spec: spec}
}

// Keeper keeps the planes. Its errors are API errors.
type Keeper interface {
	List() []Plane
	// Fork makes a plane. A revision of 0 is now.
	Fork(ctx context.Context, name string, spec Spec) (Plane, error)
	Drop(ctx context.Context, name string) error
	// Serve returns who answers for a plane: as it was at a revision, whose text is
	// the client's, and with none as it is. It fails when there is no such plane.
	Serve(name, at string) (http.Handler, error)
}

// Server serves planes.
type Server struct{ Keeper Keeper }

// ServeHTTP answers requests for planes themselves, which have passed the main
// server's steps.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, code, err := s.manage(r)
	if err != nil {
		write(w, statusOf(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the client has gone
}

func (s *Server) manage(r *http.Request) (answer any, code int, err error) {
	info := route.From(r.Context())
	switch info.Verb {
	case "list":
		l := list{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "PlaneList"}, Items: s.Keeper.List()}
		return l, http.StatusOK, nil
	case "get":
		for _, p := range s.Keeper.List() {
			if p.Metadata.Name == info.Name {
				return p, http.StatusOK, nil
			}
		}
		return nil, 0, apierrors.NewNotFound(resource, info.Name)
	case "create":
		spec, err := asked(r, info.Name)
		if err != nil {
			return nil, 0, err
		}
		p, err := s.Keeper.Fork(r.Context(), info.Name, spec)
		return p, http.StatusCreated, err
	case "delete":
		if err := s.Keeper.Drop(r.Context(), info.Name); err != nil {
			return nil, 0, err
		}
		return metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}, http.StatusOK, nil
	default:
		return nil, 0, apierrors.NewMethodNotSupported(resource, info.Verb)
	}
}

// asked is what a fork is to be.
func asked(r *http.Request, name string) (Spec, error) {
	if name == Main {
		return Spec{}, apierrors.NewAlreadyExists(resource, name)
	}
	if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 {
		return Spec{}, apierrors.NewBadRequest(fmt.Sprintf("%q is no name for a plane: %s", name, strings.Join(wrong, ", ")))
	}
	q := r.URL.Query()
	spec := Spec{From: q.Get("from")}
	if spec.From == "" {
		spec.From = Main
	}
	var err error
	if text := q.Get("revision"); text != "" {
		if spec.Revision, err = strconv.ParseUint(text, 10, 63); err != nil {
			return spec, apierrors.NewBadRequest("invalid revision: " + err.Error())
		}
	}
	if text := q.Get("controllers"); text != "" {
		if spec.Controllers, err = strconv.ParseBool(text); err != nil {
			return spec, apierrors.NewBadRequest("invalid controllers: " + err.Error())
		}
	}
	return spec, nil
}

// Inside returns who answers a request that is for something in a plane, or in
// the past of one, and the request as they know it; nil when it is for the root,
// and an error when nobody answers for the plane.
func (s *Server) Inside(r *http.Request) (http.Handler, *http.Request, error) {
	name, at, rest, is := split(r.URL.Path)
	if !is {
		return nil, nil, nil
	}
	handler, err := s.Keeper.Serve(name, at)
	if err != nil {
		return nil, nil, err
	}
	inner := r.Clone(r.Context())
	inner.URL.Path, inner.URL.RawPath = rest, ""
	return handler, inner, nil
}

// Revision reads a revision from a path.
func Revision(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("%q is no revision", text))
	}
	return n, nil
}

// split takes a path apart: /planes/NAME/at/REVISION/REST, where the first or the
// second pair may be missing.
func split(path string) (name, at, rest string, is bool) {
	name, rest = Main, path
	if below, in := strings.CutPrefix(rest, "/planes/"); in {
		before, after, deeper := strings.Cut(below, "/")
		if !deeper || before == "" {
			return "", "", "", false
		}
		name, rest, is = before, "/"+after, true
	}
	if below, past := strings.CutPrefix(rest, "/at/"); past {
		before, after, _ := strings.Cut(below, "/")
		at, rest, is = before, "/"+after, true
	}
	return name, at, rest, is
}

func statusOf(err error) metav1.Status {
	known, is := err.(apierrors.APIStatus)
	if !is {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return status
}

func write(w http.ResponseWriter, status metav1.Status) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status) // the client has gone
}

// NotFound says that there is no such plane.
func NotFound(name string) error { return apierrors.NewNotFound(resource, name) }

// Exists says that there is one already.
func Exists(name string) error { return apierrors.NewAlreadyExists(resource, name) }

// Forbidden says why a plane cannot be made or dropped.
func Forbidden(name string, why error) error { return apierrors.NewForbidden(resource, name, why) }
