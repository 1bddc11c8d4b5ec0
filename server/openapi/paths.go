package openapi

import (
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/common"

	"setpoint.dev/setpoint/kinds"
)

// Names of definitions that every group uses.
const (
	meta          = "io.k8s.apimachinery.pkg.apis.meta.v1."
	status        = model(meta + "Status")
	deleteOptions = model(meta + "DeleteOptions")
	patchBody     = model(meta + "Patch")
	watchEvent    = model(meta + "WatchEvent")
)

// encodings are the media types of objects of a kind.
type encodings struct {
	objects, streams []string // answered
	bodies, patches  []string // taken
}

var (
	builtinEncodings = encodings{
		objects: []string{mediaJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf},
		streams: []string{mediaJSON + ";stream=watch", runtime.ContentTypeProtobuf + ";stream=watch"},
		bodies:  anything,
		patches: []string{
			string(types.JSONPatchType), string(types.MergePatchType),
			string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType),
		},
	}
	customEncodings = encodings{
		objects: []string{mediaJSON, runtime.ContentTypeYAML},
		bodies:  []string{mediaJSON, runtime.ContentTypeYAML},
		patches: []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)},
	}
	anything = []string{"*/*"}
)

// endpoint is a resource in one version, or a subresource of it, with what
// its routes have in common.
type endpoint struct {
	maker    *maker
	resource *kinds.Resource
	sub      *kinds.Subresource // nil for the resource itself
	gv       schema.GroupVersion
	kind     schema.GroupVersionKind // of the objects read and written
	verbs    []string
	object   model
	encodings
	builtin bool
}

// routes are the routes of a resource in a version, subresources included.
func (m *maker) routes(r *kinds.Resource, version string) []common.Route {
	gv := schema.GroupVersion{Group: r.Group, Version: version}
	e := &endpoint{maker: m, resource: r, gv: gv, kind: gv.WithKind(r.Kind), verbs: r.Verbs, encodings: customEncodings}
	if e.builtin = isBuiltin(r); e.builtin {
		e.encodings = builtinEncodings
	}
	e.object = m.name(r, e.kind)
	routes := e.standard()
	for _, name := range sortedKeys(r.Subresources) {
		sub := *e
		sub.sub = r.Subresources[name]
		sub.verbs = sub.sub.Verbs
		sub.kind = subKind(sub.sub.Kind, e.kind)
		if strings.HasSuffix(sub.kind.Kind, "Options") {
			routes = append(routes, sub.connect()...)
			continue
		}
		sub.object = m.name(r, sub.kind)
		routes = append(routes, sub.standard()...)
	}
	return routes
}

// subKind is the kind that a subresource reads and writes. The table leaves out
// what it has in common with the resource, and has only one version of a view
// of the object itself.
func subKind(kind, resource schema.GroupVersionKind) schema.GroupVersionKind {
	switch {
	case kind.Empty(), kind.GroupKind() == resource.GroupKind():
		return resource
	case kind.Version == "":
		return resource.GroupVersion().WithKind(kind.Kind)
	default:
		return kind
	}
}

func (e *endpoint) can(verb string) bool { return slices.Contains(e.verbs, verb) }

// root is the path of a group and version.
func root(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.String()
}

// collection is the path of all objects below the root, with its parameters;
// item is that of one object or of its subresource.
func (e *endpoint) collection() (path string, params []common.Parameter) {
	if e.resource.Namespaced {
		path = "/namespaces/{namespace}"
		params = append(params, inPath("namespace", "object name and auth scope, such as for teams and projects"))
	}
	return path + "/" + e.resource.Name, params
}

func (e *endpoint) item() (path string, params []common.Parameter) {
	path, params = e.collection()
	path += "/{name}"
	if e.sub != nil {
		path += "/" + e.sub.Name
	}
	// Compat: the name is that of the kind that is read and written, even
	// where that is another one than the resource's.
	return path, append(params, inPath("name", "name of the "+e.kind.Kind))
}

// subject is what an operation's name ends in, such as NamespacedPodStatus.
func (e *endpoint) subject() string {
	s := e.resource.Kind
	if e.resource.Namespaced {
		s = "Namespaced" + s
	}
	if e.sub != nil {
		s += strings.ToUpper(e.sub.Name[:1]) + e.sub.Name[1:]
	}
	return s
}

