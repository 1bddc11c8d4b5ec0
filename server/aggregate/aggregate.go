// Package aggregate puts other API servers behind this one, as APIService
// objects say.
//
// In come the APIServices, as they are stored and as they change; out come, for
// the group versions that a service elsewhere serves: a handler that passes
// requests on, entries for discovery and OpenAPI, and the Available condition
// of the objects. Group versions that are served here have APIServices, too,
// which local.go makes; of them only their order counts.
//
//	request -> Find -> backend: resolve a service's address, pass on as the user
//	change  -> Observe -> table of backends, and a check that is due
//	Run     -> checks, one after another per APIService: is there a service, does it
//	           answer, what does it serve -> condition, discovery, OpenAPI index
//
// Without APIServices of other servers nothing runs by the clock and a request
// costs a look at one pointer.
package aggregate

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/server/discovery"
)

// Config is what aggregation works with. All fields are needed.
type Config struct {
	// Objects finds services and where they run.
	Objects Objects
	// API carries out requests for resources as the user in their context; it
	// is how conditions are written.
	API http.Handler
	// Kinds are what is served here.
	Kinds func() *kinds.List
	// Certificate is what this server shows to others when it speaks for its
	// clients.
	Certificate func() (*tls.Certificate, error)
	// Drain is closed when what is passed on without end should end.
	Drain  <-chan struct{}
	Logger *slog.Logger
}

// Objects finds what APIServices refer to. What is not there is a NotFound
// error; a service may run nowhere.
type Objects interface {
	GetService(ctx context.Context, namespace, name string) (*corev1.Service, error)
	GetEndpointSlices(ctx context.Context, namespace, service string) ([]*discoveryv1.EndpointSlice, error)
}

// Tables are what Observe is to be told of, in this order.
var Tables = []string{apiServices, services, endpointSlices}

const (
	apiServices    = "apiservices.apiregistration.k8s.io"
	services       = "services"
	endpointSlices = "endpointslices.discovery.k8s.io"
)

// Aggregator knows the API servers behind this one.
type Aggregator struct {
	Config
	// remote are the group versions that are passed on; nil when there are none.
	remote atomic.Pointer[map[schema.GroupVersion]*backend]
	// ending is done when what is passed on without end should end.
	ending context.Context
	end    context.CancelFunc
	// due tells Run that something is to be checked; it holds one, which stands
	// for all.
	due chan struct{}

	mu sync.Mutex // guards the fields below
	// entries are all APIServices by name.
	entries map[string]*entry
	// joined is what discovery was last told; nil when that has changed.
	joined   *discovery.Joined
	joinedOf *kinds.List // whose kinds it has
}

// entry is an APIService and what is known of its server.
type entry struct {
	service *apiregistrationv1.APIService // as stored, not to be changed
	backend *backend                      // nil when it is served here
	// checkAt is when it is to be checked next, zero for those that need no
	// check; one that is being checked is not in line.
	checkAt  time.Time
	checking bool
	failures int
	// is is what the last check of this spec came to; nil before the first.
	is *apiregistrationv1.APIServiceCondition
	// found is what the server was last seen to serve.
	found found
	spec  *swagger
}

// New returns an aggregator that knows no APIServices yet.
func New(cfg Config) *Aggregator {
	a := &Aggregator{Config: cfg, due: make(chan struct{}, 1), entries: map[string]*entry{}}
	a.ending, a.end = context.WithCancel(context.Background())
	return a
}

// Wants says whether Observe is of use with an object of a table: all
// APIServices are, of services and their slices those that one refers to.
// Name is the object's own, and of a slice that of its service.
func (a *Aggregator) Wants(table, namespace, name string) bool {
	if table == apiServices {
		return true
	}
	if a.remote.Load() == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.entries {
		if e.refersTo(namespace, name) {
			return true
		}
	}
	return false
}

func (e *entry) refersTo(namespace, service string) bool {
	ref := e.service.Spec.Service
	return ref != nil && ref.Namespace == namespace && ref.Name == service
}

