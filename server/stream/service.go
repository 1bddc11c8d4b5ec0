package stream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// serviceLocation is an address that serves "service", "service:port" or
// "scheme:service:port", where the port is a name or a number: any of the
// endpoints that are pods of the same namespace. Others may be addresses that
// the client could not reach by itself.
func (s *Streams) serviceLocation(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	namespace := request.NamespaceValue(ctx)
	if number, err := strconv.ParseInt(port, 10, 64); err == nil {
		if port, err = s.portName(ctx, namespace, name, number); err != nil {
			return nil, nil, err
		}
	}
	endpoints, err := get[*corev1.Endpoints](ctx, s.Objects, "endpoints", namespace, name) //nolint:staticcheck // Compat: upstream goes by them
	if err != nil {
		return nil, nil, err
	}
	if len(endpoints.Subsets) == 0 {
		return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	for _, i := range rand.Perm(len(endpoints.Subsets)) {
		subset := endpoints.Subsets[i]
		at := slices.IndexFunc(subset.Ports, func(p corev1.EndpointPort) bool { return p.Name == port })
		if at < 0 {
			continue
		}
		for _, j := range rand.Perm(len(subset.Addresses)) {
			if address := subset.Addresses[j]; s.isPod(ctx, namespace, address) {
				host := net.JoinHostPort(address.IP, strconv.Itoa(int(subset.Ports[at].Port)))
				return &url.URL{Scheme: scheme, Host: host}, s.pods, nil
			}
		}
	}
	return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", id))
}

// portName is the name of a service's port.
func (s *Streams) portName(ctx context.Context, namespace, name string, number int64) (string, error) {
	service, err := get[*corev1.Service](ctx, s.Objects, "services", namespace, name)
	if err != nil {
		return "", err
	}
	for _, p := range service.Spec.Ports {
		if int64(p.Port) == number {
			return p.Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
}

// isPod says that an endpoint is a pod of a namespace, at an address of that pod.
func (s *Streams) isPod(ctx context.Context, namespace string, address corev1.EndpointAddress) bool {
	ref := address.TargetRef
	if ref == nil || ref.Namespace != namespace {
		return false
	}
	p, err := get[*corev1.Pod](ctx, s.Objects, "pods", namespace, ref.Name)
	return err == nil && slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == address.IP })
}