// of is the resource's kind as descriptions name it, after the subresource
// where there is one: "the specified Pod", "status of the specified Pod".
func (e *endpoint) of(words string) string {
	s := words + e.resource.Kind
	if e.sub != nil {
		s = e.sub.Name + " of " + s
	}
	return s
}

// route finishes a route: it lies below the root and says what it does, and
// to what.
func (e *endpoint) route(action string, r route) common.Route {
	r.path = root(e.gv) + r.path
	if r.consumes == nil {
		r.consumes = e.bodies
	}
	if r.produces == nil {
		r.produces = e.objects
	}
	r.extensions = map[string]any{
		extensionAction: action,
		extensionKind:   metav1.GroupVersionKind(e.kind),
	}
	return &r
}

// answers are a route's responses by code, all of one model.
func answers(m model, codes ...int) []common.StatusCodeResponse {
	rs := make([]common.StatusCodeResponse, 0, len(codes))
	for _, code := range codes {
		rs = append(rs, response{code, http.StatusText(code), m})
	}
	return rs
}

// standard are the routes of the verbs on objects.
func (e *endpoint) standard() []common.Route {
	var routes []common.Route
	add := func(action string, r route) { routes = append(routes, e.route(action, r)) }

	path, inCollection := e.collection()
	item, inItem := e.item()
	createPath, inCreate := path, inCollection
	if e.sub != nil {
		createPath, inCreate = item, inItem
	}
	subject := e.subject()

	if e.can("list") {
		add("list", e.list(path, subject, inCollection))
		if e.resource.Namespaced {
			add("list", e.list("/"+e.resource.Name, e.resource.Kind+"ForAllNamespaces", nil))
		}
	}
	if e.can("create") {
		add("post", route{
			method: http.MethodPost, path: createPath, operation: "create" + subject,
			description: "create " + e.of(article(e.resource.Kind)),
			parameters:  slices.Concat(inCreate, inQuery(&metav1.CreateOptions{}), e.uninitialized(), []common.Parameter{pretty, body(true)}),
			reads:       e.object,
			responses:   answers(e.object, http.StatusOK, http.StatusCreated, http.StatusAccepted),
		})
	}
	if e.can("deletecollection") {
		add("deletecollection", route{
			method: http.MethodDelete, path: path, operation: "deletecollection" + subject,
			description: "delete collection of " + e.of(""),
			parameters: slices.Concat(inCollection, inQuery(&metav1.DeleteOptions{}),
				inQuery(&metav1.ListOptions{}, "watch", "allowWatchBookmarks"), []common.Parameter{pretty, body(false)}),
			reads:     deleteOptions,
			responses: answers(status, http.StatusOK),
		})
	}
	if e.can("get") {
		add("get", e.read(item, subject, inItem))
	}
	if e.can("update") {
		add("put", route{
			method: http.MethodPut, path: item, operation: "replace" + subject,
			description: "replace " + e.of("the specified "),
			parameters:  slices.Concat(inItem, inQuery(&metav1.UpdateOptions{}), []common.Parameter{pretty, body(true)}),
			reads:       e.object,
			responses:   answers(e.object, http.StatusOK, http.StatusCreated),
		})
	}
	if e.can("patch") {
		add("patch", route{
			method: http.MethodPatch, path: item, operation: "patch" + subject,
			description: "partially update " + e.of("the specified "),
			parameters:  slices.Concat(inItem, inQuery(&metav1.PatchOptions{}), []common.Parameter{pretty, body(true)}),
			consumes:    e.patches,
			reads:       patchBody,
			responses:   answers(e.object, http.StatusOK, http.StatusCreated),
		})
	}
	if e.can("delete") {
		// Compat: kinds that linger, namespaces that is, answer with the object
		// and are documented to answer with a Status.
		deleted := status
		if e.resource.ReturnsDeleted && e.resource.Linger == nil {
			deleted = e.object
		}
		add("delete", route{
			method: http.MethodDelete, path: item, operation: "delete" + subject,
			description: "delete " + e.of(article(e.resource.Kind)),
			parameters:  slices.Concat(inItem, inQuery(&metav1.DeleteOptions{}), []common.Parameter{pretty, body(false)}),
			reads:       deleteOptions,
			responses:   answers(deleted, http.StatusOK, http.StatusAccepted),
		})
	}
	// Compat: watching by path is deprecated and still there; kinds that are
	// not compiled in are not documented to have it.
	if e.can("watch") && e.can("list") && e.builtin {
		add("watch", e.watch(item, subject, inItem, "changes to an object of kind "+e.resource.Kind+
			". deprecated: use the 'watch' parameter with a list operation instead, filtered to a single item with the 'fieldSelector' parameter."))
		changes := "individual changes to a list of " + e.resource.Kind + ". deprecated: use the 'watch' parameter with a list operation instead."
		add("watchlist", e.watch(path, subject+"List", inCollection, changes))
		if e.resource.Namespaced {
			add("watchlist", e.watch("/"+e.resource.Name, e.resource.Kind+"ListForAllNamespaces", nil, changes))
		}
	}
	return routes
}

