package patch

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

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
	managers map[scope]*ownership.Manager
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
		managers: map[scope]*ownership.Manager{},
	}
}

// NewUntypedOwnership returns the ownership of a kind without a Go type.
func NewUntypedOwnership(scheme ownership.Scheme, types func() (managedfields.TypeConverter, error)) *Ownership {
	return &Ownership{scheme: scheme, types: types, untyped: true, managers: map[scope]*ownership.Manager{}}
}

// Types tell about the lists and maps of the kinds.
func (o *Ownership) Types() (managedfields.TypeConverter, error) { return o.types() }

// For returns the manager of requests that write a kind, or one of its
// subresources, in the given version. Fields in resets cannot be owned that
// way.
func (o *Ownership) For(kind schema.GroupVersionKind, subresource string, resets map[fieldpath.APIVersion]fieldpath.Filter) (*ownership.Manager, error) {
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
	m := ownership.New(ownership.Config{
		Kind: kind, Subresource: subresource, Resets: resets, Scheme: o.scheme, Types: types, Untyped: o.untyped,
	})
	o.managers[key] = m
	return m, nil
}
