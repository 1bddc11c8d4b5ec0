// Package openapi describes initializers in OpenAPI: the kind
// InitializerConfiguration, and the field metadata.initializers.
//
// What comes in are the definitions that upstream generates; what goes out are
// the same with ours among them. The definitions have the names that they had in
// Kubernetes 1.13.
package openapi

import (
	"maps"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"setpoint.dev/setpoint/api/initializers/v1alpha1"
)

const (
	meta  = "io.k8s.apimachinery.pkg.apis.meta.v1."
	group = "io.k8s.api.admissionregistration.v1alpha1."
)

// Extend adds the definitions of initializers, and the field to that of
// metadata.
func Extend(defs map[string]common.OpenAPIDefinition, ref common.ReferenceCallback) {
	maps.Copy(defs, definitions(ref))
	about := defs[meta+"ObjectMeta"]
	about.Schema.Properties = maps.Clone(about.Schema.Properties)
	about.Schema.Properties["initializers"] = refTo(ref, meta+"Initializers",
		"What must still happen to this object before anyone sees it. While the field is there, the object is left out of lists and watches, unless they ask for it with includeUninitialized, and only those may change it who may initialize it. Who creates an object may set it; it cannot be set once it has gone.")
	about.Dependencies = append([]string{meta + "Initializers"}, about.Dependencies...)
	defs[meta+"ObjectMeta"] = about
}

func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	types := metav1.TypeMeta{}.SwaggerDoc()
	var (
		condition     = metav1.Condition{}.OpenAPIModelName()
		labelSelector = metav1.LabelSelector{}.OpenAPIModelName()
		matching      = admissionv1.MatchCondition{}.OpenAPIModelName()
		objectMeta    = metav1.ObjectMeta{}.OpenAPIModelName()
		listMeta      = metav1.ListMeta{}.OpenAPIModelName()
		rule          = admissionv1.Rule{}.OpenAPIModelName()
		status        = metav1.Status{}.OpenAPIModelName()
		moment        = metav1.Time{}.OpenAPIModelName()
	)
	return map[string]common.OpenAPIDefinition{
		meta + "Initializers": object("Initializers is what an object waits for.", nil, props{
			"pending": mergeList(ref, meta+"Initializer", "name", "The initializers that are to act, the next one first. When the last has taken itself off, the object is seen."),
			"result":  refTo(ref, status, "Set to a Status of failure by an initializer that has failed. The object is removed then, and its creator gets the Status."),
		}, meta+"Initializer", status),
		meta + "Initializer": object("Initializer is one that has not acted yet.", []string{"name"}, props{
			"name": text("The name of the initializer, as its configuration has it."),
		}),
		v1alpha1.InitializerConfiguration{}.OpenAPIModelName(): object("InitializerConfiguration describes the configuration of initializers.", nil, props{
			"apiVersion":   text(types["apiVersion"]),
			"kind":         text(types["kind"]),
			"metadata":     refTo(ref, objectMeta, "Standard object metadata; More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata."),
			"initializers": mergeList(ref, group+"Initializer", "name", "The initializers, in the order in which they act. Configurations follow each other by name."),
			"status":       refTo(ref, group+"InitializerConfigurationStatus", "What is known of each initializer."),
		}, objectMeta, group+"Initializer", group+"InitializerConfigurationStatus"),
		v1alpha1.InitializerConfigurationList{}.OpenAPIModelName(): object("InitializerConfigurationList is a list of InitializerConfiguration.", []string{"items"}, props{
			"apiVersion": text(types["apiVersion"]),
			"kind":       text(types["kind"]),
			"metadata":   refTo(ref, listMeta, "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"),
			"items":      list(ref, group+"InitializerConfiguration", "List of InitializerConfiguration."),
		}, listMeta, group+"InitializerConfiguration"),
		group + "Initializer": object("Initializer acts on the objects that it matches before anyone else sees them.", []string{"name"}, props{
			"name":              text("The name of the initializer, fully qualified: at least three parts with dots between."),
			"rules":             list(ref, rule, "What the initializer acts on; one rule that matches is enough. With none it acts on nothing."),
			"failurePolicy":     oneOf("What happens to an object when the initializer does not act in time: Ignore goes on without it, Fail fails the object, Wait waits for as long as it takes. The server has a default.", v1alpha1.Fail, v1alpha1.Ignore, v1alpha1.Wait),
			"timeoutSeconds":    number("int32", "How long the initializer may take, from when it is the next one of an object; between 1 and 600. The server has a default."),
			"namespaceSelector": refTo(ref, labelSelector, "Which namespaces, by their labels, the objects are in; all when there is none."),
			"objectSelector":    refTo(ref, labelSelector, "Which objects, by their labels; all when there is none."),
			"matchConditions":   mergeList(ref, matching, "name", "CEL expressions that all have to be true of a request."),
			"matchPolicy":       oneOf("Whether rules are for the group and version of the request (Exact, the default) or for any that leads to the same objects (Equivalent).", admissionv1.Equivalent, admissionv1.Exact),
			"controller":        refTo(ref, group+"Controller", "Who the initializer is."),
		}, rule, labelSelector, matching, group+"Controller"),
		group + "Controller": object("Controller says who an initializer is.", nil, props{
			"serviceAccount": refTo(ref, group+"Reference", "The account that the initializer uses. It does not act on what that account runs or creates."),
			"lease":          refTo(ref, group+"Reference", "A Lease that the initializer renews while it is alive."),
		}, group+"Reference"),
		group + "Reference": object("Reference names an object in a namespace.", []string{"namespace", "name"}, props{
			"namespace": text("The object's namespace."),
			"name":      text("The object's name."),
		}),
		group + "InitializerConfigurationStatus": object("InitializerConfigurationStatus is what is known of a configuration's initializers.", nil, props{
			"initializers": mergeList(ref, group+"InitializerStatus", "name", "What is known of each, by name."),
		}, group+"InitializerStatus"),
		group + "InitializerStatus": object("InitializerStatus is what is known of one initializer.", []string{"name", "pending"}, props{
			"name":                 text("The initializer's name."),
			"observedGeneration":   number("int64", "The generation of the configuration that this is about."),
			"pending":              number("int64", "How many objects wait for it."),
			"oldestPendingSeconds": number("int64", "How long the first of them has."),
			"lastCompletionTime":   refTo(ref, moment, "When it last was done with an object."),
			"conditions":           mergeList(ref, condition, "type", "Ready, Stalled, Deadlocked and DuplicateName."),
		}, moment, condition),
	}
}

