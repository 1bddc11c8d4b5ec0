package initializers_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// speech is a kind, and the representation that it is spoken of in.
type speech struct {
	name string
	// group and resource are what rules name.
	group, resource string
	kind, version   string
	spec            object // of an object
	// more is the spec of an object that an initializer has added something to,
	// and size is how much there is in an object: one, or two once something was
	// added.
	more object
	size func(object) int
	// strategic says that the kind takes strategic merge patches.
	strategic bool
	protobuf  bool
}

// What rows name speeches by to say that they hold nothing for them.
const (
	podsJSON     = "pods in JSON"
	podsProtobuf = "pods in protobuf"
	custom       = "a custom kind in JSON"
)

var speeches = []speech{inJSON(podsJSON), inProtobuf(podsProtobuf), {
	name: custom, group: "example.org", resource: "widgets", kind: "Widget", version: "example.org/v1",
	spec: object{"size": 1}, more: object{"size": 2}, size: sizeOfWidget,
}}

func inJSON(name string) speech {
	return speech{name: name, resource: "pods", kind: "Pod", version: "v1", spec: podSpec, more: sidecarSpec, size: func(o object) int { return len(containers(o)) }, strategic: true}
}

func inProtobuf(name string) speech {
	s := inJSON(name)
	s.protobuf = true
	return s
}

var (
	podSpec     = object{"containers": []any{object{"name": "app", "image": "app:1"}}}
	sidecarSpec = object{"containers": []any{object{"name": "app", "image": "app:1"}, object{"name": "side", "image": "side:1"}}}
)

func sizeOfWidget(o object) int {
	spec, _ := o["spec"].(object)
	n, _ := spec["size"].(float64)
	return int(n)
}

const widgets = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.org"},
"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// path is that of the kind's objects in the world's namespace.
func (w *world) path() string { return w.pathIn(w.namespace) }

func (w *world) pathIn(namespace string) string {
	root := "/apis/" + w.version
	if w.version == "v1" {
		root = "/api/v1"
	}
	return root + "/namespaces/" + namespace + "/" + w.resource
}

// groupResource is what messages call the kind.
func (w *world) groupResource() string {
	if w.group == "" {
		return w.resource
	}
	return w.resource + "." + w.group
}

// thing is an object of the kind. initializers may be nil: then the field is
// not there.
func (w *world) thing(name string, initializers any) object {
	metadata := object{"name": name}
	if initializers != nil {
		metadata["initializers"] = initializers
	}
	o := object{"apiVersion": w.version, "kind": w.kind, "metadata": metadata}
	if w.spec != nil {
		o["spec"] = w.spec
	}
	return o
}

// pending is a list of initializers.
func pending(names ...string) object {
	list := []any{}
	for _, name := range names {
		list = append(list, object{"name": name})
	}
	return object{"pending": list}
}

// pendingOf are the names that an object waits for; nil when it has no such
// field.
func pendingOf(obj object) []string {
	metadata, _ := obj["metadata"].(object)
	field, _ := metadata["initializers"].(object)
	if field == nil {
		return nil
	}
	names := []string{}
	entries, _ := field["pending"].([]any)
	for _, e := range entries {
		entry, _ := e.(object)
		name, _ := entry["name"].(string)
		names = append(names, name)
	}
	return names
}

// containers are the names of a pod's containers.
func containers(pod object) []string {
	var names []string
	spec, _ := pod["spec"].(object)
	all, _ := spec["containers"].([]any)
	for _, c := range all {
		names = append(names, c.(object)["name"].(string))
	}
	return names
}

// create creates an object and waits for the answer.
func (w *world) create(name string, initializers any, query string) answer {
	w.t.Helper()
	return w.write("POST", w.path()+query, w.thing(name, initializers))
}

// creating creates an object; its answer comes when it comes, which may be late on a
// busy machine.
func (w *world) creating(name string, initializers any, query string) <-chan answer {
	if query == "" {
		query = "?timeout=55s"
	}
	return soon(func() answer { return w.create(name, initializers, query) })
}

