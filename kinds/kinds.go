// Package kinds is the list of what the API serves, and the contract that each
// kind fills.
//
// A Resource says all that the request path needs to know about one plural
// name of one API group: its names and versions, how objects are decoded,
// defaulted, converted and encoded, the strategies that prepare and validate
// writes, the fields that can be selected, its subresources and table columns.
// The request path knows no kind by name.
//
// builtin.go is one table over upstream's schemes, strategies and printers; each
// API group has its rows in a file of its own.
package kinds

import (
	"context"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/patch"
)

// Resource is a kind served under one plural name of one group.
type Resource struct {
	Group    string
	Name     string // plural, as in URLs
	Singular string
	Kind     string
	// Namespaced says that objects live in namespaces.
	Namespaced bool
	ShortNames []string
	Categories []string
	// Versions are the served versions, the preferred one first.
	Versions []string
	// Undescribed are served versions that OpenAPI does not describe.
	Undescribed []string
	// Storage is the version that objects are stored in. Its group may be
	// another one: events of both groups are stored as core/v1. From there the
	// way to the internal type is runtime.InternalGroupVersioner.
	Storage schema.GroupVersion
	// Table is the name of the store's table, such as "pods" or
	// "deployments.apps". Resources that show the same objects share it.
	Table string
	// Verbs are those of the resource itself, as discovery lists them.
	Verbs []string

	// Scheme defaults, converts and makes objects of the kind.
	Scheme Scheme
	// Custom is set for kinds without a Go type; see there.
	Custom Custom
	// ListKind is the kind of its lists, where that is not Kind and "List".
	ListKind string
	// Warning is what clients are told who use the kind in this version.
	Warning string
	// Leaving says that the kind is being removed: nothing is created any more.
	Leaving bool
	// Gone is closed when the kind is served no more; nil for those that always
	// are.
	Gone <-chan struct{}

	// Create, Update and Delete are upstream's strategies for the kind's
	// internal type. Delete may also be a rest.RESTGracefulDeleteStrategy or a
	// rest.GarbageCollectionDeleteStrategy. Create is nil for kinds that are
	// not stored. Some ask the context for its request.RequestInfo: what is
	// right for events and jobs depends on the version that is spoken.
	Create rest.RESTCreateStrategy
	Update rest.RESTUpdateStrategy
	Delete rest.RESTDeleteStrategy
	// Unseen is what Update is for objects that wait for initializers; nil
	// means that it is the same. Nobody has acted on those yet.
	Unseen rest.RESTUpdateStrategy
	// Fields are the selectable fields of an object of the internal type,
	// metadata.name and, where there are namespaces, metadata.namespace
	// included.
	Fields func(obj runtime.Object) (fields.Set, error)
	// Join steps in before an object is prepared and validated, or removed, and
	// returns what else is to happen in the same commit; it is how addresses
	// and ports are allocated and come back. Updates of subresources, but for
	// the one that it settles, do not ask it. It may be nil.
	Join func(ctx context.Context, w Write) ([]Companion, error)
	// Settles is set where Join fills in a subresource.
	Settles *Settled

	// ReturnsDeleted says that a delete answers with the object as it last
	// was. Other kinds answer with a Status that names it.
	ReturnsDeleted bool
	// TTL is how long an object is kept after it was last written; 0 is forever.
	TTL time.Duration
	// CheckDelete looks at a delete before anything is done: it may refuse it
	// or have a warning for the client. A collection is checked once, without a
	// name. It may be nil.
	CheckDelete func(ctx context.Context, name string, opts *metav1.DeleteOptions) (warning string, err error)
	// Linger is set for kinds whose objects stay after a delete until someone
	// lets them go, even with no finalizers in their metadata.
	Linger *Linger

	// Columns make the kind's table; upstream's printer columns.
	Columns rest.TableConvertor

	// Subresources by name.
	Subresources map[string]*Subresource
}

// Linger is a deletion in two steps: the first delete only marks the object,
// and a later write or delete removes it once it is no longer held.
type Linger struct {
	// Mark changes an object of the internal type that is being marked with a
	// deletion time.
	Mark func(obj runtime.Object)
	// Held says that a marked object has to stay. One that is not held still
	// waits for the finalizers in its metadata.
	Held func(obj runtime.Object) bool
}

// Settled is a subresource that the kind's Join fills in, in the name of the
// control plane, which owns those fields.
type Settled struct {
	Subresource string
	// Reset gives obj the subresource of old, nil for a creation, before Join
	// sees it: a client cannot write it with the object.
	Reset func(obj, old runtime.Object)
}

