package crd

import (
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// OpenAPIDigest is of all that the kind's description is made from.
func (k *kind) OpenAPIDigest() string { return k.parts.digest }

// OpenAPIDefinition describes the kind. Version 2 of OpenAPI, which ref may be
// of, has a form of schema of its own. A kind that cannot be described is an
// object of any content. Nothing of it is kept: a document over everything does
// not use every kind.
func (k *kind) OpenAPIDefinition(of schema.GroupVersionKind, ref common.ReferenceCallback) common.OpenAPIDefinition {
	full, err := k.parts.stored.read()
	if err != nil {
		return common.OpenAPIDefinition{}
	}
	group := strings.Split(of.Group, ".")
	slices.Reverse(group)
	name := strings.Join(append(group, of.Version, of.Kind), ".")
	var s *spec.Schema
	options := builder.Options{IncludeSelectableFields: true}
	if to := ref(""); strings.HasPrefix(to.String(), "#/definitions") {
		options.V2 = true
		if doc, err := builder.BuildOpenAPIV2(full, of.Version, options); err == nil {
			d := doc.Definitions[name]
			s = &d
		}
	} else if doc, err := builder.BuildOpenAPIV3(full, of.Version, options); err == nil {
		s = doc.Components.Schemas[name]
	}
	if s == nil {
		return common.OpenAPIDefinition{}
	}
	return common.OpenAPIDefinition{Schema: *s, Dependencies: []string{"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}}
}
