package aggregate

import (
	"context"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/util/proxy"
	listers "k8s.io/client-go/listers/core/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Resolver finds addresses of services, for webhooks as for other servers.
type Resolver struct {
	Objects Objects
}

// ResolveEndpoint implements webhook.ServiceResolver.
func (r Resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return r.find(context.Background(), namespace, name, port)
}

// resolve finds an address of an APIService's service.
func (a *Aggregator) resolve(ctx context.Context, ref *apiregistrationv1.ServiceReference) (*url.URL, error) {
	return Resolver{a.Objects}.find(ctx, ref.Namespace, ref.Name, port(ref))
}

// find finds an address of a service.
//
// It is one of the service's ready endpoints, as upstream chooses it when told
// to route by itself: nothing here makes cluster addresses reachable. A service
// that names another host is that host; one that nobody says where it runs is
// tried at its cluster address, which something outside may serve.
func (r Resolver) find(ctx context.Context, namespace, name string, port int32) (*url.URL, error) {
	find := finder{ctx: ctx, objects: r.Objects}
	service, err := find.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(corev1.Resource("service"), name) // Compat: in upstream's words
	}
	if err != nil {
		return nil, err
	}
	slices, err := find.GetEndpointSlices(namespace, name)
	if err != nil {
		return nil, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || len(slices) == 0 {
		return proxy.ResolveCluster(find, namespace, name, port)
	}
	return proxy.ResolveEndpoint(find, find, namespace, name, port)
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

// Get implements listers.ServiceNamespaceLister. Compat: upstream's lister says
// "service" of one that is not there.
func (n inNamespace) Get(name string) (*corev1.Service, error) {
	s, err := n.finder.objects.GetService(n.finder.ctx, n.namespace, name)
	if apierrors.IsNotFound(err) {
		err = apierrors.NewNotFound(corev1.Resource("service"), name)
	}
	return s, err
}
