package rest

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/apiserver/pkg/registry/rest"

	"setpoint.dev/setpoint/store"
)

// scale reads and writes how many of something there should be, the same way
// for every kind that has that.
func (c *call) scale() error {
	switch c.info.Verb {
	case "get":
		sn, err := c.snapshot()
		if err != nil {
			return err
		}
		o, err := sn.Get(c.ctx, c.resource.Table, c.key())
		if err != nil {
			return err
		}
		if o == nil {
			return c.notFound()
		}
		return c.respondScale(http.StatusOK, o)
	case "update":
		return c.updateScale()
	case "patch":
		return c.patchScale()
	default:
		return apierrors.NewMethodNotSupported(c.resource.GroupResource(), c.info.Verb)
	}
}

// respondScale answers with an object's scale.
func (c *call) respondScale(code int, o *store.Object) error {
	obj, err := c.stored(o)
	if err != nil {
		return err
	}
	scale, err := c.sub.Scale.Get(obj)
	if err != nil {
		return err
	}
	if c.out.as != "" {
		shown := *c.resource
		shown.Columns = upstream.NewDefaultTableConvertor(c.resource.GroupResource())
		one := *c
		one.resource = &shown
		body, err := one.encodeObject(scale)
		if err != nil {
			return err
		}
		c.writeBody(code, body)
		return nil
	}
	encode := c.codec().Encode
	if c.out.pretty {
		encode = c.codec().EncodePretty
	}
	body, err := encode(c.out.info, scale, c.sub.KindIn(c.groupVersion()).GroupVersion())
	if err != nil {
		return err
	}
	c.writeBody(code, body)
	return nil
}

func (c *call) updateScale() error {
	options, err := c.updateOptions()
	if err != nil {
		return err
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	scale, err := c.decode(body, options.FieldValidation, c.sub.KindIn(c.groupVersion()))
	if err != nil {
		return err
	}
	if err := c.sameName(scale); err != nil {
		return err
	}
	m, err := meta.Accessor(scale)
	if err != nil {
		return err
	}
	return c.changeScale(options, m.GetResourceVersion() == "", func(runtime.Object) (runtime.Object, error) { return scale, nil })
}

func (c *call) patchScale() error {
	kind := types.PatchType(c.r.Header.Get("Content-Type"))
	switch kind {
	case types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType:
	case types.ApplyYAMLPatchType:
	default:
		return unknownPatch()
	}
	options := &metav1.PatchOptions{}
	if err := c.options(options); err != nil {
		return err
	}
	if err := invalidOptions("PatchOptions", metav1validation.ValidatePatchOptions(options, kind)); err != nil {
		return err
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	update := &metav1.UpdateOptions{DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation}
	return c.changeScale(update, true, func(scale runtime.Object) (runtime.Object, error) {
		if kind == types.ApplyYAMLPatchType {
			kind = types.MergePatchType // a scale has no lists, and little to own
		}
		return c.patched(c.sub.KindIn(c.groupVersion()), kind, scale, body, options.FieldValidation)
	})
}

// changeScale writes the scale that next makes from the present one.
func (c *call) changeScale(options *metav1.UpdateOptions, retry bool, next func(runtime.Object) (runtime.Object, error)) error {
	owned, err := c.fieldManager(c.resource.Update)
	if err != nil {
		return err
	}
	manager := c.manager(options.FieldManager)
	code, stored, err := c.change(change{
		strategy: c.resource.Update, options: options, manager: manager, retry: retry,
		make: func(old runtime.Object) (runtime.Object, error) {
			present, err := c.sub.Scale.Get(old)
			if err != nil {
				return nil, err
			}
			wanted, err := next(present)
			if err != nil {
				return nil, err
			}
			obj := old.DeepCopyObject()
			if err := c.sub.Scale.Set(obj, wanted); err != nil {
				return nil, err
			}
			return owned.UpdateNoErrors(old, obj, manager), nil
		},
	})
	if err != nil {
		return err
	}
	return c.respondScale(code, stored)
}
