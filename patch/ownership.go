package patch

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/patch/ownership"
)

// Ownership keeps managedFields, for the kinds of one scheme. What it needs to
// know about types is made when it is first asked for.
type Ownership struct {
	scheme ownership.Scheme
	types  func() (managedfields.TypeConverter, error)
	// untyped says that the version of a request is the internal one.
	untyped bool

	mu       sync.Mutex // guards managers
	managers map[scope]*Manager
}

// scope is what fields are owned in: a kind, in the version that a request
// speaks, through a subresource or not.
type scope struct {
	kind        schema.GroupVersionKind
	subresource string
}

// NewOwnership returns the ownership of a scheme's kinds.
func NewOwnership(scheme *runtime.Scheme) *Ownership {
	return &Ownership{
		scheme: scheme,
		types: sync.OnceValues(func() (managedfields.TypeConverter, error) {
			return withDefined{applyconfigurations.NewTypeConverter(scheme)}, nil
		}),
		managers: map[scope]*Manager{},
	}
}

// NewUntypedOwnership returns the ownership of a kind without a Go type.
func NewUntypedOwnership(scheme ownership.Scheme, types func() (managedfields.TypeConverter, error)) *Ownership {
	return &Ownership{scheme: scheme, types: types, untyped: true, managers: map[scope]*Manager{}}
}

// Types tell about the lists and maps of the kinds.
func (o *Ownership) Types() (managedfields.TypeConverter, error) { return o.types() }

// For returns the manager of requests that write a kind, or one of its
// subresources, in the given version. Fields in resets cannot be owned that
// way.
func (o *Ownership) For(kind schema.GroupVersionKind, subresource string, resets map[fieldpath.APIVersion]fieldpath.Filter) (*Manager, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := scope{kind, subresource}
	if m := o.managers[key]; m != nil {
		return m, nil
	}
	types, err := o.types()
	if err != nil {
		return nil, fmt.Errorf("field ownership of %v: %w", kind, err)
	}
	empty, err := o.scheme.New(kind)
	if err != nil {
		return nil, fmt.Errorf("field ownership of %v: %w", kind, err)
	}
	m := &Manager{empty: empty, owned: ownership.New(ownership.Config{
		Kind: kind, Subresource: subresource, Resets: resets, Scheme: o.scheme, Types: types, Untyped: o.untyped,
	})}
	o.managers[key] = m
	return m, nil
}

// Manager keeps the ownership of a kind's fields, of all but
// metadata.initializers: that field is settled between initializers and the
// server, and nobody owns it.
type Manager struct {
	owned *ownership.Manager
	empty runtime.Object // of the version that requests speak
}

// Update returns obj, which the manager of that name has written in place of
// live, with the record of who owns what.
func (m *Manager) Update(live, obj runtime.Object, manager string) runtime.Object {
	before, carried := initializers.Detach(live), initializers.Detach(obj)
	obj = m.owned.Update(live, obj, manager)
	before.Attach(live)
	carried.Attach(obj)
	return obj
}

// Apply returns what live becomes when a manager applies a manifest, which may
// be changed.
func (m *Manager) Apply(live runtime.Object, manifest *unstructured.Unstructured, manager string, force bool) (runtime.Object, error) {
	sent := initializers.Cut(manifest.Object, m.empty)
	before := initializers.Detach(live)
	obj, err := m.owned.Apply(live, manifest, manager, force)
	before.Attach(live)
	if err != nil {
		return nil, err
	}
	carried, _, err := before.Merged(obj, sent, func(_, sent any) (any, error) { return sent, nil })
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	carried.Attach(obj)
	return obj, nil
}
