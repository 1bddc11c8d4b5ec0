package loop

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/metrics"
)

// Actor is what a controller is given: who it is, and what it sees the API
// through.
type Actor struct {
	// Client is for writes, and for reads that no cache may answer. Its requests
	// are those of the actor when their context comes from a round of a Loop, or
	// from As.
	Client kubernetes.Interface
	// API makes other clients.
	API *client.Client
	// Informers are shared by all controllers. Those that a controller asks for
	// are started; pods are shown before they are initialized.
	Informers informers.SharedInformerFactory
	// Events has the controller's events written, aggregated and rate limited.
	Events record.EventRecorder
	Logger *slog.Logger

	who     user.Info // nil is who the client is
	start   func()
	metrics *metrics.Metrics
	debts   *debts
}

// Shared is what all actors have in common.
type Shared struct {
	API       *client.Client
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Metrics count queues; nil counts nothing.
	Metrics *metrics.Metrics
	// Start starts the informers that have been asked for since.
	Start func()
}

// NewActor returns an actor that is the service account of that name in
// kube-system, or with "" who the client is, and whose events are from component.
// They are written until ctx ends.
func NewActor(ctx context.Context, s Shared, account, component string) *Actor {
	a := &Actor{
		Client: s.Client, API: s.API, Informers: s.Informers, Logger: s.Logger,
		start: s.Start, metrics: s.Metrics, debts: &debts{},
	}
	if account != "" {
		groups := append(serviceaccount.MakeGroupNames("kube-system"), user.AllAuthenticated)
		a.who = &user.DefaultInfo{Name: serviceaccount.MakeUsername("kube-system", account), Groups: groups}
	}
	a.Events = &recorder{open: sync.OnceValue(func() record.EventRecorder { return a.broadcast(ctx, component) })}
	return a
}

// As makes requests with ctx those of the actor.
func (a *Actor) As(ctx context.Context) context.Context {
	if a.who == nil {
		return ctx
	}
	return client.As(ctx, a.who)
}

func (a *Actor) startInformers() { a.start() }

func (a *Actor) queue(name string) *metrics.Queue {
	if a.metrics == nil {
		return nil
	}
	return a.metrics.Queue(name)
}

// broadcast opens the way of events to the API.
func (a *Actor) broadcast(ctx context.Context, component string) record.EventRecorder {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&sink{ctx: a.As(ctx), events: a.Client})
	context.AfterFunc(ctx, b.Shutdown)
	return b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
}

// recorder opens the way of events when there is the first.
type recorder struct{ open func() record.EventRecorder }

// Event implements record.EventRecorder.
func (r *recorder) Event(object runtime.Object, kind, reason, message string) {
	r.open().Event(object, kind, reason, message)
}

// Eventf implements record.EventRecorder.
func (r *recorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.open().Eventf(object, kind, reason, format, args...)
}

// AnnotatedEventf implements record.EventRecorder.
func (r *recorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	r.open().AnnotatedEventf(object, annotations, kind, reason, format, args...)
}

// sink writes events as the actor that they are from.
type sink struct {
	ctx    context.Context
	events kubernetes.Interface
}

// Create implements record.EventSink.
func (s *sink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.events.CoreV1().Events("").CreateWithEventNamespaceWithContext(s.ctx, e)
}

// Update implements record.EventSink.
func (s *sink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.events.CoreV1().Events("").UpdateWithEventNamespaceWithContext(s.ctx, e)
}

// Patch implements record.EventSink.
func (s *sink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.events.CoreV1().Events("").PatchWithEventNamespaceWithContext(s.ctx, e, data)
}