// uninitialized is the parameter that asks for objects that wait for
// initializers.
func (e *endpoint) uninitialized() []common.Parameter {
	if e.maker.plain {
		return nil
	}
	return []common.Parameter{uninitialized}
}

func (e *endpoint) list(path, subject string, params []common.Parameter) route {
	description := "list objects of kind " + e.resource.Kind
	if e.can("watch") {
		description = "list or watch objects of kind " + e.resource.Kind
	}
	return route{
		method: http.MethodGet, path: path, operation: "list" + subject,
		description: description,
		parameters:  slices.Concat(params, inQuery(&metav1.ListOptions{}), e.uninitialized(), []common.Parameter{pretty}),
		produces:    slices.Concat(e.objects, e.streams),
		responses:   answers(e.maker.name(e.resource, e.gv.WithKind(e.resource.Kind+"List")), http.StatusOK),
	}
}

func (e *endpoint) read(path, subject string, params []common.Parameter) route {
	r := route{
		method: http.MethodGet, path: path, operation: "read" + subject,
		description: "read " + e.of("the specified "),
		parameters:  slices.Concat(params, []common.Parameter{pretty}),
		responses:   answers(e.object, http.StatusOK),
	}
	if e.sub != nil && e.sub.Name == "log" {
		// A log is text, and is asked for with options of its own.
		r.parameters = append(r.parameters, inQuery(&corev1.PodLogOptions{})...)
		r.produces = slices.Concat([]string{"text/plain"}, e.objects)
		r.responses = answers("string", http.StatusOK)
	}
	return r
}

func (e *endpoint) watch(path, subject string, params []common.Parameter, description string) route {
	return route{
		method: http.MethodGet, path: "/watch" + path, operation: "watch" + subject,
		description: "watch " + description,
		parameters:  slices.Concat(params, inQuery(&metav1.ListOptions{}), e.uninitialized(), []common.Parameter{pretty}),
		produces:    slices.Concat(e.objects, e.streams),
		responses:   answers(watchEvent, http.StatusOK),
	}
}

// connect are the routes of a subresource that hands the connection on, by
// every method it takes. A proxy takes all methods, and paths below its own.
func (e *endpoint) connect() []common.Route {
	methods := []string{http.MethodGet, http.MethodPost}
	path, params := e.item()
	paths := []string{path}
	if e.sub.Name == "proxy" {
		methods = []string{
			http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodOptions,
			http.MethodPatch, http.MethodPost, http.MethodPut,
		}
		paths = append(paths, path+"/{path}")
	}
	if options, err := e.resource.Scheme.New(e.kind); err == nil {
		params = append(params, inQuery(options)...)
	}
	var routes []common.Route
	for _, p := range paths {
		ps, suffix := params, ""
		if p != path {
			ps, suffix = append(slices.Clone(params), inPath("path", "path to the resource")), "WithPath"
		}
		for _, method := range methods {
			routes = append(routes, e.route("connect", route{
				method: method, path: p,
				operation:   "connect" + method[:1] + strings.ToLower(method[1:]) + e.subject() + suffix,
				description: "connect " + method + " requests to " + e.of(""),
				parameters:  ps,
				consumes:    anything,
				produces:    anything,
				writes:      "string",
			}))
		}
	}
	return routes
}

// article is the indefinite article for a kind, none for a plural.
func article(kind string) string {
	switch {
	case strings.HasSuffix(kind, "s") && !strings.HasSuffix(kind, "ss"):
		return ""
	case strings.ContainsRune("AEIOU", rune(kind[0])):
		return "an "
	default:
		return "a "
	}
}

// fixed holds a route that does not come from kinds.
func fixed(path, operation, description string, writes model, consumes, produces []string) *container {
	return &container{root: path, routes: []common.Route{&route{
		method: http.MethodGet, path: path + "/", operation: operation, description: description,
		consumes: consumes, produces: produces, responses: answers(writes, http.StatusOK),
	}}}
}
