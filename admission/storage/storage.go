// Package storage gives claims the default class, and keeps storage that is in
// use from being deleted.
package storage

import (
	"context"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/helper"
	"k8s.io/kubernetes/pkg/apis/storage"

	"setpoint.dev/setpoint/admission/view"
)

// DefaultClass gives claims that ask for no class the default one.
type DefaultClass struct {
	*admission.Handler
	objects view.Objects
}

// NewDefaultClass returns the plugin.
func NewDefaultClass(objects view.Objects) *DefaultClass {
	return &DefaultClass{admission.NewHandler(admission.Create), objects}
}

// Admit implements admission.MutationInterface.
func (d *DefaultClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != core.Resource("persistentvolumeclaims") || a.GetSubresource() != "" {
		return nil
	}
	claim, ok := a.GetObject().(*core.PersistentVolumeClaim)
	if !ok || helper.PersistentVolumeClaimHasClass(claim) {
		return nil
	}
	class, err := d.class(ctx)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if class != nil {
		claim.Spec.StorageClassName = new(class.Name)
	}
	return nil
}

// class is the youngest of the classes that are marked as default, the first by
// name among those of one age; nil when there is none.
func (d *DefaultClass) class(ctx context.Context) (found *storagev1.StorageClass, err error) {
	classes, err := view.List[*storagev1.StorageClass](ctx, d.objects, storagev1.SchemeGroupVersion.WithResource("storageclasses"), "")
	for _, c := range classes { // by name
		if isDefault(c) && (found == nil || c.CreationTimestamp.After(found.CreationTimestamp.Time)) {
			found = c
		}
	}
	return found, err
}

func isDefault(class *storagev1.StorageClass) bool {
	// Compat: the second is from before 1.6.
	return class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" || class.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}

// Protection puts a finalizer on storage, which a controller removes when
// nobody uses it.
type Protection struct {
	*admission.Handler
}

// NewProtection returns the plugin.
func NewProtection() *Protection { return &Protection{admission.NewHandler(admission.Create)} }

// finalizers are those of each kind.
var finalizers = map[schema.GroupResource]string{
	core.Resource("persistentvolumes"):          "kubernetes.io/pv-protection",
	core.Resource("persistentvolumeclaims"):     "kubernetes.io/pvc-protection",
	storage.Resource("volumeattributesclasses"): "kubernetes.io/vac-protection",
}

// Admit implements admission.MutationInterface.
func (*Protection) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	finalizer := finalizers[a.GetResource().GroupResource()]
	if finalizer == "" || a.GetSubresource() != "" {
		return nil
	}
	m, err := meta.Accessor(a.GetObject())
	if err != nil || slices.Contains(m.GetFinalizers(), finalizer) {
		return err
	}
	m.SetFinalizers(append(m.GetFinalizers(), finalizer))
	return nil
}
