// Package rest carries out the verbs of the API on stored kinds: one file per
// verb. It is the one room of the server that touches the store and the hub.
//
// In comes a request whose sender is known and allowed; out goes the response.
// Reads hand out the bytes that are stored. A write is decoded once, passes
// admission, the kind's strategy and validation, is encoded once and committed
// with its provenance.
//
// Handlers return errors; errors.go turns them into an API Status.
package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	upstream "k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/admission/quota"
	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/patch"
	"setpoint.dev/setpoint/server/authn"
	"setpoint.dev/setpoint/server/authz"
	"setpoint.dev/setpoint/server/rest/turns"
	"setpoint.dev/setpoint/server/route"
	nodes "setpoint.dev/setpoint/server/stream"
	"setpoint.dev/setpoint/server/usage"
	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/watch"
)

// Config is what the handler works with. Admission may be nil.
type Config struct {
	Store *store.Store
	// Plane is the line of history that is served; "" means store.Main. At is the
	// revision that reads show, 0 for the newest; with one nothing is written and
	// nothing watched.
	Plane string
	At    store.Revision
	// Like is a handler whose codecs and compressed lists are used, too; nil is
	// none. Planes share objects until they are written to, and their lists.
	Like       *Handler
	Hub        *watch.Hub
	Kinds      func() *kinds.List
	Admission  admission.Interface
	Authorizer authorizer.Authorizer
	// Rules tells what a user may do; Tokens whose a token is.
	Rules  authorizer.RuleResolver
	Tokens authenticator.Request
	// Guard refuses writes of roles and bindings that grant more than their
	// writer has; nil lets all pass.
	Guard interface {
		Check(ctx context.Context, w authz.Write) error
	}
	// Issuer makes service account tokens.
	Issuer *authn.Issuer
	// Usage knows what nodes and pods use; nil where nothing runs.
	Usage *usage.Usage
	// Streams reaches nodes and what runs there; nil where nothing runs.
	Streams *nodes.Streams
	// Watched finds the counter of a resource's watch events; nil counts none.
	Watched func(group, version, resource string) interface{ Add(n float64) }
	// MaxBody is the largest body that is read; 0 means 3 MiB.
	MaxBody int64
	// WatchTimeout bounds a watch that does not say how long it wants to last;
	// it lasts for between once and twice that. 0 means half an hour.
	WatchTimeout time.Duration
	// Initializers says how objects wait for initializers; Health is what is
	// seen of those; nil is nothing.
	Initializers initializer.Settings
	Health       *initializer.Health
	// Initialized counts what becomes of objects that wait for an initializer;
	// nil counts nothing.
	Initialized func(name, outcome string)
	// Drain is closed when watches should end, because the server does.
	Drain <-chan struct{}
}

// Handler serves requests for resources.
type Handler struct {
	Config
	turns     *turns.Turns[object, *store.Pending] // of those who write one object
	codecs    *codecs
	pages     *pages
	lists     *lists
	unchanged *unchanged
	decoded   *semaphore.Weighted // bytes of objects that lists are made of, of all planes
	lines     lines               // events that several watchers write
	waiting   atomic.Int64        // creates that wait for initializers
	// backlog is what waits for the initializers that are configured.
	backlog atomic.Pointer[map[string]initializer.Backlog]
}

// New returns a handler.
func New(cfg Config) *Handler {
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = 3 << 20
	}
	if cfg.WatchTimeout <= 0 {
		cfg.WatchTimeout = 30 * time.Minute
	}
	cfg.Initializers = cfg.Initializers.WithDefaults()
	if cfg.Health == nil {
		cfg.Health = &initializer.Health{}
	}
	if cfg.Plane == "" {
		cfg.Plane = store.Main
	}
	h := &Handler{Config: cfg, codecs: &codecs{}, pages: &pages{}, lists: &lists{}, unchanged: &unchanged{}, turns: &turns.Turns[object, *store.Pending]{}, decoded: semaphore.NewWeighted(maxDecoded)}
	if cfg.Like != nil {
		h.codecs, h.lists, h.unchanged, h.decoded = cfg.Like.codecs, cfg.Like.lists, cfg.Like.unchanged, cfg.Like.decoded
	}
	return h
}

// GiveBack gives back memory that makes the next requests cheaper, and is not needed.
func (h *Handler) GiveBack() { h.unchanged.drop() }

