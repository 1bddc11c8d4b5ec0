package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/discovery"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// patience bounds every wait for the server.
const patience = time.Minute

// format is how bodies look on the wire.
type format struct {
	name  string
	media string
	// apply is the type of an apply's body.
	apply types.PatchType
}

var formats = []format{
	{"json", runtime.ContentTypeJSON, types.ApplyYAMLPatchType},
	{"protobuf", runtime.ContentTypeProtobuf, types.ApplyYAMLPatchType},
	{"cbor", runtime.ContentTypeCBOR, types.ApplyCBORPatchType},
}

var (
	kindScheme = runtime.NewScheme()
	kindCodecs = serializer.NewCodecFactory(kindScheme, serializer.WithSerializer(cbor.NewSerializerInfo))
)

func init() {
	utilruntime.Must(clientscheme.AddToScheme(kindScheme))
	utilruntime.Must(metav1.AddMetaToScheme(kindScheme))
}

func serializerOf(media string) runtime.SerializerInfo {
	if media == runtime.ContentTypeCBORSequence {
		media = runtime.ContentTypeCBOR
	}
	info, ok := runtime.SerializerInfoForMediaType(kindCodecs.SupportedMediaTypes(), media)
	if !ok {
		panic("no serializer for " + media)
	}
	return info
}

// served is where a resource is served.
type served struct {
	schema.GroupVersionResource
	kind       string
	namespaced bool
}

// discover finds where every resource is served; of two with the same name the
// first group's.
func discover(config *rest.Config) (map[string]served, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := client.ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	known := map[string]served{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if _, taken := known[r.Name]; !taken {
				known[r.Name] = served{gv.WithResource(r.Name), r.Kind, r.Namespaced}
			}
		}
	}
	return known, nil
}

// teller plays a story and writes down what comes back, in words that are the
// same every time: revisions are counted, UIDs and made-up names have the name
// of their object.
type teller struct {
	t      *testing.T
	client *http.Client
	host   string
	format format
	known  map[string]served

	ns, title string
	revisions []string          // by their number in the story, from 1
	uids      map[string]string // by name
	madeUp    map[string]string // made-up names, to what the story calls them
	next      string            // the last continue token
	watches   map[string]*watching
}

func newTeller(t *testing.T, config *rest.Config, known map[string]served, f format, title string) (*teller, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	s := &teller{
		t: t, client: client, host: config.Host, format: f, known: known, ns: title + "-" + f.name + "-" + utilrand.String(5), title: title,
		uids: map[string]string{}, madeUp: map[string]string{}, watches: map[string]*watching{},
	}
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, s.ns)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.host+"/api/v1/namespaces", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", runtime.ContentTypeJSON)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	if resp.StatusCode != http.StatusCreated {
		return nil, fmt.Errorf("creating the story's namespace: %s", resp.Status)
	}
	return s, nil
}

var variable = regexp.MustCompile(`\$(ns\b|next\b|uid\([^)]*\)|[0-9]+)`)

// fill replaces $1 by the story's first revision, $uid(x) by the UID of x,
// $next by the last continue token and $ns by the namespace.
func (s *teller) fill(text string) string {
	return variable.ReplaceAllStringFunc(text, func(v string) string {
		switch {
		case v == "$ns":
			return s.ns
		case v == "$next":
			return s.next
		case strings.HasPrefix(v, "$uid("):
			return s.uids[strings.TrimSuffix(strings.TrimPrefix(v, "$uid("), ")")]
		default:
			n, err := strconv.Atoi(v[1:])
			if err != nil || n < 1 || n > len(s.revisions) {
				s.t.Fatalf("the story has no revision %s yet", v)
			}
			return s.revisions[n-1]
		}
	})
}

