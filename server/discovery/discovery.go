// Package discovery tells clients what is served: /api, /apis and below, in
// the form of one document per group and version and in the aggregated form.
//
// Documents are made from a list of kinds, and from what is registered beside
// them, when they are first asked for, and kept as long as both stay the same.
package discovery

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/munnerz/goautoneg"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/server/rest"
)

// Server serves the discovery documents.
type Server struct {
	list  func() *kinds.List
	codec *codec.Codec
	// address is what clients are told to reach the server at.
	address string
	joined  func() *Joined

	mu   sync.Mutex // guards the fields below
	made *kinds.List
	with *Joined
	docs map[string]*document
}

// document is a discovery document in its two encodings.
type document struct {
	obj  runtime.Object
	etag string // of aggregated documents
	body map[string][]byte
}

// New returns a server of discovery for a list of kinds that may be replaced.
func New(list func() *kinds.List, c *codec.Codec, address string) *Server {
	return &Server{list: list, codec: c, address: address, joined: func() *Joined { return nil }}
}

// aggregatedMedia is asked for by clients that want everything at once.
const aggregated = "APIGroupDiscoveryList"

// ServeHTTP serves /api, /apis and the paths of groups and versions below.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimSuffix(r.URL.Path, "/")
	name := path
	// Compat: the lists of groups and versions do not look at the method.
	if r.Method != http.MethodGet && !s.isGroup(path) {
		refuse(w, r, http.StatusMethodNotAllowed, "")
		return
	}
	media, all := accepted(r.Header.Get("Accept"), s.offered(path))
	if media == "" {
		s.refuseMedia(w, r, path)
		return
	}
	if all && (path == "/api" || path == "/apis") {
		name = path + "?" + aggregated
	}
	doc := s.document(name)
	if doc == nil {
		s.refusePath(w, r, path)
		return
	}
	h := w.Header()
	h.Set("Vary", "Accept")
	contentType := media
	if doc.etag != "" {
		contentType += ";g=apidiscovery.k8s.io;v=v2;as=" + aggregated
		h.Set("ETag", doc.etag)
		h.Set("Cache-Control", "public")
		if r.Header.Get("If-None-Match") == doc.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	} else {
		h.Set("Cache-Control", "no-cache, private")
	}
	body, err := s.encoded(doc, media)
	if pretty, _ := strconv.ParseBool(r.URL.Query().Get("pretty")); pretty && media == codec.JSON && err == nil {
		body, err = json.MarshalIndent(doc.obj, "", "  ")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", contentType)
	_, _ = w.Write(body) // the client has gone
}

// accepted is the offered media type that a client wants, and whether it wants
// the aggregated form.
func accepted(header string, offered []string) (media string, all bool) {
	for _, a := range goautoneg.ParseAccept(header) {
		media := a.Type + "/" + a.SubType
		if media == "*/*" || media == "application/*" {
			return codec.JSON, false
		}
		if !slices.Contains(offered, media) {
			continue
		}
		if a.Params["g"] == "apidiscovery.k8s.io" {
			if a.Params["v"] == "v2" && a.Params["as"] == aggregated {
				return media, true
			}
			continue
		}
		return media, false
	}
	if header == "" {
		return codec.JSON, false
	}
	return "", false
}

// offered are the media types that a document is served as. Compat: the lists
// of groups and versions have fewer than the resources of a version.
func (s *Server) offered(path string) []string {
	if path == "/api" || s.isGroup(path) {
		return codec.MediaTypes(codec.Basics())
	}
	return codec.MediaTypes(codec.Representations)
}

// isGroup says that the path is that of the list of groups, or of one.
func (s *Server) isGroup(path string) bool {
	return path == "/apis" || strings.HasPrefix(path, "/apis/") && strings.Count(path, "/") == 2
}

// refuse answers with a Status.
func refuse(w http.ResponseWriter, r *http.Request, code int, message string) {
	rest.WriteError(w, r, apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false))
}

func (s *Server) refuseMedia(w http.ResponseWriter, r *http.Request, path string) {
	mediaTypes := strings.Join(s.offered(path), ", ")
	if !s.isGroup(path) {
		refuse(w, r, http.StatusNotAcceptable, "406: Not Acceptable\n\nAvailable representations: "+mediaTypes)
		return
	}
	rest.WriteError(w, r, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + mediaTypes,
	}})
}

