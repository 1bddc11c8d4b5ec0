package openapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"setpoint.dev/setpoint/kinds"
)

const (
	extensionKind   = "x-kubernetes-group-version-kind"
	extensionAction = "x-kubernetes-action"
)

// revision is part of every hash. It goes up by one with each change of what
// this package makes of a list of kinds: clients keep documents by their
// hashes for ever.
const revision = 2

// maker makes the documents of one list.
type maker struct {
	version  string
	plain    bool // says nothing of initializers
	sections []section
	// define is made by the first document that needs it.
	define func() *definer
}

// section is what one document of version 3 covers: all below a path.
type section struct {
	name      string
	gv        schema.GroupVersion // empty for those that hold no kinds
	resources []*kinds.Resource
	fixed     *container // what does not come from kinds
}

// newMaker divides a list into sections, in the order of their names.
func newMaker(list *kinds.List, version string, plain bool) *maker {
	m := &maker{version: version, plain: plain, define: sync.OnceValue(func() *definer { return newDefiner(list) })}
	objects := builtinEncodings.objects
	add := func(gv schema.GroupVersion, path, operation, description string, writes model, consumes, produces []string) {
		m.sections = append(m.sections, section{
			name: path[1:], gv: gv, fixed: fixed(path, operation, description, writes, consumes, produces),
		})
	}
	var none schema.GroupVersion
	add(none, "/version", "getCodeVersion", "get the version information for this server",
		"io.k8s.apimachinery.pkg.version.Info", objects[:1], objects[:1])
	add(none, "/.well-known/openid-configuration", "getServiceAccountIssuerOpenIDConfiguration",
		"get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
		"string", nil, objects[:1])
	add(none, "/openid/v1/jwks", "getServiceAccountIssuerOpenIDKeyset",
		"get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
		"string", nil, []string{"application/jwk-set+json"})
	add(none, "/api", "getAPIVersions", "get available API versions", meta+"APIVersions", objects, objects)
	add(none, "/apis", "getAPIVersions", "get available API versions", meta+"APIGroupList", objects, objects)

	groups := map[string]bool{"": true} // the core group is /api
	found := map[schema.GroupVersion]int{}
	for _, r := range list.All() {
		if !groups[r.Group] && r.Custom == nil {
			groups[r.Group] = true
			add(none, "/apis/"+r.Group, "getAPIGroup", "get information of a group", meta+"APIGroup", objects, objects)
		}
		for _, version := range r.Versions {
			if slices.Contains(r.Undescribed, version) {
				continue
			}
			gv := schema.GroupVersion{Group: r.Group, Version: version}
			i, ok := found[gv]
			if !ok {
				i = len(m.sections)
				found[gv] = i
				if r.Custom != nil {
					// Compat: the documents of such groups are of their kinds alone.
					m.sections = append(m.sections, section{name: root(gv)[1:], gv: gv, fixed: &container{root: root(gv)}})
				} else {
					add(gv, root(gv), "getAPIResources", "get available resources", meta+"APIResourceList", objects, objects)
				}
			}
			m.sections[i].resources = append(m.sections[i].resources, r)
		}
	}
	slices.SortFunc(m.sections, func(a, b section) int { return cmp.Compare(a.name, b.name) })
	return m
}

// container holds all routes of a section.
func (m *maker) container(s section) common.RouteContainer {
	c := *s.fixed
	c.routes = slices.Clone(c.routes)
	for _, r := range s.resources {
		c.routes = append(c.routes, m.routes(r, s.gv.Version)...)
	}
	return &c
}

// modules are the versions of the modules that definitions come from.
var modules = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var b strings.Builder
	for _, dep := range info.Deps {
		if !strings.HasPrefix(dep.Path, "k8s.io/") {
			continue
		}
		if dep.Replace != nil {
			dep = dep.Replace
		}
		fmt.Fprintln(&b, dep.Path, dep.Version)
	}
	return b.String()
})

// part names a resource in one version.
type part struct {
	resource *kinds.Resource
	version  string
}