// call is one request on its way.
type call struct {
	*Handler
	ctx  context.Context
	w    http.ResponseWriter
	r    *http.Request
	info *route.Request

	resource *kinds.Resource
	sub      *kinds.Subresource // nil for the resource itself
	kind     schema.GroupVersionKind
	out      representation
	headed   bool // the columns of the table have been told
	user     user.Info
	sent     []byte        // the body, once it is read
	changing *store.Object // what a change is made to; nil while nothing is
	// turn is that of a change to the object, and follows what it is made to while that
	// is not stored yet; both are nil where none is.
	turn    *turns.Turn[object, *store.Pending]
	follows *store.Pending
	// waits is how a create waits for initializers, and assigned are those that
	// configurations gave its object.
	waits    patience
	assigned []string
	bill     quota.Bill           // what the write costs; nil when nothing
	refused  error                // why initializers may not add what they do; nil when they may
	scaled   admission.Attributes // of the scale that is written; nil when none is
}

// ServeHTTP serves a request that route.With has put into its context.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{Handler: h, ctx: r.Context(), w: w, r: r, info: route.From(r.Context())}
	c.info.Plane = h.Plane
	c.user, _ = request.UserFrom(c.ctx)
	err := c.serve()
	for tries := 1; errors.Is(err, errRedefined); tries++ {
		// Nothing has happened yet: the request begins again with the kind as
		// it is now.
		if tries == commitTries {
			err = errBusy(c.resource.GroupResource(), c.info.Verb)
			break
		}
		c = &call{Handler: h, ctx: r.Context(), w: w, r: r, info: c.info, user: c.user, sent: c.sent}
		err = c.serve()
	}
	if err != nil {
		c.fail(err)
	}
}

func (c *call) serve() error {
	info := c.info
	c.resource = c.Kinds().Find(info.APIGroup, info.APIVersion, info.Resource)
	if c.resource == nil {
		return c.nothingHere()
	}
	c.kind = c.resource.GroupVersionKind(info.APIVersion)
	if c.resource.Namespaced != (info.Namespace != "") && !c.acrossNamespaces() && !c.isNamespaceItself() {
		return c.nothingHere()
	}
	if info.Subresource != "" {
		if c.sub = c.resource.Subresources[info.Subresource]; c.sub == nil || len(info.Parts) > maxParts && !c.pipes() {
			if c.resource.Custom != nil {
				return c.notFound()
			}
			return notServed(http.StatusNotFound)
		}
	}
	if c.onlyAsked() && c.sub == nil && (c.one() || c.acrossNamespaces()) {
		return notServed(http.StatusNotFound)
	}
	if c.resource.Custom != nil && c.acrossNamespaces() && info.Verb != "list" && info.Verb != "watch" {
		return c.nothingHere()
	}
	if !c.pipes() && (!c.allows(info.Verb) || !c.fits()) || c.pipes() && !slices.Contains(pipedMethods, c.r.Method) {
		if c.resource.Custom != nil {
			return apierrors.NewMethodNotSupported(c.resource.GroupResource(), info.Verb)
		}
		return notServed(http.StatusMethodNotAllowed)
	}
	if c.resource.Custom != nil {
		if err := c.resource.Custom.Ready(); err != nil {
			return err
		}
	}
	if c.At != 0 && info.Verb != "get" && info.Verb != "list" {
		return c.inThePast()
	}
	c.warnOfAge()
	if c.connects() {
		return c.connect() // what is answered is not this server's to say
	}
	var err error
	if c.out, err = c.negotiate(); err != nil {
		return err
	}
	if c.sub != nil {
		return c.serveSubresource()
	}
	if c.isBindings() {
		return c.bindings()
	}
	if c.resource.Create == nil {
		return c.virtual()
	}
	switch info.Verb {
	case "get":
		return c.get()
	case "list":
		return c.list()
	case "watch":
		return c.watch()
	case "create":
		return c.create()
	case "update":
		return c.update(c.resource.Update)
	case "patch":
		return c.patch(c.resource.Update)
	case "delete":
		return c.delete()
	case "deletecollection":
		return c.deleteCollection()
	default:
		return apierrors.NewMethodNotSupported(c.resource.GroupResource(), info.Verb)
	}
}

// maxParts is how many parts the path of a subresource has, from the resource
// on.
const maxParts = 3

// one says that the path names an object. The request's name is no sign of
// that: a field selector may have given it.
func (c *call) one() bool { return len(c.info.Parts) > 1 }

// acrossNamespaces says that the path is that of all namespaces at once.
func (c *call) acrossNamespaces() bool {
	return c.resource.Namespaced && c.info.Namespace == "" && !c.one()
}