// soon has something done beside the test.
func soon(do func() answer) <-chan answer {
	got := make(chan answer, 1)
	go func() { got <- do() }()
	return got
}

// waits returns once the object is stored, and what it waits for.
func (w *world) waits(name string) []string {
	w.t.Helper()
	var got answer
	eventually(w.t, name+" is stored", func() bool { got = w.get(name); return got.code == http.StatusOK })
	return pendingOf(got.body)
}

func (w *world) get(name string) answer {
	w.t.Helper()
	return w.read(w.path() + "/" + name)
}

// put replaces object x by what a change makes of it.
func (w *world) put(change func(object)) answer {
	w.t.Helper()
	have := w.get("x").body
	change(have)
	return w.write("PUT", w.path()+"/x", have)
}

// withoutField is what clients make of an object that do not know the field.
func withoutField(obj object) { delete(obj["metadata"].(object), "initializers") }

// inject adds something to an object, as the last of its initializers does.
func (w *world) inject(name string) {
	w.t.Helper()
	patch := object{"metadata": object{"initializers": nil}, "spec": w.more}
	if got := w.merge(name, string(encode(w.t, patch))); got.code != http.StatusOK {
		w.t.Fatalf("the write itself: %v", got)
	}
}

// list are the names of the objects that a list has.
func (w *world) list(query string) []string {
	w.t.Helper()
	names := []string{}
	items, _ := w.read(w.path() + query).body["items"].([]any)
	for _, i := range items {
		metadata, _ := i.(object)["metadata"].(object)
		name, _ := metadata["name"].(string)
		names = append(names, name)
	}
	return names
}

// all is for lists and creates that have in them what waits.
const all = "?includeUninitialized=true"

// event is one of a watch.
type event struct {
	kind   string
	object object
}

// follow watches the kind in the representation of the world until the test
// ends.
func (w *world) follow(from, query string) <-chan event {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.ctx, http.MethodGet, w.plane.URL+w.path()+"?watch=true&resourceVersion="+from+"&"+query, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Accept", jsonType)
	next := nextInJSON
	if w.protobuf {
		r.Header.Set("Accept", protobufType+";stream=watch")
		next = nextInProtobuf
	}
	response, err := w.http.Do(r) //nolint:bodyclose // by who reads it
	if err != nil {
		w.t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		w.t.Fatalf("watch: %s", response.Status)
	}
	events := make(chan event, 100)
	go func() {
		defer func() { _ = response.Body.Close() }()
		for in := bufio.NewReader(response.Body); ; {
			e, err := next(w.t, in)
			if err != nil {
				return // the test has ended
			}
			events <- e
		}
	}()
	return events
}

// nextInJSON is the next event of a stream in JSON.
func nextInJSON(t failer, in *bufio.Reader) (event, error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return event{}, err
	}
	var e struct {
		Type   string
		Object object
	}
	if err := json.Unmarshal(line, &e); err != nil {
		t.Errorf("event %q: %v", line, err)
		return event{}, io.EOF
	}
	return event{e.Type, e.Object}, nil
}

// failer is a test as far as readers of streams need one.
type failer interface {
	Errorf(format string, args ...any)
}

// watch follows the kind from now on; what it returns waits for some events and
// tells them.
func (w *world) watch(query string) func(n int) []string {
	w.t.Helper()
	from, _ := w.read(w.path()).metadata()["resourceVersion"].(string)
	events := w.follow(from, query)
	tell := func(e event) string {
		return fmt.Sprintf("%s %v", e.kind, e.object["metadata"].(object)["name"])
	}
	return func(n int) []string {
		var got []string
		for len(got) < n {
			select {
			case e := <-events:
				got = append(got, tell(e))
			case <-time.After(2 * time.Minute):
				return got
			}
		}
		select { // there are no more
		case e := <-events:
			got = append(got, tell(e))
		case <-time.After(50 * time.Millisecond):
		}
		return got
	}
}
