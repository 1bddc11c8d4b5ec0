package patch

import (
	"maps"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"setpoint.dev/setpoint/api/initializers/openapi"
	initializers "setpoint.dev/setpoint/api/initializers/v1alpha1"
)

// withDefined knows the kinds that typed clients apply, and those that they do
// not: these are missing in upstream's schemas for apply, and yet a server
// keeps their ownership.
type withDefined struct {
	managedfields.TypeConverter
}

// ObjectToTyped reads an object by the schema of its kind.
func (w withDefined) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	types := w.TypeConverter
	if known := defined[obj.GetObjectKind().GroupVersionKind()]; known != nil {
		var err error
		if types, err = known(); err != nil {
			return nil, err
		}
	}
	return types.ObjectToTyped(obj, opts...)
}

// defined are the kinds that are known by their OpenAPI definitions.
var defined = map[schema.GroupVersionKind]func() (managedfields.TypeConverter, error){}

func init() {
	for kind, name := range map[schema.GroupVersionKind]string{
		autoscalingv1.SchemeGroupVersion.WithKind("Scale"):                           autoscalingv1.Scale{}.OpenAPIModelName(),
		apiregistrationv1.SchemeGroupVersion.WithKind("APIService"):                  apiregistrationv1.APIService{}.OpenAPIModelName(),
		apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"):      apiextensionsv1.CustomResourceDefinition{}.OpenAPIModelName(),
		apiextensionsv1beta1.SchemeGroupVersion.WithKind("CustomResourceDefinition"): apiextensionsv1beta1.CustomResourceDefinition{}.OpenAPIModelName(),
		initializers.GroupVersion.WithKind(initializers.Kind):                        initializers.InitializerConfiguration{}.OpenAPIModelName(),
	} {
		defined[kind] = sync.OnceValues(func() (managedfields.TypeConverter, error) { return typesOf(kind, name) })
	}
}

var definitions = sync.OnceValue(func() map[string]common.OpenAPIDefinition {
	ref := func(name string) spec.Ref { return spec.MustCreateRef("#/components/schemas/" + name) }
	defs := generated.GetOpenAPIDefinitions(ref)
	openapi.Extend(defs, ref)
	return defs
})

// typesOf knows one kind by its OpenAPI definition and those it refers to.
func typesOf(kind schema.GroupVersionKind, name string) (managedfields.TypeConverter, error) {
	all := definitions()
	schemas := map[string]*spec.Schema{}
	for wanted := []string{name}; len(wanted) > 0; wanted = wanted[1:] {
		if name := wanted[0]; schemas[name] == nil {
			definition := all[name]
			schemas[name] = &definition.Schema
			wanted = append(wanted, definition.Dependencies...)
		}
	}
	named := *schemas[name]
	named.Extensions = maps.Clone(named.Extensions) // the definition is shared
	named.AddExtension("x-kubernetes-group-version-kind", []any{
		map[string]any{"group": kind.Group, "version": kind.Version, "kind": kind.Kind},
	})
	schemas[name] = &named
	return managedfields.NewTypeConverter(schemas, false)
}
