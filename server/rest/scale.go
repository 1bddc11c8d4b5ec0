package rest

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
)

// scales says that the request is for how many of something there should be:
// read and written as a Scale, the same way for every kind that has that.
func (c *call) scales() bool { return c.sub != nil && c.sub.Scale != nil }

// scaleOf is an object's scale, to be shown.
func (c *call) scaleOf(obj runtime.Object) (runtime.Object, error) {
	scale, err := c.sub.Scale.Get(obj)
	if err == nil && c.sub.Scale.Check != nil {
		err = c.sub.Scale.Check(scale)
	}
	return scale, err
}

// throughScale is the change to an object that a change to its scale makes.
// Who owns the replicas goes along, there and back: the scale shows no other
// owners, and what is written through it is owned through it. Admission is shown
// the scale.
func (c *call) throughScale(options *metav1.UpdateOptions, next func(scale runtime.Object) (runtime.Object, error)) func(runtime.Object) (runtime.Object, error) {
	return func(obj runtime.Object) (runtime.Object, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		owners := managedfields.NewScaleHandler(m.GetManagedFields(), c.groupVersion(), c.sub.Scale.Paths)
		scale, err := c.sub.Scale.Get(obj)
		if err != nil {
			return nil, err
		}
		s, err := meta.Accessor(scale)
		if err != nil {
			return nil, err
		}
		owned, err := owners.ToSubresource()
		if err != nil {
			return nil, err
		}
		s.SetManagedFields(owned)
		old := scale.DeepCopyObject()
		if scale, err = next(scale); err != nil {
			return nil, err
		}
		c.scaled = c.attributes(scale, old, admission.Update, options, isDryRun(options.DryRun))
		if err := c.mutate(c.scaled); err != nil {
			return nil, err
		}
		if s, err = meta.Accessor(scale); err != nil {
			return nil, err
		}
		if err := c.sub.Scale.Set(obj, scale); err != nil {
			return nil, err
		}
		if owned, err = owners.ToParent(s.GetManagedFields()); err != nil {
			return nil, err
		}
		m.SetManagedFields(owned)
		return obj, nil
	}
}
