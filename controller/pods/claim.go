package pods

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/controller/own"
)

// Claim returns the pods of an owner, after it has adopted orphans that it
// selects and released those that it does not. The index is own.Index's.
func Claim(ctx context.Context, c kubernetes.Interface, in cache.Indexer, owner own.Owner, selector labels.Selector) ([]*corev1.Pod, error) {
	owner.Patch = func(ctx context.Context, namespace, name string, patch []byte) error {
		_, err := c.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	return own.Claimed[*corev1.Pod](ctx, in, owner, selector)
}
