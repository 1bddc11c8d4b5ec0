package rest

import (
	"context"
	"encoding/json"
	"iter"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"setpoint.dev/setpoint/store"
)

// Lookup finds the objects that decide who may do what, and who serves it:
// service accounts and what their tokens are bound to, roles and bindings,
// services that other API servers are reached through. It reads a plane, as new as
// the last acknowledged write. Stored objects of these kinds are JSON of v1.
type Lookup struct {
	Store *store.Store
	// Plane is where; "" means store.Main.
	Plane string
}

func (l Lookup) snapshot() (*store.Snapshot, error) {
	if l.Plane == "" {
		l.Plane = store.Main
	}
	return l.Store.Snapshot(l.Plane)
}

func lookup[T any](ctx context.Context, l Lookup, table, key, name string) (*T, error) {
	sn, err := l.snapshot()
	if err != nil {
		return nil, err
	}
	o, err := sn.Get(ctx, table, key)
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: table}, name)
	}
	into := new(T)
	return into, json.Unmarshal(o.Value(), into)
}

func scan[T any](ctx context.Context, l Lookup, table, prefix string, want func(*store.Object) bool) ([]*T, error) {
	sn, err := l.snapshot()
	if err != nil {
		return nil, err
	}
	var found []*T
	for o, err := range sn.Scan(ctx, table, store.Range{Prefix: prefix}) {
		if err != nil {
			return nil, err
		}
		if !want(o) {
			continue
		}
		into := new(T)
		if err := json.Unmarshal(o.Value(), into); err != nil {
			return nil, err
		}
		found = append(found, into)
	}
	return found, nil
}

// GetServiceAccount returns a service account, or a NotFound error.
func (l Lookup) GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return lookup[corev1.ServiceAccount](ctx, l, "serviceaccounts", namespace+"/"+name, name)
}

// GetPod returns a pod, or a NotFound error.
func (l Lookup) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return lookup[corev1.Pod](ctx, l, "pods", namespace+"/"+name, name)
}

// GetSecret returns a secret, or a NotFound error.
func (l Lookup) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return lookup[corev1.Secret](ctx, l, "secrets", namespace+"/"+name, name)
}

// GetNode returns a node, or a NotFound error.
func (l Lookup) GetNode(ctx context.Context, name string) (*corev1.Node, error) {
	return lookup[corev1.Node](ctx, l, "nodes", name, name)
}

// GetService returns a service, or a NotFound error.
func (l Lookup) GetService(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	return lookup[corev1.Service](ctx, l, "services", namespace+"/"+name, name)
}

// GetEndpointSlices returns where a service runs.
func (l Lookup) GetEndpointSlices(ctx context.Context, namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	return scan[discoveryv1.EndpointSlice](ctx, l, "endpointslices.discovery.k8s.io", namespace+"/", func(o *store.Object) bool {
		of, _ := o.Label(discoveryv1.LabelServiceName)
		return of == service
	})
}

// ListAPIServices returns all registrations of group versions.
func (l Lookup) ListAPIServices(ctx context.Context) ([]*apiregistrationv1.APIService, error) {
	return scan[apiregistrationv1.APIService](ctx, l, "apiservices.apiregistration.k8s.io", "", func(*store.Object) bool { return true })
}

const rbacSuffix = "." + rbacv1.GroupName

// Revision changes whenever a resource of the RBAC group does.
func (l Lookup) Revision(resource string) uint64 {
	sn, err := l.snapshot()
	if err != nil {
		return 0 // a plane that is gone has none
	}
	return uint64(sn.LastChange(resource + rbacSuffix))
}

// List yields the objects of a resource of the RBAC group.
func (l Lookup) List(ctx context.Context, resource string) iter.Seq2[runtime.Object, error] {
	return func(yield func(runtime.Object, error) bool) {
		sn, err := l.snapshot()
		if err != nil {
			yield(nil, err)
			return
		}
		for o, err := range sn.Scan(ctx, resource+rbacSuffix, store.Range{}) {
			var into runtime.Object
			switch resource {
			case "roles":
				into = &rbacv1.Role{}
			case "rolebindings":
				into = &rbacv1.RoleBinding{}
			case "clusterroles":
				into = &rbacv1.ClusterRole{}
			default:
				into = &rbacv1.ClusterRoleBinding{}
			}
			if err == nil {
				err = json.Unmarshal(o.Value(), into)
			}
			if !yield(into, err) || err != nil {
				return
			}
		}
	}
}