// refusePath answers for a path that there is not. Compat: in a group that is
// served here, with a Status.
func (s *Server) refusePath(w http.ResponseWriter, r *http.Request, path string) {
	parts := strings.Split(path, "/")
	if parts[1] == "api" || len(parts) > 2 && slices.ContainsFunc(s.list().All(), func(r *kinds.Resource) bool { return r.Group == parts[2] }) {
		refuse(w, r, http.StatusNotFound, "")
		return
	}
	http.NotFound(w, r)
}

func (s *Server) document(name string) *document {
	list, with := s.list(), s.joined()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made != list || s.with != with {
		s.made, s.with, s.docs = list, with, nil
	}
	if s.docs == nil {
		s.docs = s.make(list, with)
	}
	return s.docs[name]
}

func (s *Server) encoded(d *document, media string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := d.body[media]; b != nil {
		return b, nil
	}
	var b []byte
	var err error
	if media == codec.JSON {
		b, err = json.Marshal(d.obj)
		b = append(b, '\n')
	} else {
		var info runtime.SerializerInfo
		if info, err = s.codec.Media(media); err == nil {
			var buf bytes.Buffer
			err = info.Serializer.Encode(d.obj, &buf) // the document says what it is
			b = buf.Bytes()
		}
	}
	if err != nil {
		return nil, err
	}
	d.body[media] = b
	return b, nil
}

// make builds all documents of a list, with what is registered; that may be
// nil.
func (s *Server) make(list *kinds.List, with *Joined) map[string]*document {
	docs := map[string]*document{}
	add := func(path string, obj runtime.Object) {
		docs[path] = &document{obj: obj, body: map[string][]byte{}}
	}
	groups := groupsOf(list)
	apis := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}}
	legacy := &apidiscovery.APIGroupDiscoveryList{}
	named := &apidiscovery.APIGroupDiscoveryList{}
	for _, g := range groups {
		for _, version := range g.versions {
			gv := schema.GroupVersion{Group: g.name, Version: version}
			add(root(gv), resources(g, gv))
		}
		if g.name == "" {
			add("/api", &metav1.APIVersions{
				TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: g.versions,
				ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: s.address}},
			})
			legacy.Items = append(legacy.Items, aggregate(g))
			continue
		}
		group := apiGroup(g)
		add("/apis/"+g.name, alone(group))
		named.Items = append(named.Items, aggregate(g))
		if with == nil {
			apis.Groups = append(apis.Groups, group)
		}
	}
	if with != nil {
		for _, g := range with.Listed {
			group := listed(g)
			add("/apis/"+g.Group, alone(group))
			apis.Groups = append(apis.Groups, group)
		}
	}
	if with != nil && with.Merged != nil {
		all := with.merge(append(legacy.Items, named.Items...))
		legacy.Items, named.Items = nil, nil
		for _, g := range all {
			if g.Name == "" {
				legacy.Items = append(legacy.Items, g)
			} else {
				named.Items = append(named.Items, g)
			}
		}
	}
	add("/apis", apis)
	for path, l := range map[string]*apidiscovery.APIGroupDiscoveryList{"/api": legacy, "/apis": named} {
		l.TypeMeta = metav1.TypeMeta{Kind: aggregated, APIVersion: apidiscovery.SchemeGroupVersion.String()}
		name := path + "?" + aggregated
		add(name, l)
		docs[name].etag = etag(l)
	}
	return docs
}

// alone is a group as a document of its own.
func alone(g metav1.APIGroup) *metav1.APIGroup {
	g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
	return &g
}

func etag(l *apidiscovery.APIGroupDiscoveryList) string {
	b, _ := json.Marshal(l) // of texts
	sum := sha256.Sum256(b)
	return `"` + strings.ToUpper(hex.EncodeToString(sum[:])) + `"`
}

func root(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

// group is an API group with what is served in it.
type group struct {
	name      string
	versions  []string
	resources []*kinds.Resource
}

// groupsOf sorts a list's resources by group, in the list's order.
func groupsOf(list *kinds.List) []*group {
	var groups []*group
	byName := map[string]*group{}
	for _, r := range list.All() {
		g := byName[r.Group]
		if g == nil {
			g = &group{name: r.Group}
			byName[r.Group] = g
			groups = append(groups, g)
		}
		g.resources = append(g.resources, r)
		for _, v := range r.Versions {
			if !slices.Contains(g.versions, v) {
				g.versions = append(g.versions, v)
			}
		}
	}
	return groups
}

func apiGroup(g *group) metav1.APIGroup {
	var versions []metav1.GroupVersionForDiscovery
	for _, v := range g.versions {
		gv := schema.GroupVersion{Group: g.name, Version: v}
		versions = append(versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v})
	}
	return metav1.APIGroup{Name: g.name, Versions: versions, PreferredVersion: versions[0]}
}

