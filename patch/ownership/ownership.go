// Package ownership keeps the record of who owns which fields of an object, its
// managedFields, and carries out apply.
//
// In come the object as it is stored, the object as somebody wants it and the
// name they write under; out goes the object as it is to be stored, with its
// record. What is given is not changed, but for the new object of an update.
// Nothing is read or written elsewhere.
//
// Compat: records, errors and the results of an apply are those of upstream's
// field manager (k8s.io/apimachinery/pkg/util/managedfields), which the tests
// hold against this package. The work differs:
//
//   - one comparison of the stored and the new object serves all owners that
//     wrote in the version of the request; others are compared in theirs, once
//     per version,
//   - field sets are parsed, fitted to the schema and written once per content
//     and kept, up to a bound; those that a write leaves alone are written as
//     they came,
//   - an apply that gives up nothing needs no search for what to remove.
package ownership

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Scheme is what ownership asks of kinds.
type Scheme interface {
	runtime.ObjectCreater
	runtime.ObjectDefaulter
	runtime.ObjectConvertor
}

// Config says what is owned.
type Config struct {
	// Kind is the kind in the version that requests speak.
	Kind schema.GroupVersionKind
	// Subresource is what requests write through, "" for the object itself.
	Subresource string
	// Resets are fields that cannot be owned this way, by version.
	Resets map[fieldpath.APIVersion]fieldpath.Filter
	// Scheme makes, defaults and converts objects of the kind.
	Scheme Scheme
	// Types know the kind's fields.
	Types managedfields.TypeConverter
	// Untyped says that objects have no Go type and that the version of a
	// request is what they are kept in.
	Untyped bool
}

// Manager keeps the ownership of one kind's fields, for requests in one version
// through one subresource or none. It is safe for concurrent use.
type Manager struct {
	Config
	version fieldpath.APIVersion
	hub     schema.GroupVersion
	shape   func() (shape, error) // of objects in the version of requests
	checked checked
	nothing *set // what an owner has that is new
	failed  rarely
}

// New returns the manager of what the configuration says.
func New(c Config) *Manager {
	m := &Manager{
		Config: c, version: fieldpath.APIVersion(c.Kind.GroupVersion().String()),
		hub:     schema.GroupVersion{Group: c.Kind.Group, Version: runtime.APIVersionInternal},
		nothing: newSet(fieldpath.NewSet()),
	}
	if c.Untyped {
		m.hub = c.Kind.GroupVersion()
	}
	m.shape = sync.OnceValues(m.findShape)
	return m
}

// Update returns the new object with its record brought up to date: manager has
// written it in place of live, which is empty for an object that is created. An
// object whose ownership cannot be told is returned without a record.
func (m *Manager) Update(live, obj runtime.Object, manager string) runtime.Object {
	updated, err := m.update(live, obj, manager)
	if err == nil {
		return updated
	}
	if m.failed.now() {
		slog.Warn("the owners of an object's fields cannot be told", "kind", m.Kind, "object", describe(obj), "error", err)
	}
	if a, err := meta.Accessor(obj); err == nil {
		a.SetManagedFields(nil)
	}
	return obj
}

func (m *Manager) update(live, obj runtime.Object, manager string) (runtime.Object, error) {
	before, err := meta.Accessor(live)
	if err != nil {
		return obj, nil //nolint:nilerr // what has no metadata has no owners
	}
	after, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil //nolint:nilerr // as above
	}
	owners := m.claimed(before, after)
	after.SetManagedFields(nil)
	if len(owners) == 0 && before.GetUID() != "" {
		return obj, nil // Compat: who is not recorded from the start is not until the first apply
	}
	if owners, err = m.wrote(live, obj, owners, manager); err != nil {
		return nil, err
	}
	return obj, setRecord(after, owners)
}

// claimed is the record that an update starts from: what the new object says,
// or the stored object's where it says nothing that can be read. Compat: so
// that clients which do not know of it cannot remove it by accident, and
// through a subresource not at all.
func (m *Manager) claimed(live, obj metav1.Object) record {
	if m.Subresource == "" {
		r, reset, err := recordOf(obj)
		if reset || err == nil && len(r) > 0 {
			return r
		}
	}
	r, _, err := recordOf(live)
	if err != nil {
		return nil
	}
	return r
}

// isReset says that a record asks for everything to be forgotten.
func isReset(entries []metav1.ManagedFieldsEntry) bool {
	if len(entries) != 1 {
		return entries != nil && len(entries) == 0
	}
	return entries[0] == metav1.ManagedFieldsEntry{}
}

// Apply returns live with what is applied merged into it, owned by manager. The
// error of what others own is a conflict that names them, unless force takes it
// from them.
func (m *Manager) Apply(live, applied runtime.Object, manager string, force bool) (runtime.Object, error) {
	a, err := meta.Accessor(live)
	if err != nil {
		return nil, fmt.Errorf("couldn't get accessor: %w", err)
	}
	owners, _, err := recordOf(a)
	if err != nil {
		return nil, fmt.Errorf("failed to decode managed fields: %w", err)
	}
	obj, owners, err := m.apply(live, applied, owners, manager, force)
	if err != nil {
		return nil, asStatus(err)
	}
	if a, err = meta.Accessor(obj); err != nil {
		return nil, err
	}
	return obj, setRecord(a, owners)
}

// describe names an object in errors, as upstream does.
func describe(obj runtime.Object) string {
	name, namespace := "<unknown>", "<unknown>"
	if a, err := meta.Accessor(obj); err == nil {
		name, namespace = a.GetName(), a.GetNamespace()
	}
	return fmt.Sprintf("%v/%v; %v", namespace, name, obj.GetObjectKind().GroupVersionKind())
}

// rarely lets one of many through each second.
type rarely struct {
	mu   sync.Mutex // guards last
	last time.Time
}

func (r *rarely) now() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last) < time.Second {
		return false
	}
	r.last = time.Now()
	return true
}
