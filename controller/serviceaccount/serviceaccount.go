// Package serviceaccount gives every namespace the service account that its pods
// run as unless they say otherwise.
//
// In come namespaces and service accounts; out comes a service account "default"
// in every namespace that is active and has none.
package serviceaccount

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/loop"
)

const (
	name    = "default"
	workers = 1
)

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	core := a.Informers.Core().V1()
	l := loop.New(a, "serviceaccount", workers, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		ns, err := core.Namespaces().Lister().Get(key.Name)
		if err != nil || ns.Status.Phase != corev1.NamespaceActive {
			return 0, nil //nolint:nilerr // it is not there
		}
		if _, err := core.ServiceAccounts().Lister().ServiceAccounts(key.Name).Get(name); err == nil {
			return 0, nil
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err = a.Client.CoreV1().ServiceAccounts(key.Name).Create(ctx, account, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return 0, nil
		}
		return 0, err
	})
	loop.Watch(l, "namespaces", core.Namespaces().Informer(), func(_, after *corev1.Namespace) []loop.Key {
		if after == nil {
			return nil
		}
		return []loop.Key{loop.KeyOf(after)}
	})
	loop.Watch(l, "serviceaccounts", core.ServiceAccounts().Informer(), func(before, after *corev1.ServiceAccount) []loop.Key {
		if after != nil || before.Name != name {
			return nil
		}
		return []loop.Key{{Name: before.Namespace}}
	})
	return l
}
