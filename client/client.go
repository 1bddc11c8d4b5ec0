// Package client is how everything inside the process uses the API: client-go
// over a transport that calls the server's handler.
//
// In comes a handler and who asks; out come client-go's clients and informers.
// There are no sockets, and nothing is skipped either: a request is
// authenticated as the user that its context names (As) or the client's own,
// authorized and admitted like any other. A context may also say which revision
// made somebody write (Because), and collect what was written at which revision
// (Note), so that a writer knows when its caches have seen its own writes.
//
// These three pass through the context and not through headers, so nobody
// outside the process can claim them.
package client

import (
	"context"
	"net/http"
	"path"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// host is what requests say they are for; nothing looks it up.
const host = "http://setpoint"

// Config says who asks whom.
type Config struct {
	// Handler answers. It is needed.
	Handler http.Handler
	// User is who asks where the context does not say. It is needed.
	User user.Info
	// UserAgent begins with the name under which fields are owned.
	UserAgent string
	// Uninitialized are the resources whose lists and watches show objects that
	// are not initialized yet, besides those of a context that says so.
	Uninitialized []string
}

// Client makes the clients of one user. Each is made when first asked for.
type Client struct {
	transport *Transport
	http      *http.Client
	agent     string

	kubernetes func() (kubernetes.Interface, error)
	metadata   func() (metadata.Interface, error)
	dynamic    func() (dynamic.Interface, error)
	discovery  func() (discovery.DiscoveryInterface, error)
}

// New returns a client.
func New(cfg Config) *Client {
	t := newTransport(cfg)
	c := &Client{transport: t, http: &http.Client{Transport: t}, agent: cfg.UserAgent}
	c.kubernetes = sync.OnceValues(func() (kubernetes.Interface, error) {
		return kubernetes.NewForConfigAndClient(c.protobuf(), c.http)
	})
	c.metadata = sync.OnceValues(func() (metadata.Interface, error) {
		return metadata.NewForConfigAndClient(metadata.ConfigFor(c.Config()), c.http)
	})
	c.dynamic = sync.OnceValues(func() (dynamic.Interface, error) {
		return dynamic.NewForConfigAndClient(dynamic.ConfigFor(c.Config()), c.http)
	})
	c.discovery = sync.OnceValues(func() (discovery.DiscoveryInterface, error) {
		return discovery.NewDiscoveryClientForConfigAndClient(c.Config(), c.http)
	})
	return c
}

// Config is for clients that are made elsewhere. They share the transport.
func (c *Client) Config() *rest.Config {
	return &rest.Config{Host: host, Transport: c.transport, UserAgent: c.agent, QPS: -1, WarningHandler: rest.NoWarnings{}}
}

// protobuf is for clients of built-in kinds.
func (c *Client) protobuf() *rest.Config {
	cfg := c.Config()
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return cfg
}

// Kubernetes is for built-in kinds.
func (c *Client) Kubernetes() (kubernetes.Interface, error) { return c.kubernetes() }

// Metadata is for what all kinds have in common.
func (c *Client) Metadata() (metadata.Interface, error) { return c.metadata() }

// Dynamic is for kinds that have no Go type.
func (c *Client) Dynamic() (dynamic.Interface, error) { return c.dynamic() }

// Discovery tells which kinds there are.
func (c *Client) Discovery() (discovery.DiscoveryInterface, error) { return c.discovery() }

// Informers returns a new set of informers over Kubernetes, of which none has
// been asked for. What they hold does not say who owns its fields: nobody who
// reads a cache asks, and it is a good part of an object.
func (c *Client) Informers() (informers.SharedInformerFactory, error) {
	k, err := c.Kubernetes()
	if err != nil {
		return nil, err
	}
	return informers.NewSharedInformerFactoryWithOptions(k, 0, informers.WithTransform(WithoutOwnership)), nil
}

// WithoutOwnership is a cache.TransformFunc that leaves out who owns which
// field.
func WithoutOwnership(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil && m.GetManagedFields() != nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// Cut ends every request that is under way and fails all others, until Heal.
func (c *Client) Cut() { c.transport.setCut(true) }

// Heal ends a cut.
func (c *Client) Heal() { c.transport.setCut(false) }

// asks says whether lists and watches at a path show what is not initialized.
func (cfg Config) asks(ctx context.Context, urlPath string) bool {
	return ctx.Value(uninitializedKey) != nil || slices.Contains(cfg.Uninitialized, path.Base(urlPath))
}

type contextKey int

const (
	actorKey  contextKey = iota // who is to ask, on the way out
	callerKey                   // who asks, on the way in
	causeKey
	notesKey
	uninitializedKey
)

// As makes requests with ctx those of who.
func As(ctx context.Context, who user.Info) context.Context {
	return context.WithValue(ctx, actorKey, who)
}

// Caller is who asks, in the context of a request that came from inside the
// process; nil for all others.
func Caller(ctx context.Context) user.Info {
	who, _ := ctx.Value(callerKey).(user.Info)
	return who
}

// called is the context of a request as its handler sees it. Requests that the
// handler makes in turn are its own.
func called(ctx context.Context, otherwise user.Info) context.Context {
	who, _ := ctx.Value(actorKey).(user.Info)
	if who == nil {
		who = otherwise
	}
	return context.WithValue(context.WithValue(ctx, actorKey, nil), callerKey, who)
}

// Uninitialized has lists and watches with ctx show objects that are not
// initialized yet.
func Uninitialized(ctx context.Context) context.Context {
	return context.WithValue(ctx, uninitializedKey, true)
}

// Because says that what is written with ctx is written because of revision.
func Because(ctx context.Context, revision int64) context.Context {
	return context.WithValue(ctx, causeKey, revision)
}

// Cause is the revision that made the caller write; 0 when it did not say.
func Cause(ctx context.Context) int64 {
	revision, _ := ctx.Value(causeKey).(int64)
	return revision
}

// Notes are the newest revisions at which tables were written.
type Notes struct {
	mu    sync.Mutex // guards the fields below
	notes map[string]int64
}

// Note has what is written with ctx noted down in notes.
func Note(ctx context.Context, notes *Notes) context.Context {
	return context.WithValue(ctx, notesKey, notes)
}

// Wrote notes that the caller has written to a table, such as "pods" or
// "replicasets.apps", at revision.
func Wrote(ctx context.Context, table string, revision int64) {
	n, _ := ctx.Value(notesKey).(*Notes)
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.notes == nil {
		n.notes = map[string]int64{}
	}
	n.notes[table] = max(n.notes[table], revision)
}

// Take returns the notes, nil when there are none, and forgets them.
func (n *Notes) Take() map[string]int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.notes
	n.notes = nil
	return taken
}
