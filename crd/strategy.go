package crd

import (
	"context"
	"slices"
	"sync"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// rules are upstream's rules for the objects of a custom kind.
type rules interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	GetAttrs(obj runtime.Object) (labels.Set, fields.Set, error)
}

// lazyStrategies are the rules of a kind in one version: its schemas and the
// expressions in them are compiled when something is first written.
type lazyStrategies struct {
	once          sync.Once
	whole, status rules
	err           error
}

func (k *kind) rules() (whole, status rules, err error) {
	k.made.once.Do(func() { k.made.err = k.makeRules() })
	return k.made.whole, k.made.status, k.made.err
}

func (k *kind) makeRules() error {
	p, err := k.parts.get()
	if err != nil {
		return err
	}
	v, shape := p.version(k.gvk.Version), p.shapes[k.gvk.Version]
	check, err := shape.validators()
	if err != nil {
		return err
	}
	expressions, err := shape.rules()
	if err != nil {
		return err
	}
	var status *internal.CustomResourceSubresourceStatus
	part := check.status
	if v.Subresources != nil && v.Subresources.Status != nil {
		status = &internal.CustomResourceSubresourceStatus{}
	} else {
		part = nil
	}
	s := customresource.NewStrategy(k, k.namespaced, k.gvk, check.whole, part, expressions.rest, status, scaleSpec(v), v.SelectableFields)
	k.made.whole, k.made.status = s, customresource.NewStatusStrategy(s)
	if expressions.cel != nil {
		k.made.whole = expressive{k.made.whole, expressions.cel, p.schemas[k.gvk.Version]}
		k.made.status = expressive{k.made.status, expressions.cel, p.schemas[k.gvk.Version]}
	}
	return nil
}

// expressive are rules with the expressions of a schema, which kinds of the same
// schema share.
type expressive struct {
	rules
	cel    *cel.Validator
	schema *structuralschema.Structural
}

// Validate implements rest.RESTCreateStrategy.
func (e expressive) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return e.check(ctx, e.rules.Validate(ctx, obj), obj, nil)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (e expressive) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return e.check(ctx, e.rules.ValidateUpdate(ctx, obj, old), obj, old)
}

// check adds what the expressions say. Compat: they are not asked about an
// object of the wrong form.
func (e expressive) check(ctx context.Context, errs field.ErrorList, obj, old runtime.Object) field.ErrorList {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return errs
	}
	if slices.ContainsFunc(errs, isOfForm) {
		return append(errs, field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
	}
	var was any
	var options []cel.Option
	if o, ok := old.(*unstructured.Unstructured); ok {
		was = o.Object
		options = append(options, cel.WithRatcheting(common.NewCorrelatedObject(u.Object, o.Object, &model.Structural{Structural: e.schema})))
	}
	more, _ := e.cel.Validate(ctx, nil, e.schema, u.Object, was, celconfig.RuntimeCELCostBudget, options...)
	return append(errs, more...)
}

// isOfForm says that an error is about the form of an object.
func isOfForm(err *field.Error) bool {
	switch err.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
		return true
	default:
		return false
	}
}

func scaleSpec(v *apiextensions.CustomResourceDefinitionVersion) *internal.CustomResourceSubresourceScale {
	if v.Subresources == nil || v.Subresources.Scale == nil {
		return nil
	}
	s := v.Subresources.Scale
	return &internal.CustomResourceSubresourceScale{SpecReplicasPath: s.SpecReplicasPath, StatusReplicasPath: s.StatusReplicasPath, LabelSelectorPath: s.LabelSelectorPath}
}

// strategy applies a kind's rules once they are made. What cannot be made is an
// error of validation.
type strategy struct {
	*kind
	names.NameGenerator
	through string // the subresource that it is for; "" for none
}

func newStrategy(k *kind, subresource string) *strategy {
	return &strategy{k, names.SimpleNameGenerator, subresource}
}

func (s *strategy) get() (rules, error) {
	whole, status, err := s.rules()
	if s.through == "status" {
		return status, err
	}
	return whole, err
}

func broken(err error) field.ErrorList { return field.ErrorList{field.InternalError(nil, err)} }

// NamespaceScoped implements rest.RESTCreateStrategy.
func (s *strategy) NamespaceScoped() bool { return s.namespaced }

// PrepareForCreate implements rest.RESTCreateStrategy.
func (s *strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if r, err := s.get(); err == nil {
		r.PrepareForCreate(ctx, obj)
	}
}

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (s *strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if r, err := s.get(); err == nil {
		r.PrepareForUpdate(ctx, obj, old)
	}
}

// Validate implements rest.RESTCreateStrategy.
func (s *strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	r, err := s.get()
	if err != nil {
		return broken(err)
	}
	return r.Validate(ctx, obj)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s *strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	r, err := s.get()
	if err != nil {
		return broken(err)
	}
	return r.ValidateUpdate(ctx, obj, old)
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (s *strategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	r, err := s.get()
	if err != nil {
		return nil
	}
	return r.WarningsOnCreate(ctx, obj)
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (s *strategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	r, err := s.get()
	if err != nil {
		return nil
	}
	return r.WarningsOnUpdate(ctx, obj, old)
}

// Canonicalize implements both strategies.
func (s *strategy) Canonicalize(runtime.Object) {}

// AllowCreateOnUpdate implements rest.RESTUpdateStrategy.
func (s *strategy) AllowCreateOnUpdate() bool { return false }

// AllowUnconditionalUpdate implements rest.RESTUpdateStrategy.
func (s *strategy) AllowUnconditionalUpdate() bool { return false }

// fields are the selectable fields of an object.
func (s *strategy) fields(obj runtime.Object) (fields.Set, error) {
	r, err := s.get()
	if err != nil {
		return nil, err
	}
	_, set, err := r.GetAttrs(obj)
	return set, err
}

// GetResetFields implements rest.ResetFieldsStrategy. Compat: through status,
// what it resets is said of every version that has one.
func (s *strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	resets := map[fieldpath.APIVersion]*fieldpath.Set{}
	p, err := s.parts.get()
	if err != nil {
		return resets
	}
	for _, v := range p.full.Spec.Versions {
		gv := fieldpath.APIVersion(s.gvk.Group + "/" + v.Name)
		switch {
		case v.Subresources == nil || v.Subresources.Status == nil:
		case s.through == "status":
			resets[gv] = fieldpath.NewSet(fieldpath.MakePathOrDie("metadata"), fieldpath.MakePathOrDie("spec"))
		case v.Name == s.gvk.Version:
			resets[gv] = fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
		}
	}
	return resets
}

// columns make a custom kind's table.
type columns struct {
	kind *kind
	once sync.Once
	made rest.TableConvertor
	err  error
}

// ConvertToTable implements rest.TableConvertor.
func (c *columns) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	c.once.Do(func() {
		var p *parts
		if p, c.err = c.kind.parts.get(); c.err == nil {
			wanted := p.version(c.kind.gvk.Version).AdditionalPrinterColumns
			if len(wanted) == 0 {
				wanted = []apiextensions.CustomResourceColumnDefinition{age}
			}
			// Compat: columns that cannot be made leave the others in place.
			c.made, _ = tableconvertor.New(wanted)
		}
	})
	if c.err != nil {
		return nil, c.err
	}
	return c.made.ConvertToTable(ctx, obj, options)
}

var age = apiextensions.CustomResourceColumnDefinition{
	Name: "Age", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], JSONPath: ".metadata.creationTimestamp",
}
