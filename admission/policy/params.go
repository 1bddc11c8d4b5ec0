package policy

import (
	"context"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/kinds"
)

// paramSource is the resource that a policy's parameters are of.
type paramSource struct {
	resource   schema.GroupVersionResource
	namespaced bool
}

// paramsOf finds the resource of a kind of parameters; nil where a policy has
// none.
func (c *Config) paramsOf(kind *admissionregistrationv1.ParamKind) (*paramSource, error) {
	if kind == nil {
		return nil, nil
	}
	gv, err := schema.ParseGroupVersion(kind.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("failed to parse paramKind APIVersion: %w", err)
	}
	if r := find(c.Kinds(), gv.WithKind(kind.Kind)); r != nil {
		return &paramSource{gv.WithResource(r.Name), r.Namespaced}, nil
	}
	return nil, fmt.Errorf("failed to find resource referenced by paramKind: '%v'", gv.WithKind(kind.Kind))
}

// find is the resource whose objects are of a kind; nil when there is none.
func find(all *kinds.List, kind schema.GroupVersionKind) *kinds.Resource {
	for _, r := range all.All() {
		if r.Group == kind.Group && r.Kind == kind.Kind && r.Create != nil && r.Serves(kind.Version) {
			return r
		}
	}
	return nil
}

// params are those that a binding names, for a request in a namespace. A policy
// that takes none, or gets none from the binding, has nil as its only one. None
// at all says that the policy does not speak.
func (c *Config) params(ctx context.Context, from *paramSource, ref *admissionregistrationv1.ParamRef, namespace string) ([]runtime.Object, error) {
	if from == nil || ref == nil {
		return []runtime.Object{nil}, nil
	}
	within := ""
	switch {
	case !from.namespaced && ref.Namespace != "":
		return nil, errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	case from.namespaced && ref.Namespace != "":
		within = ref.Namespace
	case from.namespaced && namespace == "":
		return nil, errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
	case from.namespaced:
		within = namespace
	}
	found, err := c.named(ctx, from, ref, within)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 && ref.ParameterNotFoundAction != nil && *ref.ParameterNotFoundAction == admissionregistrationv1.DenyAction {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction")
	}
	return found, nil
}

func (c *Config) named(ctx context.Context, from *paramSource, ref *admissionregistrationv1.ParamRef, within string) ([]runtime.Object, error) {
	switch {
	case ref.Name != "" && ref.Selector != nil:
		return nil, errors.New("paramRef.name and paramRef.selector are mutually exclusive")
	case ref.Name != "":
		obj, err := c.Objects.Get(ctx, from.resource, within, ref.Name)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return []runtime.Object{obj}, err
	case ref.Selector == nil:
		return nil, errors.New("one of name or selector must be provided")
	}
	selector, err := metav1.LabelSelectorAsSelector(ref.Selector)
	if err != nil {
		return nil, err
	}
	var found []runtime.Object
	for obj, err := range c.Objects.List(ctx, from.resource, within) {
		if err != nil {
			return nil, err
		}
		described, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		if selector.Matches(labels.Set(described.GetLabels())) {
			found = append(found, obj)
		}
	}
	return found, nil
}