// fits says that the method can be used on the path: some verbs are for one
// object, some for all. Compat: with custom kinds it does not matter.
func (c *call) fits() bool {
	if c.resource.Custom != nil {
		return true
	}
	if c.r.Method == http.MethodHead {
		return false
	}
	switch c.info.Verb {
	case "list", "watch":
		return c.r.Method == http.MethodGet
	case "create":
		return c.sub != nil || !c.one() && !c.acrossNamespaces()
	case "deletecollection":
		return !c.acrossNamespaces()
	default:
		return c.one()
	}
}

// onlyAsked says that the kind is a question, of which there are no objects, no
// lists and no tables.
func (c *call) onlyAsked() bool {
	return c.resource != nil && c.resource.Create == nil && !slices.Contains(c.resource.Verbs, "get")
}

// isNamespaceItself says that the request is for a namespace, whose path looks
// like that of something in it.
func (c *call) isNamespaceItself() bool {
	return c.resource.Group == "" && c.resource.Name == "namespaces"
}

func (c *call) allows(verb string) bool {
	verbs := c.resource.Verbs
	if c.sub != nil {
		verbs = c.sub.Verbs
	}
	return slices.Contains(verbs, verb)
}

func (c *call) serveSubresource() error {
	strategy := c.sub.Update
	if c.scales() {
		strategy = c.resource.Update
	}
	switch {
	case strategy != nil && c.info.Verb == "get":
		return c.get()
	case strategy != nil && c.info.Verb == "update":
		return c.update(strategy)
	case strategy != nil && c.info.Verb == "patch":
		return c.patch(strategy)
	case c.sub.Name == "token":
		return c.token()
	case c.sub.Name == "binding":
		return c.bind(c.info.Name)
	case c.sub.Name == "eviction":
		return c.evict()
	default:
		return c.log()
	}
}

// key is the key of the object that the request names.
func (c *call) key() string { return c.resource.Key(c.info.Namespace, c.info.Name) }

func (c *call) groupVersion() schema.GroupVersion { return c.kind.GroupVersion() }

// spoken is the kind that bodies and answers are of: the resource's, unless a
// subresource has its own.
func (c *call) spoken() schema.GroupVersionKind {
	if c.sub == nil {
		return c.kind
	}
	return c.sub.KindIn(c.groupVersion())
}

// stored decodes a stored object into its internal type, with its revision.
func (c *call) stored(o *store.Object) (runtime.Object, error) {
	if c.resource.Custom != nil && c.byTheseRules(o) {
		return c.keeps().DecodeKept(o.Value(), c.resource.StorageKind())
	}
	return c.keeps().DecodeStored(o.Value(), c.resource.StorageKind())
}

// codec speaks the kind's representations; that of the meta group while the
// kind is not known.
func (c *call) codec() *codec.Codec {
	if c.resource == nil || c.scales() {
		return c.common()
	}
	return c.keeps()
}

// common speaks what is no resource's own: a Status, a Scale.
func (c *call) common() *codec.Codec { return c.codecs.get(nil).codec }

// keeps speaks of stored objects.
func (c *call) keeps() *codec.Codec {
	return c.codecs.of(c.resource)
}

func (c *call) fieldManager(strategy upstream.RESTUpdateStrategy) (*patch.Manager, error) {
	resets := kinds.ResetFields(strategy)
	if c.scales() {
		resets = nil // they are the object's
	}
	return c.owners().For(c.spoken(), c.info.Subresource, fieldpath.NewExcludeFilterSetMap(resets))
}

// owners keep the record of who owns which field of what the request is for.
func (c *call) owners() *patch.Ownership {
	if c.resource.Custom != nil && !c.scales() {
		return c.resource.Custom.Owners()
	}
	return c.codecs.get(c.resource.Scheme).owners // also those of any kind's scale
}

func (c *call) notFound() error {
	return apierrors.NewNotFound(c.resource.GroupResource(), c.info.Name)
}

// snapshot is the plane as it is now, or as it was when the handler is of the
// past.
func (c *call) snapshot() (*store.Snapshot, error) {
	if c.At != 0 {
		return c.Store.SnapshotAt(c.info.Plane, c.At)
	}
	return c.Store.Snapshot(c.info.Plane)
}

// inThePast is the answer to what cannot be done there.
func (c *call) inThePast() error {
	err := apierrors.NewMethodNotSupported(c.resource.GroupResource(), c.info.Verb)
	err.ErrStatus.Message = fmt.Sprintf("%s is not supported at revision %d: the past is read-only", c.info.Verb, c.At)
	return err
}
