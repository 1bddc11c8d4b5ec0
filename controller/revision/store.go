package revision

import (
	"bytes"
	"context"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/controller/own"
)

// Claim returns the revisions of an owner, after it has adopted orphans that it
// selects and released those that it does not. The index is own.Index's.
func Claim(ctx context.Context, c kubernetes.Interface, in cache.Indexer, owner own.Owner, selector labels.Selector) ([]*appsv1.ControllerRevision, error) {
	owner.Patch = func(ctx context.Context, namespace, name string, patch []byte) error {
		_, err := c.AppsV1().ControllerRevisions(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	return own.Claimed[*appsv1.ControllerRevision](ctx, in, owner, selector)
}

// Keep writes the choice, where there is something to write. It says whether its
// name is that of another template, so that it needs another.
func (c Choice) Keep(ctx context.Context, client kubernetes.Interface) (collides bool, err error) {
	api := client.AppsV1().ControllerRevisions(c.Namespace)
	switch {
	case c.Renumbered:
		_, err = api.Update(ctx, c.ControllerRevision, metav1.UpdateOptions{})
		return false, err
	case !c.New:
		return false, nil
	}
	_, err = api.Create(ctx, c.ControllerRevision, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return false, err
	}
	have, err := api.Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return !bytes.Equal(have.Data.Raw, c.Data.Raw), nil
}

// Trim deletes revisions.
func Trim(ctx context.Context, client kubernetes.Interface, surplus []*appsv1.ControllerRevision) error {
	for _, r := range surplus {
		if err := client.AppsV1().ControllerRevisions(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
