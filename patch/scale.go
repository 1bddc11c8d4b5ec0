package patch

import (
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// withScale knows the kinds that clients apply, and Scale: no client applies
// one, so that upstream's schemas for apply leave it out, and yet a server
// keeps its ownership.
type withScale struct {
	managedfields.TypeConverter
}

// ObjectToTyped reads an object by the schema of its kind.
func (w withScale) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if obj.GetObjectKind().GroupVersionKind() != scaleKind {
		return w.TypeConverter.ObjectToTyped(obj, opts...)
	}
	types, err := scaleTypes()
	if err != nil {
		return nil, err
	}
	return types.ObjectToTyped(obj, opts...)
}

var scaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// scaleTypes knows Scale by its OpenAPI definition.
var scaleTypes = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	const refs = "#/components/schemas/"
	all := generated.GetOpenAPIDefinitions(func(name string) spec.Ref { return spec.MustCreateRef(refs + name) })
	schemas := map[string]*spec.Schema{}
	for todo := []string{(autoscalingv1.Scale{}).OpenAPIModelName()}; len(todo) > 0; todo = todo[1:] {
		if name := todo[0]; schemas[name] == nil {
			definition := all[name]
			schemas[name] = &definition.Schema
			todo = append(todo, definition.Dependencies...)
		}
	}
	schemas[(autoscalingv1.Scale{}).OpenAPIModelName()].AddExtension("x-kubernetes-group-version-kind", []any{
		map[string]any{"group": scaleKind.Group, "version": scaleKind.Version, "kind": scaleKind.Kind},
	})
	return managedfields.NewTypeConverter(schemas, false)
})
