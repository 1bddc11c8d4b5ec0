package openapi

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/schemamutation"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	initializers "setpoint.dev/setpoint/api/initializers/openapi"
	"setpoint.dev/setpoint/kinds"
)

// Custom is what the Scheme of a kind that is not compiled in may also be.
// Without it, or with a definition that depends on one that is not there, such
// a kind is described as an object of any content.
type Custom interface {
	// OpenAPIDigest changes with the definition, and is there without making it.
	OpenAPIDigest() string
	// OpenAPIDefinition is the schema of a kind in one of its versions. Ref
	// makes references to upstream's definitions, which are named as
	// Dependencies. A schema that has to look different in version 2 has
	// that form under common.ExtensionV2Schema. The result is the caller's.
	OpenAPIDefinition(kind schema.GroupVersionKind, ref common.ReferenceCallback) common.OpenAPIDefinition
}

// isBuiltin says that a resource's types are compiled in.
func isBuiltin(r *kinds.Resource) bool {
	_, ok := r.Scheme.(*runtime.Scheme)
	return ok
}

// refV3 refers to a definition in a document of version 3.
func refV3(name string) spec.Ref {
	return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(name))
}

// definer knows the definitions that the documents of one list can use.
type definer struct {
	namer  *upstream.DefinitionNamer
	custom []customKind
}

type customKind struct {
	kind   schema.GroupVersionKind
	plural string
	source Custom // may be nil
}

func newDefiner(list *kinds.List) *definer {
	d := &definer{}
	schemes := []*runtime.Scheme{metaOnly()}
	for _, r := range list.All() {
		if s, ok := r.Scheme.(*runtime.Scheme); ok {
			if !slices.Contains(schemes, s) {
				schemes = append(schemes, s)
			}
			continue
		}
		source, _ := r.Scheme.(Custom)
		for _, version := range r.Versions {
			d.custom = append(d.custom, customKind{r.GroupVersionKind(version), r.Name, source})
		}
	}
	d.namer = upstream.NewDefinitionNamer(schemes...)
	return d
}

// metaOnly knows the kinds that exist in every group and version, in those
// that upstream knows but does not serve as a rule.
//
// Compat: v2 names them all.
func metaOnly() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, gv := range []schema.GroupVersion{
		{Group: "admission.k8s.io", Version: "v1"},
		{Group: "admission.k8s.io", Version: "v1beta1"},
		{Group: "imagepolicy.k8s.io", Version: "v1alpha1"},
		{Group: "internal.apiserver.k8s.io", Version: "v1alpha1"},
	} {
		metav1.AddToGroupVersion(s, gv)
	}
	return s
}

// name returns the name of a definition in documents, which is its own, and
// the kinds that it is the schema of.
func (d *definer) name(name string) (string, spec.Extensions) {
	called, marked := d.namer.GetDefinitionName(name)
	if all, ok := marked[extensionKind].([]any); ok {
		// A type may stand for the internal version, too.
		marked[extensionKind] = slices.DeleteFunc(slices.Clone(all), func(entry any) bool {
			kind, _ := entry.(map[string]any)
			return kind["version"] == runtime.APIVersionInternal
		})
	}
	return called, marked
}

// definitions are those that a document can use, with those of initializers.
func (m *maker) definitions(ref common.ReferenceCallback, in *schema.GroupVersion) map[string]common.OpenAPIDefinition {
	defs := m.define().definitions(ref, in)
	if !m.plain {
		initializers.Extend(defs, ref)
	}
	return defs
}

// definitions are all definitions that a document can use: of kinds that are
// not compiled in those of one group and version, or of all where none is
// given. They are made anew by each call, so the caller may change them, and
// they are gone when a document is done.
func (d *definer) definitions(ref common.ReferenceCallback, in *schema.GroupVersion) map[string]common.OpenAPIDefinition {
	defs := generated.GetOpenAPIDefinitions(ref)
	for _, c := range d.custom {
		if in != nil && c.kind.GroupVersion() != *in {
			continue
		}
		def := anyObject(ref)
		if c.source != nil {
			own := c.source.OpenAPIDefinition(c.kind, ref)
			// One kind must not spoil the document over everything.
			if !slices.ContainsFunc(own.Dependencies, func(name string) bool { _, ok := defs[name]; return !ok }) {
				def = own
			}
		}
		list := c.kind
		list.Kind += "List"
		defs[customName(c.kind)] = ofKind(def, c.kind)
		defs[customName(list)] = ofKind(c.list(ref, def.Schema.Extensions[extensionSelectable]), list)
	}
	return defs
}

