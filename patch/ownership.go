package patch

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/applyconfiguration"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Ownership keeps managedFields, for the kinds of one scheme. What it needs to
// know about types is made when it is first asked for.
type Ownership struct {
	scheme *runtime.Scheme
	types  func() managedfields.TypeConverter

	mu       sync.Mutex // guards managers
	managers map[scope]*managedfields.FieldManager
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
		types: sync.OnceValue(func() managedfields.TypeConverter {
			return withScale{typesOf(scheme)}
		}),
		managers: map[scope]*managedfields.FieldManager{},
	}
}

// typesOf knows the types of a scheme. Those of APIServices lie with their
// clients, all others with client-go.
func typesOf(scheme *runtime.Scheme) managedfields.TypeConverter {
	if scheme.IsVersionRegistered(apiregistrationv1.SchemeGroupVersion) {
		return aggregator.NewTypeConverter(scheme)
	}
	return applyconfigurations.NewTypeConverter(scheme)
}

// For returns the field manager for requests that write a kind, or one of its
// subresources, in the given version. Fields in resets cannot be owned that
// way.
func (o *Ownership) For(kind schema.GroupVersionKind, subresource string, resets map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := scope{kind, subresource}
	if m := o.managers[key]; m != nil {
		return m, nil
	}
	hub := schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
	m, err := managedfields.NewDefaultFieldManager(o.types(), o.scheme, o.scheme, o.scheme, kind, hub, subresource, resets)
	if err != nil {
		return nil, fmt.Errorf("field ownership of %v: %w", kind, err)
	}
	o.managers[key] = m
	return m, nil
}
