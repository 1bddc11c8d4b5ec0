// Package scale reads and writes how many replicas an object of any kind is to
// have, through the scale subresource.
//
// In comes what an object is known by to those who refer to it: its kind and its
// name; out comes its scale. Which resource a kind is is asked of discovery, and
// asked again when it is not known: kinds come and go.
package scale

import (
	"context"
	"fmt"
	"slices"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	scales "k8s.io/client-go/scale"

	"setpoint.dev/setpoint/client"
)

// Scales are those of all objects.
type Scales struct {
	open func() (*opened, error)
}

type opened struct {
	mapper *restmapper.DeferredDiscoveryRESTMapper
	client scales.ScalesGetter
	// discovery is not cached.
	discovery discovery.DiscoveryInterface
}

// New returns the scales of an API. Nothing is asked before it is needed.
func New(api *client.Client) *Scales {
	return &Scales{open: sync.OnceValues(func() (*opened, error) {
		d, err := api.Discovery()
		if err != nil {
			return nil, err
		}
		mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d))
		getter, err := scales.NewForConfig(api.Config(), mapper, dynamic.LegacyAPIPathResolverFunc, scales.NewDiscoveryScaleKindResolver(d))
		if err != nil {
			return nil, err
		}
		return &opened{mapper: mapper, client: getter, discovery: d}, nil
	})}
}

// Resources are those that a kind may be, of all versions or of one. It is an
// error that meta.IsNoMatchError knows when there is none.
func (s *Scales) Resources(kind schema.GroupKind, versions ...string) ([]schema.GroupResource, error) {
	o, err := s.open()
	if err != nil {
		return nil, err
	}
	found, err := o.mapper.RESTMappings(kind, versions...)
	if meta.IsNoMatchError(err) {
		o.mapper.Reset() // a kind that has come since
		found, err = o.mapper.RESTMappings(kind, versions...)
	}
	if err != nil {
		return nil, err
	}
	resources := make([]schema.GroupResource, len(found))
	for i, m := range found {
		resources[i] = m.Resource.GroupResource()
	}
	return resources, nil
}

// Get returns the scale of an object.
func (s *Scales) Get(ctx context.Context, of schema.GroupResource, namespace, name string) (*autoscalingv1.Scale, error) {
	o, err := s.open()
	if err != nil {
		return nil, err
	}
	return o.client.Scales(namespace).Get(ctx, of, name, metav1.GetOptions{})
}

// Update writes a scale that was read.
func (s *Scales) Update(ctx context.Context, of schema.GroupResource, to *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	o, err := s.open()
	if err != nil {
		return nil, err
	}
	return o.client.Scales(to.Namespace).Update(ctx, of, to, metav1.UpdateOptions{})
}

// Of returns the scale of an object's controller. It is an error of its own when
// the controller's kind has none.
func (s *Scales) Of(ctx context.Context, namespace string, ref *metav1.OwnerReference) (*autoscalingv1.Scale, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	found, err := s.Resources(schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, gv.Version)
	if err != nil {
		return nil, err
	}
	of, missing := s.Get(ctx, found[0], namespace, ref.Name)
	if !apierrors.IsNotFound(missing) {
		return of, missing
	}
	scaled, err := s.scaled(gv, found[0])
	if err != nil {
		return nil, err
	}
	if !scaled {
		return nil, fmt.Errorf("%s does not implement the scale subresource", found[0].String())
	}
	return nil, missing
}

// scaled says that objects of a resource have a scale.
func (s *Scales) scaled(gv schema.GroupVersion, of schema.GroupResource) (bool, error) {
	o, err := s.open()
	if err != nil {
		return false, err
	}
	list, err := o.discovery.ServerResourcesForGroupVersion(gv.String())
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool {
		return r.Name == of.Resource+"/scale" && r.Kind == "Scale"
	}), nil
}
