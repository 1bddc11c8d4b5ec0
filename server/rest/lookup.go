package rest

import (
	"context"
	"encoding/json"
	"iter"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/store"
)

// Lookup finds the objects that decide who may do what: service accounts and
// what their tokens are bound to, roles and bindings. It reads plane main, as
// new as the last acknowledged write. Stored objects of these kinds are JSON
// of v1.
type Lookup struct {
	Store *store.Store
}

func lookup[T any](ctx context.Context, l Lookup, table, key, name string) (*T, error) {
	sn, err := l.Store.Snapshot(store.Main)
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

const rbacSuffix = "." + rbacv1.GroupName

// Revision changes whenever a resource of the RBAC group does.
func (l Lookup) Revision(resource string) uint64 {
	sn, err := l.Store.Snapshot(store.Main)
	if err != nil {
		return 0 // main is always there
	}
	return uint64(sn.LastChange(resource + rbacSuffix))
}

// List yields the objects of a resource of the RBAC group.
func (l Lookup) List(ctx context.Context, resource string) iter.Seq2[runtime.Object, error] {
	return func(yield func(runtime.Object, error) bool) {
		sn, err := l.Store.Snapshot(store.Main)
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
