package crd

import (
	"context"
	"fmt"
	"math"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
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
	return &kinds.Scale{Get: k.getScale, Check: k.checkScale, Set: k.setScale, Columns: scaleColumns{}, Paths: paths}
}

// noReplicas is what a scale says of an object that does not say how many.
const noReplicas = math.MinInt32

// checkScale refuses to show a scale without replicas.
func (k *kind) checkScale(scale runtime.Object) error {
	if s, ok := scale.(*autoscaling.Scale); !ok || s.Spec.Replicas != noReplicas {
		return nil
	}
	p, err := k.parts.get()
	if err != nil {
		return err
	}
	return apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", scaleSpec(p.version(k.gvk.Version)).SpecReplicasPath))
}

// scaleColumns are those of a scale.
type scaleColumns struct{}

// ConvertToTable implements rest.TableConvertor.
func (scaleColumns) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	s, ok := obj.(*autoscaling.Scale)
	if !ok {
		return nil, fmt.Errorf("%T is not a scale", obj)
	}
	table, err := tableconvertor.New([]apiextensions.CustomResourceColumnDefinition{
		{Name: "Desired", Type: "integer", Description: "Number of desired replicas", JSONPath: ".spec.replicas"},
		{Name: "Available", Type: "integer", Description: "Number of actual replicas", JSONPath: ".status.replicas"},
		age,
	})
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"spec":   map[string]any{"replicas": int64(s.Spec.Replicas)},
		"status": map[string]any{"replicas": int64(s.Status.Replicas)},
	}}
	u.SetName(s.Name)
	u.SetNamespace(s.Namespace)
	u.SetUID(s.UID)
	u.SetResourceVersion(s.ResourceVersion)
	u.SetCreationTimestamp(s.CreationTimestamp)
	return table.ConvertToTable(ctx, u, options)
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
	want, found, err := unstructured.NestedInt64(u.Object, steps(s.SpecReplicasPath)...)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if !found {
		want = noReplicas
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
	path := scaleSpec(p.version(k.gvk.Version)).SpecReplicasPath
	if to.Spec.Replicas == noReplicas {
		return apierrors.NewBadRequest(fmt.Sprintf("the spec replicas field %q cannot be empty", path))
	}
	if err := unstructured.SetNestedField(u.Object, int64(to.Spec.Replicas), steps(path)...); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if to.ResourceVersion != "" {
		u.SetResourceVersion(to.ResourceVersion)
	}
	return nil
}