// Subresource is a part of an object, or something to do with it, that has a
// path of its own.
type Subresource struct {
	Name string
	// Kind is what is read and written there, such as autoscaling/v1 Scale.
	// With no version it is a kind of the resource's own group in the version of
	// the request: pods/status is a Pod, pods/exec takes PodExecOptions.
	Kind schema.GroupVersionKind
	// Also are further versions of Kind's group that may be written.
	Also []string
	// Verbs as discovery lists them.
	Verbs []string
	// Update is set for subresources that are a view of the whole object with
	// rules of its own (status, finalize, approval, ephemeralcontainers, resize).
	Update rest.RESTUpdateStrategy
	// Scale is set for the scale subresource.
	Scale *Scale
}

// Scale reads and writes the scale of an object of the internal type.
type Scale struct {
	// Get makes the *autoscaling.Scale (internal) of an object.
	Get func(obj runtime.Object) (runtime.Object, error)
	// Set validates a scale and applies its spec.replicas and resourceVersion to
	// obj. A scale with the UID of another object is a conflict.
	Set func(obj, scale runtime.Object) error
	// Check says why a scale from Get cannot be read; it may be nil. Writing it
	// may mend that.
	Check func(scale runtime.Object) error
	// Columns make the table of a scale; nil for those of the resource.
	Columns rest.TableConvertor
	// Paths say where the replicas are in each version of the kind, for
	// managedfields.NewScaleHandler to carry ownership over and back.
	Paths managedfields.ResourcePathMappings
}

// Scheme is what a kind asks of its types: runtime.Scheme gives it for built-in
// kinds.
type Scheme = codec.Types

// Custom is what a kind without a Go type says of itself. Its objects are
// *unstructured.Unstructured; the version of the request is their internal one,
// so that each version is a Resource of its own.
type Custom interface {
	// Ready makes what the kind needs to be used. Its error says that it cannot
	// be.
	Ready() error
	// Codec speaks the kind's representations.
	Codec() *codec.Codec
	// Owners keep the record of who owns which field.
	Owners() *patch.Ownership
	// Fingerprint is of the schemas. It is kept with each object that is stored:
	// the bytes of one that has another were written by other rules, and have to
	// be read by these before they are an answer.
	Fingerprint() uint32
	// Defined is the revision of the definition, which is stored in the table
	// Definitions under the name of the kind's table, that the kind is known to
	// be right for. What was made by the kind's rules may be stored while that
	// is the definition's newest.
	Defined() uint64
}

// ListOf is the kind of the resource's lists.
func (r *Resource) ListOf() string {
	if r.ListKind != "" {
		return r.ListKind
	}
	return r.Kind + "List"
}

// GroupResource names the resource without a version.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Name}
}

// GroupVersionKind names the kind in one of its versions.
func (r *Resource) GroupVersionKind(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: version, Kind: r.Kind}
}

// New makes an empty object of the internal type.
func (r *Resource) New() (runtime.Object, error) {
	return r.Scheme.New(r.GroupVersionKind(runtime.APIVersionInternal))
}

// ConvertFieldLabel turns a field selector's label and value, as a client of a
// version writes them, into those of Fields. Its error says that the kind has
// no such field to select by.
func (r *Resource) ConvertFieldLabel(version, label, value string) (string, string, error) {
	return r.Scheme.ConvertFieldLabel(r.GroupVersionKind(version), label, value)
}

// StorageKind is the kind that objects are stored as.
func (r *Resource) StorageKind() schema.GroupVersionKind { return r.Storage.WithKind(r.Kind) }

// Serves says whether the resource is served in a version.
func (r *Resource) Serves(version string) bool { return slices.Contains(r.Versions, version) }

// Key is an object's key in the resource's table.
func (r *Resource) Key(namespace, name string) string {
	if r.Namespaced {
		return namespace + "/" + name
	}
	return name
}

// SplitKey is Key backwards.
func (r *Resource) SplitKey(key string) (namespace, name string) {
	if r.Namespaced {
		namespace, name, _ = strings.Cut(key, "/")
		return namespace, name
	}
	return "", key
}

// KindIn is the subresource's kind for a request to its resource in a version.
func (s *Subresource) KindIn(resource schema.GroupVersion) schema.GroupVersionKind {
	if s.Kind.Version == "" {
		return resource.WithKind(s.Kind.Kind)
	}
	return s.Kind
}

// ResetFields are the fields, by version, that a strategy puts back to what
// they were; who sends them does not come to own them.
//
// Compat: upstream's ephemeralcontainers and resize reset no fields, although
// their strategies inherit those of pods.
func ResetFields(s rest.RESTUpdateStrategy) map[fieldpath.APIVersion]*fieldpath.Set {
	if _, filters := s.(rest.ResetFieldsFilterStrategy); filters {
		return nil
	}
	if r, ok := s.(rest.ResetFieldsStrategy); ok {
		return r.GetResetFields()
	}
	return nil
}