// name is the name of the definition of a kind that a resource reads, writes
// or lists.
func (m *maker) name(r *kinds.Resource, kind schema.GroupVersionKind) model {
	if s, ok := r.Scheme.(*runtime.Scheme); ok {
		if name, err := s.ToOpenAPIDefinitionName(kind); err == nil {
			return model(name)
		}
		// A type that the scheme does not know has no definition either, which
		// the builder reports by the name below.
	}
	if kind.Group == "autoscaling" && kind.Kind == "Scale" {
		return "io.k8s.api.autoscaling.v1.Scale"
	}
	return model(customName(kind))
}

// customName is the name of the definition of a kind that is not compiled in:
// its group, most general part first, version and kind.
func customName(kind schema.GroupVersionKind) string {
	parts := strings.Split(kind.Group, ".")
	slices.Reverse(parts)
	return strings.Join(append(parts, kind.Version, kind.Kind), ".")
}

// ofKind marks a definition as the schema of a kind.
func ofKind(def common.OpenAPIDefinition, kind schema.GroupVersionKind) common.OpenAPIDefinition {
	marked := maps.Clone(def.Schema.Extensions)
	if marked == nil {
		marked = spec.Extensions{}
	}
	marked[extensionKind] = []any{map[string]any{"group": kind.Group, "version": kind.Version, "kind": kind.Kind}}
	def.Schema.Extensions = marked
	return def
}

// anyObject is the schema of an object of which only the metadata is known.
func anyObject(ref common.ReferenceCallback) common.OpenAPIDefinition {
	s := withType(ref, "ObjectMeta", metav1.PartialObjectMetadata{}.SwaggerDoc()["metadata"])
	s.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	return common.OpenAPIDefinition{Schema: *s, Dependencies: []string{meta + "ObjectMeta"}}
}

// extensionSelectable says which fields objects can be selected by.
const extensionSelectable = "x-kubernetes-selectable-fields"

// list is the schema of a list of the kind. Compat: what its items can be
// selected by, if anything, is said of the list, too.
func (c customKind) list(ref common.ReferenceCallback, selectable any) common.OpenAPIDefinition {
	name := customName(c.kind)
	s := withType(ref, "ListMeta", metav1.PartialObjectMetadataList{}.SwaggerDoc()["metadata"]).
		WithDescription(c.kind.Kind + "List is a list of " + c.kind.Kind).
		WithRequired("items")
	s.SetProperty("items", *spec.ArrayProperty(&spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(name)}}).
		WithDescription("List of " + c.plural + ". More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"))
	if selectable != nil {
		s.AddExtension(extensionSelectable, selectable)
	}
	return common.OpenAPIDefinition{Schema: *s, Dependencies: []string{meta + "ListMeta", name}}
}

// withType is an object with a type, and metadata of the named type.
func withType(ref common.ReferenceCallback, metadata, description string) *spec.Schema {
	docs := metav1.TypeMeta{}.SwaggerDoc()
	s := new(spec.Schema).Typed("object", "")
	s.SetProperty("apiVersion", *spec.StringProperty().WithDescription(docs["apiVersion"]))
	s.SetProperty("kind", *spec.StringProperty().WithDescription(docs["kind"]))
	s.SetProperty("metadata", spec.Schema{SchemaProps: spec.SchemaProps{
		Ref: ref(meta + metadata), Description: description,
	}})
	return s
}

// narrow leaves of the kinds of WatchEvent and DeleteOptions, which exist in
// every group and version, those of gv and of core/v1.
func narrow(schemas map[string]*spec.Schema, gv schema.GroupVersion) {
	core := schema.GroupVersion{Version: "v1"}
	for _, name := range []model{watchEvent, deleteOptions} {
		s := schemas[string(name)]
		if s == nil {
			continue
		}
		all, _ := s.Extensions[extensionKind].([]any)
		var kept []any
		for _, entry := range all {
			kind, _ := entry.(map[string]any)
			if at := (schema.GroupVersion{Group: text(kind["group"]), Version: text(kind["version"])}); at == gv || at == core {
				kept = append(kept, entry)
			}
		}
		if len(kept) > 0 {
			s.Extensions[extensionKind] = kept
		}
	}
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// withoutDefaults removes defaults from definitions.
//
// Compat: in version 2, clients took every default for one that a client has
// to fill in.
func withoutDefaults(defs spec.Definitions) {
	walker := schemamutation.Walker{
		RefCallback: schemamutation.RefCallbackNoop,
		SchemaCallback: func(s *spec.Schema) *spec.Schema {
			if s.Default == nil {
				return s
			}
			bare := *s
			bare.Default = nil
			return &bare
		},
	}
	for name, def := range defs {
		defs[name] = *walker.WalkSchema(&def)
	}
}
