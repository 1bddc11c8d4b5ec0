package aggregate

import (
	"context"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apiserver/pkg/util/proxy"
	listers "k8s.io/client-go/listers/core/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// resolve finds an address of a service.
//
// It is one of the service's ready endpoints, as upstream chooses it when told
// to route by itself: nothing here makes cluster addresses reachable. A service
// that names another host is that host; one that nobody says where it runs is
// tried at its cluster address, which something outside may serve.
func (a *Aggregator) resolve(ctx context.Context, ref *apiregistrationv1.ServiceReference) (*url.URL, error) {
	find := finder{ctx: ctx, objects: a.Objects}
	service, err := find.Services(ref.Namespace).Get(ref.Name)
	if err != nil {
		return nil, err
	}
	slices, err := find.GetEndpointSlices(ref.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || len(slices) == 0 {
		return proxy.ResolveCluster(find, ref.Namespace, ref.Name, port(ref))
	}
	return proxy.ResolveEndpoint(find, find, ref.Namespace, ref.Name, port(ref))
}

// port is the service's port that is meant.
func port(ref *apiregistrationv1.ServiceReference) int32 {
	if ref.Port == nil {
		return 443
	}
	return *ref.Port
}

// finder shows Objects to upstream's resolvers, which call no more than these
// methods.
type finder struct {
	listers.ServiceLister
	ctx     context.Context
	objects Objects
}

// Services implements listers.ServiceLister.
func (f finder) Services(namespace string) listers.ServiceNamespaceLister {
	return inNamespace{finder: f, namespace: namespace}
}

// GetEndpointSlices implements proxy.EndpointSliceGetter.
func (f finder) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	return f.objects.GetEndpointSlices(f.ctx, namespace, service)
}

type inNamespace struct {
	listers.ServiceNamespaceLister
	finder    finder
	namespace string
}

// Get implements listers.ServiceNamespaceLister.
func (n inNamespace) Get(name string) (*corev1.Service, error) {
	return n.finder.objects.GetService(n.finder.ctx, n.namespace, name)
}
