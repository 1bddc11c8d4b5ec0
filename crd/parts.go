package crd

import (
	"fmt"
	"sync"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// parts are what the kinds of one definition share: made from its bytes when
// one of them is first used.
type parts struct {
	stored  Stored
	convert *Conversion
	shared  *shapes
	sums    map[string]sum // of the schemas, by version
	// digest changes with all that can be made of the definition.
	digest string

	once sync.Once
	err  error
	// full is the definition without its schemas, which are large and, once the
	// structural ones are made, seldom needed.
	full      *apiextensions.CustomResourceDefinition
	shapes    map[string]*shape                       // by version
	schemas   map[string]*structuralschema.Structural // those of the shapes
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
	p.shapes, p.schemas = map[string]*shape{}, map[string]*structuralschema.Structural{}
	for i := range p.full.Spec.Versions {
		v := &p.full.Spec.Versions[i]
		s := p.shared.of(p.sums[v.Name], p.stored, v.Name)
		if p.schemas[v.Name], err = s.structural(); err != nil {
			return fmt.Errorf("schema of version %s: %w", v.Name, err)
		}
		p.shapes[v.Name] = s
		v.Schema = nil
	}
	p.converter, err = p.convert.converter(p.full)
	return err
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
	known := make(map[string]*typed.ParseableType, len(p.shapes))
	for version, s := range p.shapes {
		t, err := s.fields()
		if err != nil {
			return nil, err
		}
		known[version] = t
	}
	others, err := managedfields.NewTypeConverter(nil, false)
	return typeConverter{TypeConverter: others, kind: p.kind(), known: known}, err
}

func (p *parts) kind() schema.GroupKind {
	return schema.GroupKind{Group: p.full.Spec.Group, Kind: p.full.Status.AcceptedNames.Kind}
}

// typeConverter knows the versions of one kind. It embeds a converter that
// knows nothing, which says so of others.
type typeConverter struct {
	managedfields.TypeConverter
	kind  schema.GroupKind
	known map[string]*typed.ParseableType // by version
}

// ObjectToTyped implements managedfields.TypeConverter.
func (c typeConverter) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	gvk := obj.GetObjectKind().GroupVersionKind()
	t := c.known[gvk.Version]
	u, ok := obj.(runtime.Unstructured)
	if !ok || t == nil || gvk.GroupKind() != c.kind {
		return c.TypeConverter.ObjectToTyped(obj, options...)
	}
	return t.FromUnstructured(u.UnstructuredContent(), options...)
}