type props = map[string]spec.Schema

func object(description string, required []string, p props, needs ...string) common.OpenAPIDefinition {
	return common.OpenAPIDefinition{
		Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Description: description, Type: []string{"object"}, Properties: p, Required: required,
		}},
		Dependencies: needs,
	}
}

func text(description string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Type: []string{"string"}}}
}

func number(format, description string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Type: []string{"integer"}, Format: format}}
}

func oneOf[T ~string](description string, values ...T) spec.Schema {
	s := text(description)
	for _, v := range values {
		s.Enum = append(s.Enum, string(v))
	}
	return s
}

func refTo(ref common.ReferenceCallback, name, description string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Ref: ref(name)}}
}

func list(ref common.ReferenceCallback, name, description string) spec.Schema {
	item := spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(name)}}
	return spec.Schema{
		SchemaProps:      spec.SchemaProps{Description: description, Type: []string{"array"}, Items: &spec.SchemaOrArray{Schema: &item}},
		VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{"x-kubernetes-list-type": "atomic"}},
	}
}

// mergeList is a list whose items are known by a key.
func mergeList(ref common.ReferenceCallback, name, key, description string) spec.Schema {
	s := list(ref, name, description)
	s.Extensions = spec.Extensions{
		"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{key},
		"x-kubernetes-patch-merge-key": key, "x-kubernetes-patch-strategy": "merge",
	}
	return s
}
