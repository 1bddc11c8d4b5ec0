package crd

import (
	"crypto/sha256"
	"fmt"
	"runtime"
	"sync"
	"weak"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/kube-openapi/pkg/schemaconv"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// sum names a schema by its content.
type sum [sha256.Size]byte

// shapes are the schemas that are in use, each once however many kinds have it.
// One that no kind uses any more is dropped.
type shapes struct {
	mu sync.Mutex // guards by
	by map[sum]weak.Pointer[shape]
}

// of returns the shape of a name. For one that is not there yet, the definition
// is read whose version it is.
func (s *shapes) of(name sum, from Stored, version string) *shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.by[name].Value(); have != nil {
		return have
	}
	made := &shape{from: from, version: version}
	made.structural = sync.OnceValues(made.makeStructural)
	made.rules = sync.OnceValues(made.makeRules)
	made.validators = sync.OnceValues(made.makeValidators)
	made.fields = sync.OnceValues(made.makeFields)
	if s.by == nil {
		s.by = map[sum]weak.Pointer[shape]{}
	}
	s.by[name] = weak.Make(made)
	runtime.AddCleanup(made, s.drop, name)
	return made
}

// drop forgets a shape, unless it has come back meanwhile.
func (s *shapes) drop(name sum) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[name].Value() == nil {
		delete(s.by, name)
	}
}

// shape is a schema, and what is made of it when it is first needed. It knows
// nothing of the kinds that it is the schema of.
type shape struct {
	from    Stored // a definition that has it
	version string

	structural func() (*structuralschema.Structural, error)
	rules      func() (*shapeRules, error)
	validators func() (*shapeValidators, error)
	fields     func() (*typed.ParseableType, error)
}

// shapeRules are the expressions of a schema.
type shapeRules struct {
	// rest is the schema without expressions.
	rest *structuralschema.Structural
	cel  *cel.Validator // nil when there are none
}

// shapeValidators check objects against a schema, and their status against its
// part of it. Without such a part status is nil.
type shapeValidators struct {
	whole, status validation.SchemaValidator
}

// schema reads the schema, nil where there is none, and whether unknown fields
// are kept.
func (s *shape) schema() (*apiextensions.CustomResourceValidation, bool, error) {
	full, err := s.from.read()
	if err != nil {
		return nil, false, err
	}
	return versionOf(full, s.version).Schema, full.Spec.PreserveUnknownFields, nil
}

// makeStructural reads a schema into the form that pruning, defaulting and
// rules work on; nil where there is none. Without pruning it need not be
// structural, and is left out then.
func (s *shape) makeStructural() (*structuralschema.Structural, error) {
	v, preserving, err := s.schema()
	if err != nil || v == nil || v.OpenAPIV3Schema == nil {
		return nil, err
	}
	props, err := internalSchema(v)
	if err != nil {
		return nil, err
	}
	made, err := structuralschema.NewStructural(props)
	if preserving {
		return made, nil
	}
	if err != nil {
		return nil, err
	}
	made = made.DeepCopy() // defaults are shared with what it was made from
	return made, structuraldefaulting.PruneDefaults(made)
}

func internalSchema(v *apiextensions.CustomResourceValidation) (*internal.JSONSchemaProps, error) {
	into := &internal.CustomResourceValidation{}
	if err := apiextensions.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v, into, nil); err != nil {
		return nil, err
	}
	return into.OpenAPIV3Schema, nil
}

func (s *shape) makeRules() (*shapeRules, error) {
	whole, err := s.structural()
	if err != nil {
		return nil, err
	}
	made := cel.NewValidator(whole, true, celconfig.PerCallLimit)
	if made == nil {
		return &shapeRules{rest: whole}, nil
	}
	rest := whole.DeepCopy()
	without := structuralschema.Visitor{
		Structural: func(s *structuralschema.Structural) bool {
			had := len(s.XValidations) > 0
			s.XValidations = nil
			return had
		},
		NestedValueValidation: func(v *structuralschema.NestedValueValidation) bool {
			had := len(v.XValidations) > 0
			v.XValidations = nil
			return had
		},
	}
	without.Visit(rest)
	return &shapeRules{rest: rest, cel: made}, nil
}

func (s *shape) makeValidators() (*shapeValidators, error) {
	v, _, err := s.schema()
	if err != nil {
		return nil, err
	}
	var props *internal.JSONSchemaProps
	if v != nil {
		if props, err = internalSchema(v); err != nil {
			return nil, err
		}
	}
	made := &shapeValidators{}
	if made.whole, err = newValidator(props); err != nil || props == nil {
		return made, err
	}
	if status, ok := props.Properties["status"]; ok {
		made.status, err = newValidator(&status)
	}
	return made, err
}

// Names that a schema is converted under for field ownership.
const (
	shapeGroup = "shape"
	shapeKind  = "Shape"
)

// makeFields tells field ownership about the schema's lists and maps.
func (s *shape) makeFields() (*typed.ParseableType, error) {
	full, err := s.from.read()
	if err != nil {
		return nil, err
	}
	full.Spec.Group = shapeGroup
	full.Spec.Names = apiextensions.CustomResourceDefinitionNames{Plural: "shapes", Singular: "shape", Kind: shapeKind, ListKind: shapeKind + "List"}
	full.Status.AcceptedNames = full.Spec.Names
	spec, err := builder.BuildOpenAPIV3(full, s.version, builder.Options{})
	if err != nil {
		return nil, err
	}
	converted, err := schemaconv.ToSchemaFromOpenAPI(spec.Components.Schemas, full.Spec.PreserveUnknownFields)
	if err != nil {
		return nil, fmt.Errorf("failed to convert models to schema: %w", err)
	}
	parser := typed.Parser{Schema: smdschema.Schema{Types: converted.Types}}
	made := parser.Type(shapeGroup + "." + s.version + "." + shapeKind)
	return &made, nil
}