// Observe is told of an object of one of Tables that has changed: old is nil
// for one that is new, obj for one that is gone.
func (a *Aggregator) Observe(old, obj runtime.Object) {
	is := obj
	if is == nil {
		is = old
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch o := is.(type) {
	case *apiregistrationv1.APIService:
		if obj == nil {
			a.forgetLocked(o.Name)
		} else {
			a.registerLocked(o)
		}
	case *corev1.Service:
		a.checkSoonLocked(o.Namespace, o.Name)
	case *discoveryv1.EndpointSlice:
		a.checkSoonLocked(o.Namespace, o.Labels[discoveryv1.LabelServiceName])
	}
}

// registerLocked takes note of an APIService.
func (a *Aggregator) registerLocked(s *apiregistrationv1.APIService) {
	e := a.entries[s.Name]
	if e == nil {
		e = &entry{}
		a.entries[s.Name] = e
	}
	before := e.service
	e.service = s
	sameSpec := before != nil && before.UID == s.UID && equalSpecs(before, s)
	if !sameSpec {
		a.joined = nil
		e.found, e.failures, e.spec, e.is = found{}, 0, &swagger{}, nil
	}
	a.connectLocked(e)
	condition := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available)
	switch {
	case s.Spec.Service == nil && condition != nil && sameCondition(*condition, helper.NewLocalAvailableAPIServiceCondition()):
		e.checkAt = time.Time{}
	case e.is == nil || condition == nil || !sameCondition(*condition, *e.is):
		e.checkAt = time.Now()
		a.wake()
	}
}

// connectLocked shows requests how an APIService is reached now. Whether it is
// available is what this server has seen itself, and before that what is
// stored.
func (a *Aggregator) connectLocked(e *entry) {
	available := helper.IsAPIServiceConditionTrue(e.service, apiregistrationv1.Available)
	if e.is != nil {
		available = e.is.Status == apiregistrationv1.ConditionTrue
	}
	e.backend = a.backendOf(e.service, available, e.backend)
	a.publishLocked()
}

func (a *Aggregator) forgetLocked(name string) {
	if e := a.entries[name]; e != nil {
		e.backend.close()
		delete(a.entries, name)
		a.joined = nil
		a.publishLocked()
	}
}

// publishLocked shows requests the present backends.
func (a *Aggregator) publishLocked() {
	remote := map[schema.GroupVersion]*backend{}
	for _, e := range a.entries {
		if e.backend != nil {
			remote[groupVersion(e.service)] = e.backend
		}
	}
	switch have := a.remote.Load(); {
	case len(remote) == 0:
		a.remote.Store(nil)
	case have == nil || !maps.Equal(*have, remote):
		a.remote.Store(&remote)
	}
}

// checkSoonLocked has all APIServices of a service checked.
func (a *Aggregator) checkSoonLocked(namespace, service string) {
	for _, e := range a.entries {
		if e.refersTo(namespace, service) {
			e.checkAt = time.Now()
			a.wake()
		}
	}
}

func (a *Aggregator) wake() {
	select {
	case a.due <- struct{}{}:
	default:
	}
}

func groupVersion(s *apiregistrationv1.APIService) schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

// Find returns who serves a path when it is another server's, else nil.
//
// Compat: a group version that is served here, too, is passed on when its
// APIService says so; only the APIServices themselves stay here.
func (a *Aggregator) Find(path string) http.Handler {
	remote := a.remote.Load()
	if remote == nil {
		return nil
	}
	if b := (*remote)[versionIn(path)]; b != nil {
		return b
	}
	return nil
}

// core is the group version that has /api to itself.
var core = schema.GroupVersion{Version: "v1"}

// versionIn is the group version whose path begins a path; empty when there is
// none.
func versionIn(path string) schema.GroupVersion {
	if path == "/api" || strings.HasPrefix(path, "/api/") {
		return core
	}
	rest, ok := strings.CutPrefix(path, "/apis/")
	if !ok {
		return schema.GroupVersion{}
	}
	group, rest, _ := strings.Cut(rest, "/")
	version, _, _ := strings.Cut(rest, "/")
	if version == "" {
		return schema.GroupVersion{}
	}
	return schema.GroupVersion{Group: group, Version: version}
}

// root is the path of a group version's own document.
func root(gv schema.GroupVersion) string {
	if gv == core {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}