// resources is the document of one group and version.
func resources(g *group, gv schema.GroupVersion) *metav1.APIResourceList {
	l := &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: gv.String(), APIResources: []metav1.APIResource{},
	}
	if gv.Group == "" {
		l.APIVersion = "" // Compat: from before there were groups
	}
	for _, r := range slices.SortedStableFunc(slices.Values(g.resources), byName) {
		if !r.Serves(gv.Version) {
			continue
		}
		l.APIResources = append(l.APIResources, metav1.APIResource{
			Name: r.Name, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind,
			Verbs: verbs(r), ShortNames: r.ShortNames, Categories: r.Categories, StorageVersionHash: storageHash(r),
		})
		for _, sub := range subresources(r) {
			a := metav1.APIResource{Name: r.Name + "/" + sub.Name, Namespaced: r.Namespaced, Kind: sub.Kind.Kind, Verbs: sub.Verbs}
			if own := sub.Kind.GroupVersion(); own != gv && !own.Empty() && sub.Kind.Kind != r.Kind {
				a.Group, a.Version = own.Group, own.Version
			}
			l.APIResources = append(l.APIResources, a)
		}
	}
	return l
}

func byName(a, b *kinds.Resource) int { return strings.Compare(a.Name, b.Name) }

// verbs are those of a resource. Compat: one that is being removed is not
// written to, as far as is told.
func verbs(r *kinds.Resource) metav1.Verbs {
	if !r.Leaving {
		return r.Verbs
	}
	return slices.DeleteFunc(slices.Clone(r.Verbs), func(v string) bool { return v == "create" || v == "update" || v == "patch" })
}

// storageHash tells clients which resources show the same stored objects.
func storageHash(r *kinds.Resource) string {
	if r.Create == nil {
		return ""
	}
	sum := sha256.Sum256([]byte(r.Storage.Group + "/" + r.Storage.Version + "/" + r.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

func subresources(r *kinds.Resource) []*kinds.Subresource {
	var subs []*kinds.Subresource
	for _, s := range r.Subresources {
		subs = append(subs, s)
	}
	slices.SortFunc(subs, func(a, b *kinds.Subresource) int { return strings.Compare(a.Name, b.Name) })
	if r.Custom != nil {
		slices.Reverse(subs) // Compat: status comes first
	}
	return subs
}

// aggregate is a group in the aggregated form.
func aggregate(g *group) apidiscovery.APIGroupDiscovery {
	d := apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.name}}
	for _, version := range g.versions {
		v := apidiscovery.APIVersionDiscovery{Version: version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
		for _, r := range slices.SortedStableFunc(slices.Values(g.resources), byName) {
			if r.Serves(version) {
				v.Resources = append(v.Resources, aggregateResource(r, version))
			}
		}
		d.Versions = append(d.Versions, v)
	}
	return d
}

func aggregateResource(r *kinds.Resource, version string) apidiscovery.APIResourceDiscovery {
	scope := apidiscovery.ScopeCluster
	if r.Namespaced {
		scope = apidiscovery.ScopeNamespace
	}
	kindOf := func(k schema.GroupVersionKind) *metav1.GroupVersionKind {
		if k.Group == r.Group && k.Version == version && r.Custom == nil {
			// Compat: the group and version are those that it is listed in; custom
			// kinds say them.
			return &metav1.GroupVersionKind{Kind: k.Kind}
		}
		return &metav1.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
	}
	d := apidiscovery.APIResourceDiscovery{
		Resource: r.Name, ResponseKind: kindOf(r.GroupVersionKind(version)), Scope: scope, SingularResource: r.Singular,
		Verbs: verbs(r), ShortNames: r.ShortNames, Categories: r.Categories,
	}
	for _, s := range subresources(r) {
		kind := s.Kind
		if kind.Kind == r.Kind || kind.Version == "" {
			kind.Group, kind.Version = r.Group, version
		}
		d.Subresources = append(d.Subresources, apidiscovery.APISubresourceDiscovery{
			Subresource: s.Name, ResponseKind: kindOf(kind), Verbs: s.Verbs,
		})
	}
	return d
}
