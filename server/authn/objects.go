package authn

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

var errNoObjects = errors.New("no objects to look up")

// Objects finds what tokens are about: the service account, and the pod,
// secret or node that a token is bound to. Each returns a NotFound API error
// for what is not there. Objects must be as new as the last acknowledged write.
type Objects interface {
	GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	GetNode(ctx context.Context, name string) (*corev1.Node, error)
}

// SecretPatcher writes a JSON merge patch to a secret. It is called once a day
// for each secret whose token is used; its errors do not fail the request.
type SecretPatcher interface {
	PatchSecret(ctx context.Context, namespace, name string, patch []byte) error
}

// secretLister shows upstream's bootstrap tokens the secrets of kube-system.
type secretLister struct{ objects Objects }

// Get implements SecretNamespaceLister.
func (l secretLister) Get(name string) (*corev1.Secret, error) {
	// The interface has no context; the lookup is in memory.
	return l.objects.GetSecret(context.Background(), metav1.NamespaceSystem, name)
}

// List implements SecretNamespaceLister; bootstrap tokens are found by name.
func (l secretLister) List(labels.Selector) ([]*corev1.Secret, error) {
	return nil, errors.New("secrets are not listed")
}

// secretWriter is a SecretPatcher in the shape upstream asks for.
type secretWriter struct{ patcher SecretPatcher }

// Secrets implements SecretsGetter.
func (w secretWriter) Secrets(namespace string) typedcorev1.SecretInterface {
	return secretPatches{patcher: w.patcher, namespace: namespace}
}

// secretPatches has the one method that upstream calls; the others are nil.
type secretPatches struct {
	typedcorev1.SecretInterface
	patcher   SecretPatcher
	namespace string
}

// Patch implements SecretInterface; it returns no secret.
func (p secretPatches) Patch(ctx context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Secret, error) {
	if p.patcher == nil {
		return nil, nil
	}
	return nil, p.patcher.PatchSecret(ctx, p.namespace, name, data)
}
