package crd

import (
	"fmt"
	"sync"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/spec3"
)

// parts are what the kinds of one definition share: made from its bytes when
// one of them is first used.
type parts struct {
	stored  Stored
	convert *Conversion
	// digest changes with all that can be made of the definition.
	digest string

	once sync.Once
	err  error
	// full is the definition without its schemas, which are large and, once the
	// structural ones are made, seldom needed.
	full      *apiextensions.CustomResourceDefinition
	schemas   map[string]*structuralschema.Structural // by version
	converter runtime.ObjectConvertor

	owning sync.Once
	types  managedfields.TypeConverter
	badly  error
}

// get makes the parts. Its error says that the definition cannot be served.
func (p *parts) get() (*parts, error) {
	p.once.Do(func() { p.err = p.make() })
	if p.err != nil {
		return nil, fmt.Errorf("custom resource definition %s cannot be served: %w", p.stored.Name, p.err)
	}
	return p, nil
}

func (p *parts) make() error {
	var err error
	if p.full, err = p.stored.read(); err != nil {
		return err
	}
	p.schemas = map[string]*structuralschema.Structural{}
	for i := range p.full.Spec.Versions {
		v := &p.full.Spec.Versions[i]
		s, err := structural(v.Schema, p.full.Spec.PreserveUnknownFields)
		if err != nil {
			return fmt.Errorf("schema of version %s: %w", v.Name, err)
		}
		p.schemas[v.Name] = s
		v.Schema = nil
	}
	p.converter, err = p.convert.converter(p.full)
	return err
}

// structural reads a schema into the form that pruning, defaulting and rules
// work on; nil where there is none. Without pruning it need not be structural,
// and is left out then.
func structural(v *apiextensions.CustomResourceValidation, preserving bool) (*structuralschema.Structural, error) {
	if v == nil || v.OpenAPIV3Schema == nil {
		return nil, nil
	}
	props, err := internalSchema(v)
	if err != nil {
		return nil, err
	}
	s, err := structuralschema.NewStructural(props)
	if preserving {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s = s.DeepCopy() // defaults are shared with what it was made from
	return s, structuraldefaulting.PruneDefaults(s)
}

func internalSchema(v *apiextensions.CustomResourceValidation) (*internal.JSONSchemaProps, error) {
	into := &internal.CustomResourceValidation{}
	if err := apiextensions.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v, into, nil); err != nil {
		return nil, err
	}
	return into.OpenAPIV3Schema, nil
}

// version is the definition's own word on one of its versions, without the
// schema.
func (p *parts) version(name string) *apiextensions.CustomResourceDefinitionVersion {
	return versionOf(p.full, name)
}

func versionOf(full *apiextensions.CustomResourceDefinition, name string) *apiextensions.CustomResourceDefinitionVersion {
	for i := range full.Spec.Versions {
		if v := &full.Spec.Versions[i]; v.Name == name {
			return v
		}
	}
	return &apiextensions.CustomResourceDefinitionVersion{Name: name}
}

// typeConverter tells field ownership about the kind's lists and maps, in all
// its versions.
func (p *parts) typeConverter() (managedfields.TypeConverter, error) {
	p.owning.Do(func() { p.types, p.badly = p.makeTypes() })
	return p.types, p.badly
}

func (p *parts) makeTypes() (managedfields.TypeConverter, error) {
	full, err := p.stored.read()
	if err != nil {
		return nil, err
	}
	var specs []*spec3.OpenAPI
	for _, v := range full.Spec.Versions {
		one, err := builder.BuildOpenAPIV3(full, v.Name, builder.Options{})
		if err != nil {
			return nil, err
		}
		specs = append(specs, one)
	}
	all, err := builder.MergeSpecsV3(specs...)
	if err != nil {
		return nil, err
	}
	return managedfields.NewTypeConverter(all.Components.Schemas, p.full.Spec.PreserveUnknownFields)
}
