package kinds

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// scaled is what a scale shows of an object, and how to change it.
type scaled struct {
	meta     *metav1.ObjectMeta
	want     int32
	have     int32
	selector labels.Selector
	set      func(replicas int32)
}

// scaleOf is the scale subresource of a resource whose objects look like this.
func scaleOf(r *Resource, look func(runtime.Object) (scaled, error)) *Subresource {
	paths := managedfields.ResourcePathMappings{}
	// Who owned the replicas may have written an older version.
	for _, v := range legacyscheme.Scheme.PrioritizedVersionsForGroup(r.Group) {
		paths[v.String()] = fieldpath.MakePathOrDie("spec", "replicas")
	}
	gr := schema.GroupResource{Group: r.Group, Resource: r.Name + "/scale"}
	return &Subresource{
		Name:  "scale",
		Kind:  schema.GroupVersionKind{Group: autoscaling.GroupName, Version: "v1", Kind: "Scale"},
		Verbs: viewVerbs,
		Scale: &Scale{
			Get:   func(obj runtime.Object) (runtime.Object, error) { return getScale(obj, look) },
			Set:   func(obj, scale runtime.Object) error { return setScale(gr, obj, scale, look) },
			Paths: paths,
		},
	}
}

func getScale(obj runtime.Object, look func(runtime.Object) (scaled, error)) (runtime.Object, error) {
	s, err := look(obj)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return &autoscaling.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name:              s.meta.Name,
			Namespace:         s.meta.Namespace,
			UID:               s.meta.UID,
			ResourceVersion:   s.meta.ResourceVersion,
			CreationTimestamp: s.meta.CreationTimestamp,
		},
		Spec:   autoscaling.ScaleSpec{Replicas: s.want},
		Status: autoscaling.ScaleStatus{Replicas: s.have, Selector: s.selector.String()},
	}, nil
}

func setScale(gr schema.GroupResource, obj, scale runtime.Object, look func(runtime.Object) (scaled, error)) error {
	s, err := look(obj)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	to, ok := scale.(*autoscaling.Scale)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("a scale is wanted here, not a %T", scale))
	}
	if errs := validation.ValidateScale(to); len(errs) > 0 {
		return apierrors.NewInvalid(autoscaling.Kind("Scale"), s.meta.Name, errs)
	}
	if to.UID != "" && to.UID != s.meta.UID {
		return apierrors.NewConflict(gr, s.meta.Name, fmt.Errorf("the scale is of UID %s, the object has UID %s", to.UID, s.meta.UID))
	}
	s.set(to.Spec.Replicas)
	s.meta.ResourceVersion = to.ResourceVersion
	return nil
}