// fingerprint is the hash of a section's document. Documents with the same
// hash are the same; what is compiled in counts with the versions of its
// modules. Parts are looked up in known, and those that are not there are
// added: a resource does not change.
func (m *maker) fingerprint(s section, known map[part]string) string {
	var b strings.Builder
	fmt.Fprintln(&b, revision, m.version, s.name)
	b.WriteString(modules())
	for _, r := range s.resources {
		p := part{r, s.gv.Version}
		if known[p] == "" {
			known[p] = p.fingerprint()
		}
		b.WriteString(known[p])
	}
	return digest("v3", []byte(b.String()))
}

func (p part) fingerprint() string {
	r := p.resource
	var b strings.Builder
	fmt.Fprintln(&b, r.Name, r.Kind, r.Namespaced, r.Verbs, r.ReturnsDeleted, r.Linger == nil)
	for _, name := range sortedKeys(r.Subresources) {
		sub := r.Subresources[name]
		fmt.Fprintln(&b, sub.Name, sub.Kind, sub.Verbs)
	}
	if c, ok := r.Scheme.(Custom); ok {
		fmt.Fprintln(&b, c.OpenAPIDigest())
	}
	return digest("part", []byte(b.String()))
}

// digest is a hash in the form of those that upstream tells.
func digest(kind string, b []byte) string {
	return fmt.Sprintf("%X", sha256.Sum256(append([]byte(kind+"\n"), b...)))
}

// v3 makes the document of a section.
func (m *maker) v3(s section) ([]byte, error) {
	d := m.define()
	doc, err := builder3.BuildOpenAPISpecFromRoutes([]common.RouteContainer{m.container(s)}, &common.OpenAPIV3Config{
		Info:                           m.info(),
		Definitions:                    m.definitions(refV3, &s.gv),
		GetDefinitionName:              d.name,
		GetOperationIDAndTagsFromRoute: operationID,
		CommonResponses: map[int]*spec3.Response{
			http.StatusUnauthorized: {ResponseProps: spec3.ResponseProps{Description: http.StatusText(http.StatusUnauthorized)}},
		},
		SecuritySchemes: spec3.SecuritySchemes{"BearerToken": {SecuritySchemeProps: spec3.SecuritySchemeProps{
			Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication",
		}}},
	})
	if err != nil {
		return nil, err
	}
	if !s.gv.Empty() {
		narrow(doc.Components.Schemas, s.gv)
	}
	return json.Marshal(doc)
}

// v2 makes the document over everything.
func (m *maker) v2() ([]byte, error) {
	d := m.define()
	containers := make([]common.RouteContainer, 0, len(m.sections))
	for _, s := range m.sections {
		containers = append(containers, m.container(s))
	}
	doc, err := builder.BuildOpenAPISpecFromRoutes(containers, &common.Config{
		Info:                           m.info(),
		ProtocolList:                   []string{"https"},
		GetDefinitions:                 func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition { return m.definitions(ref, nil) },
		GetDefinitionName:              d.name,
		GetOperationIDAndTagsFromRoute: distinct(operationID),
		CommonResponses: map[int]spec.Response{
			http.StatusUnauthorized: {ResponseProps: spec.ResponseProps{Description: http.StatusText(http.StatusUnauthorized)}},
		},
		SecurityDefinitions: &spec.SecurityDefinitions{"BearerToken": {SecuritySchemeProps: spec.SecuritySchemeProps{
			Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication",
		}}},
		DefaultSecurity: []map[string][]string{{"BearerToken": {}}},
	})
	if err != nil {
		return nil, err
	}
	withoutDefaults(doc.Definitions)
	return doc.MarshalJSON()
}

func (m *maker) info() *spec.Info {
	return &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: m.version}}
}

// operationID puts group and version into an operation's name, and makes its
// tags of them.
func operationID(r common.Route) (string, []string, error) {
	return upstream.GetOperationIDAndTags(&restful.Route{Operation: r.OperationName(), Path: r.Path()})
}

// distinct numbers the names that come up again. Groups that differ only in
// punctuation or in .k8s.io make the same names, and the builder takes no name
// twice.
func distinct(id func(common.Route) (string, []string, error)) func(common.Route) (string, []string, error) {
	seen := map[string]int{}
	return func(r common.Route) (string, []string, error) {
		name, tags, err := id(r)
		n := seen[name]
		if seen[name]++; n > 0 {
			name = fmt.Sprintf("%s_%d", name, n)
		}
		return name, tags, err
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