// tell plays one act and returns its ending.
func (s *teller) tell(a *act) []string {
	o := parseOrder(s.fill(a.line))
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	switch o.verb {
	case "events":
		return s.events(o)
	case "watch":
		return s.watch(o)
	}
	req, err := s.request(ctx, o, s.fill(a.body))
	if err != nil {
		s.t.Fatalf("%s: %v", a.line, err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatalf("%s: %v", a.line, err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	obj, err := decode(resp)
	if err != nil {
		s.t.Fatalf("%s: %v", a.line, err)
	}
	ending := append(warnings(resp), s.describe(o, resp.StatusCode, obj)...)
	if s.mayBeGone(o, obj) && s.isGone(ctx, o) {
		ending[len(ending)-1-len(o.show)] += " gone"
	}
	return s.plain(ending)
}

func warnings(resp *http.Response) []string {
	var lines []string
	for _, w := range resp.Header.Values("Warning") {
		lines = append(lines, "warning: "+strings.TrimPrefix(w, "299 - "))
	}
	return lines
}

var methods = map[string]string{
	"get": http.MethodGet, "list": http.MethodGet, "watch": http.MethodGet, "create": http.MethodPost, "update": http.MethodPut,
	"patch": http.MethodPatch, "delete": http.MethodDelete, "deletecollection": http.MethodDelete,
}

var patchTypes = map[string]types.PatchType{
	"json": types.JSONPatchType, "merge": types.MergePatchType, "strategic": types.StrategicMergePatchType,
}

// path is where the resource, or the object that the order names, is.
func (s *teller) path(o order) string {
	r, ok := s.known[o.resource]
	if !ok {
		s.t.Fatalf("no resource %q is served", o.resource)
	}
	path := "/apis/" + r.Group + "/" + r.Version
	if r.Group == "" {
		path = "/api/" + r.Version
	}
	ns := o.ns
	if ns == "" {
		ns = s.ns
	}
	if r.namespaced && ns != "*" {
		path += "/namespaces/" + ns
	}
	path += "/" + r.Resource
	if o.name != "" && o.verb != "create" || o.sub != "" {
		path += "/" + o.name
	}
	if o.sub != "" {
		path += "/" + o.sub
	}
	return path
}

func (s *teller) request(ctx context.Context, o order, body string) (*http.Request, error) {
	query := url.Values{}
	for _, q := range o.query {
		query.Add(q[0], q[1])
	}
	if o.verb == "watch" {
		query.Set("watch", "true")
	}
	content, media, err := s.encode(o, body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, methods[o.verb], s.host+s.path(o)+"?"+query.Encode(), bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	accept := s.format.media
	switch {
	case o.as == "Table":
		// Compat: tables have no other form.
		accept = runtime.ContentTypeJSON + ";as=Table;v=v1;g=meta.k8s.io"
	case o.as != "":
		accept += ";as=" + o.as + ";v=v1;g=meta.k8s.io"
	}
	req.Header.Set("Accept", accept)
	if len(content) > 0 {
		req.Header.Set("Content-Type", media)
	}
	for _, name := range o.headers {
		req.Header.Del(name[0])
	}
	for _, h := range o.headers {
		req.Header.Add(h[0], h[1])
	}
	req.Header.Set("User-Agent", "scenario")
	return req, nil
}

// encode makes the body that is sent of the one that is written. What follows
// from the order need not be written: apiVersion, kind and name.
func (s *teller) encode(o order, body string) ([]byte, string, error) {
	if body == "" && o.verb == "create" {
		body = "{}"
	}
	if body == "" {
		return nil, "", nil
	}
	if o.raw {
		return []byte(body), runtime.ContentTypeJSON, nil
	}
	content, err := yaml.YAMLToJSON([]byte(body))
	if err != nil {
		return nil, "", err
	}
	if o.verb == "patch" {
		if o.patch != "apply" {
			return content, string(patchTypes[o.patch]), nil
		}
		content, _, err = s.complete(o, content)
		if err == nil && s.format.apply == types.ApplyCBORPatchType {
			content, err = cborOf(content)
		}
		return content, string(s.format.apply), err
	}
	content, kind, err := s.complete(o, content)
	if err != nil || s.format.name == "json" {
		return content, s.format.media, err
	}
	if s.format.name == "cbor" { // not through a type, which would drop fields that it does not know
		content, err = cborOf(content)
		return content, s.format.media, err
	}
	obj, _, err := serializerOf(runtime.ContentTypeJSON).Serializer.Decode(content, &kind, nil)
	if err != nil {
		return nil, "", err
	}
	var out bytes.Buffer
	err = serializerOf(s.format.media).Serializer.Encode(obj, &out)
	return out.Bytes(), s.format.media, err
}

// cborOf is JSON as CBOR. Numbers keep their kind.
func cborOf(content []byte) ([]byte, error) {
	var obj unstructured.Unstructured
	if err := obj.UnmarshalJSON(content); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err := serializerOf(runtime.ContentTypeCBOR).Serializer.Encode(&obj, &out)
	return out.Bytes(), err
}

func (s *teller) complete(o order, content []byte) ([]byte, schema.GroupVersionKind, error) {
	r := s.known[o.resource]
	kind := r.GroupVersion().WithKind(r.kind)
	switch {
	case strings.HasPrefix(o.verb, "delete"):
		kind = metav1.Unversioned.WithKind("DeleteOptions")
	case o.sub == "scale":
		kind = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	}
	var obj map[string]any
	if err := json.Unmarshal(content, &obj); err != nil {
		return nil, kind, err
	}
	if _, ok := obj["apiVersion"]; !ok {
		obj["apiVersion"], obj["kind"] = kind.GroupVersion().String(), kind.Kind
	}
	if o.name != "" && !strings.HasPrefix(o.verb, "delete") {
		m, ok := obj["metadata"].(map[string]any)
		if !ok {
			m = map[string]any{}
			obj["metadata"] = m
		}
		if _, ok := m["name"]; !ok {
			m["name"] = o.name
		}
	}
	content, err := json.Marshal(obj)
	return content, kind, err
}

// decode reads an answer into plain JSON, whatever its format.
func decode(resp *http.Response) (map[string]any, error) {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	if media != runtime.ContentTypeJSON && media != runtime.ContentTypeProtobuf && media != runtime.ContentTypeCBOR {
		return map[string]any{"kind": "Status", "reason": media, "message": strings.TrimSpace(string(body))}, nil
	}
	obj, err := plainJSON(media, body)
	if err != nil {
		return map[string]any{"kind": "Status", "reason": media, "message": strings.TrimSpace(string(body))}, nil //nolint:nilerr // the story tells what came
	}
	return obj, nil
}

func plainJSON(media string, body []byte) (map[string]any, error) {
	if strings.HasPrefix(media, runtime.ContentTypeCBOR) { // not through a type, whatever of it the server has left out
		var obj map[string]any
		err := direct.Unmarshal(body, &obj)
		if err == nil {
			body, err = json.Marshal(obj)
		}
		if err != nil {
			return nil, err
		}
	}
	if media == runtime.ContentTypeProtobuf {
		obj, kind, err := serializerOf(media).Serializer.Decode(body, nil, nil)
		if err != nil {
			return nil, err
		}
		obj.GetObjectKind().SetGroupVersionKind(*kind)
		if body, err = json.Marshal(obj); err != nil {
			return nil, err
		}
	}
	var obj map[string]any
	if err := json.Unmarshal(body, &obj); err != nil {
		return nil, fmt.Errorf("%w in %s", err, body)
	}
	return obj, nil
}

// mayBeGone says that the act may have been the object's last.
func (s *teller) mayBeGone(o order, obj map[string]any) bool {
	if o.name == "" || obj["status"] == metav1.StatusFailure {
		return false
	}
	_, deleting := field(obj, "metadata", "deletionTimestamp").(string)
	return o.verb == "delete" || o.verb != "get" && deleting
}

func (s *teller) isGone(ctx context.Context, o order) bool {
	req, err := s.request(ctx, order{verb: "get", resource: o.resource, name: o.name, ns: o.ns}, "")
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	return resp.StatusCode == http.StatusNotFound
}
