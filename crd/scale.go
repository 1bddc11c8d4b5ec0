package crd

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"setpoint.dev/setpoint/kinds"
)

// scale reads and writes the replicas where the definition says that they are.
// Paths say where that is in each version; nil in one without scale.
func (k *kind) scale(h *head) *kinds.Scale {
	paths := managedfields.ResourcePathMappings{}
	for _, v := range h.Spec.Versions {
		var path fieldpath.Path
		if v.Subresources != nil && v.Subresources.Scale != nil {
			for _, name := range steps(v.Subresources.Scale.SpecReplicasPath) {
				path = append(path, fieldpath.PathElement{FieldName: &name})
			}
		}
		paths[k.gvk.Group+"/"+v.Name] = path
	}
	return &kinds.Scale{Get: k.getScale, Set: k.setScale, Paths: paths}
}

func steps(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

func (k *kind) getScale(obj runtime.Object) (runtime.Object, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%T has no scale", obj))
	}
	p, err := k.parts.get()
	if err != nil {
		return nil, err
	}
	s := scaleSpec(p.version(k.gvk.Version))
	want, _, err := unstructured.NestedInt64(u.Object, steps(s.SpecReplicasPath)...)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	have, _, err := unstructured.NestedInt64(u.Object, steps(s.StatusReplicasPath)...)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	selector := ""
	if s.LabelSelectorPath != nil && *s.LabelSelectorPath != "" {
		if selector, _, err = unstructured.NestedString(u.Object, steps(*s.LabelSelectorPath)...); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	return &autoscaling.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: u.GetName(), Namespace: u.GetNamespace(), UID: u.GetUID(),
			ResourceVersion: u.GetResourceVersion(), CreationTimestamp: u.GetCreationTimestamp(),
		},
		Spec:   autoscaling.ScaleSpec{Replicas: int32(want)},
		Status: autoscaling.ScaleStatus{Replicas: int32(have), Selector: selector},
	}, nil
}

func (k *kind) setScale(obj, scale runtime.Object) error {
	u, ok := obj.(*unstructured.Unstructured)
	to, is := scale.(*autoscaling.Scale)
	if !ok || !is {
		return apierrors.NewBadRequest(fmt.Sprintf("a scale is wanted here, not a %T", scale))
	}
	p, err := k.parts.get()
	if err != nil {
		return err
	}
	if errs := validation.ValidateScale(to); len(errs) > 0 {
		return apierrors.NewInvalid(autoscaling.Kind("Scale"), u.GetName(), errs)
	}
	path := scaleSpec(p.version(k.gvk.Version)).SpecReplicasPath
	if err := unstructured.SetNestedField(u.Object, int64(to.Spec.Replicas), steps(path)...); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if to.ResourceVersion != "" {
		u.SetResourceVersion(to.ResourceVersion)
	}
	return nil
}
