package openapi

import (
	"reflect"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
)

// route is one operation: a method on a path.
type route struct {
	method      string
	path        string
	operation   string // starts with a verb; the group and version come after it
	description string
	parameters  []common.Parameter
	consumes    []string
	produces    []string
	reads       model
	writes      model
	responses   []common.StatusCodeResponse
	extensions  map[string]any
}

var _ common.Route = (*route)(nil)

func (r *route) Method() string                                   { return r.method }
func (r *route) Path() string                                     { return r.path }
func (r *route) OperationName() string                            { return r.operation }
func (r *route) Description() string                              { return r.description }
func (r *route) Parameters() []common.Parameter                   { return r.parameters }
func (r *route) Consumes() []string                               { return r.consumes }
func (r *route) Produces() []string                               { return r.produces }
func (r *route) Metadata() map[string]any                         { return r.extensions }
func (r *route) RequestPayloadSample() any                        { return r.reads.sample() }
func (r *route) ResponsePayloadSample() any                       { return r.writes.sample() }
func (r *route) StatusCodeResponses() []common.StatusCodeResponse { return r.responses }

// model is the name of a definition, or of a simple type.
type model string

// OpenAPIModelName is how the builders ask for the name.
func (m model) OpenAPIModelName() string { return string(m) }

func (m model) sample() any {
	if m == "" {
		return nil
	}
	return m
}

// response is what a route answers with a status code.
type response struct {
	code    int
	message string
	model   model
}

func (r response) Code() int       { return r.code }
func (r response) Message() string { return r.message }
func (r response) Model() any      { return r.model }

// parameter is a parameter of a route.
type parameter struct {
	name        string
	description string
	kind        common.ParameterKind
	dataType    string
	required    bool
}

func (p parameter) Name() string               { return p.name }
func (p parameter) Description() string        { return p.description }
func (p parameter) Required() bool             { return p.required }
func (p parameter) Kind() common.ParameterKind { return p.kind }
func (p parameter) DataType() string           { return p.dataType }
func (p parameter) AllowMultiple() bool        { return false }

func inPath(name, description string) common.Parameter {
	return parameter{name: name, description: description, kind: common.PathParameterKind, dataType: "string", required: true}
}

func body(required bool) common.Parameter {
	return parameter{name: "body", kind: common.BodyParameterKind, required: required}
}

var pretty common.Parameter = parameter{
	name:        "pretty",
	description: "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget).",
	kind:        common.QueryParameterKind,
	dataType:    "string",
}

// uninitialized is the parameter of Kubernetes 1.7 to 1.13, which today's options
// no longer have.
var uninitialized common.Parameter = parameter{
	name:        "includeUninitialized",
	description: "If true, objects that still wait for initializers are told of, too; a create answers without waiting for them.",
	kind:        common.QueryParameterKind,
	dataType:    "boolean",
}

// inQuery are the fields of an options type as query parameters, those
// named in without left out. Fields that hold objects are none, and the type
// itself documents its fields.
func inQuery(options any, without ...string) []common.Parameter {
	docs := map[string]string{}
	if d, ok := options.(interface{ SwaggerDoc() map[string]string }); ok {
		docs = d.SwaggerDoc()
	}
	var params []common.Parameter
	t := reflect.TypeOf(options).Elem()
next:
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		dataType := simpleType(field.Type)
		if name == "" || dataType == "" {
			continue
		}
		for _, w := range without {
			if name == w {
				continue next
			}
		}
		params = append(params, parameter{name: name, description: docs[name], kind: common.QueryParameterKind, dataType: dataType})
	}
	return params
}

// simpleType is the JSON type of a field in a query, "" for those that have
// none.
//
// Compat: lists are told as their elements, and times are query parameters
// only behind a pointer to a type named metav1.Time, which none has.
func simpleType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return simpleType(t.Elem())
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint32, reflect.Uint64:
		return "integer"
	case reflect.Float32, reflect.Float64:
		return "number"
	default:
		return ""
	}
}

// container holds the routes below one root path.
type container struct {
	root   string
	routes []common.Route
}

var _ common.RouteContainer = (*container)(nil)

func (c *container) RootPath() string                   { return c.root }
func (c *container) PathParameters() []common.Parameter { return nil }
func (c *container) Routes() []common.Route             { return c.routes }
