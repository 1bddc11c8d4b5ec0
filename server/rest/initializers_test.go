package rest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/app/apptest"
)

// wire sends requests as they are: today's clients do not know the field.
type wire struct {
	t    *testing.T
	http *http.Client
	host string
}

func newWire(t *testing.T) *wire {
	t.Helper()
	p := apptest.Start(t)
	client, err := rest.HTTPClientFor(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	return &wire{t, client, p.URL}
}

// open sends a request; the caller closes the body.
func (w *wire) open(method, path, media, accept string, body []byte) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.host+path, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", media)
	req.Header.Set("Accept", accept)
	resp, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp
}

// do sends a request that is to succeed, and returns the answer.
func (w *wire) do(method, path, media, accept string, body []byte) []byte {
	w.t.Helper()
	resp := w.open(method, path, media, accept, body)
	defer resp.Body.Close() //nolint:errcheck // it was read
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if resp.StatusCode > 299 {
		w.t.Fatalf("%s %s: %s: %s", method, path, resp.Status, b)
	}
	return b
}

func waiting(names ...string) *initializers.Initializers {
	i := &initializers.Initializers{}
	for _, name := range names {
		i.Pending = append(i.Pending, initializers.Initializer{Name: name})
	}
	return i
}

const (
	secrets = "/api/v1/namespaces/default/secrets"
	asking  = "includeUninitialized=true"
)

// Protobuf clients that know field 16 read and write it as others do.
func TestInitializersInProtobuf(t *testing.T) {
	w := newWire(t)
	speaks := codec.New(legacyscheme.Scheme)
	info, err := speaks.Media(codec.Protobuf)
	if err != nil {
		t.Fatal(err)
	}
	kind := corev1.SchemeGroupVersion.WithKind("Secret")
	write := func(s *corev1.Secret) []byte {
		b, err := speaks.Encode(info, s, corev1.SchemeGroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	read := func(b []byte) *initializers.Initializers {
		t.Helper()
		obj, _, err := info.Serializer.Decode(b, &kind, nil)
		if err != nil {
			t.Fatal(err)
		}
		i, err := initializers.Of(obj)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	same := func(what string, want, got *initializers.Initializers) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	stream := w.open(http.MethodGet, secrets+"?watch=true&"+asking, codec.JSON, codec.Protobuf+";stream=watch", nil)
	defer stream.Body.Close() //nolint:errcheck // it is only read
	frames := info.StreamSerializer.NewFrameReader(stream.Body)
	event := func() (string, []byte) {
		t.Helper()
		frame := make([]byte, 64<<10)
		n, err := frames.Read(frame)
		if err != nil {
			t.Fatal(err)
		}
		var e metav1.WatchEvent
		if _, _, err := info.StreamSerializer.Decode(frame[:n], nil, &e); err != nil {
			t.Fatal(err)
		}
		return e.Type, e.Object.Raw
	}

	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	two := waiting("a.example.org", "b.example.org")
	if err := initializers.Set(s, two); err != nil {
		t.Fatal(err)
	}
	same("created", two, read(w.do(http.MethodPost, secrets+"?"+asking, codec.Protobuf, codec.Protobuf, write(s))))
	same("got", two, read(w.do(http.MethodGet, secrets+"/x", codec.JSON, codec.Protobuf, nil)))
	if name, obj := event(); name != "ADDED" {
		t.Errorf("event is %s", name)
	} else {
		same("event", two, read(obj))
	}
	if list := w.do(http.MethodGet, secrets, codec.JSON, codec.Protobuf, nil); bytes.Contains(list, []byte("a.example.org")) {
		t.Errorf("it is in the list: %q", list)
	}
	list := w.do(http.MethodGet, secrets+"?"+asking, codec.JSON, codec.Protobuf, nil)
	if !bytes.Contains(list, []byte("\x82\x01\x22\x0a\x0f\x0a\x0da.example.org\x0a\x0f\x0a\x0db.example.org")) {
		t.Errorf("it is not in the list: %q", list)
	}
	as := codec.Protobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	if b := w.do(http.MethodGet, secrets+"/x", codec.JSON, as, nil); !bytes.Contains(b, []byte("b.example.org")) {
		t.Errorf("it is not in the metadata: %q", b)
	}

	one := waiting("b.example.org")
	if err := initializers.Set(s, one); err != nil {
		t.Fatal(err)
	}
	same("updated", one, read(w.do(http.MethodPut, secrets+"/x", codec.Protobuf, codec.Protobuf, write(s))))
	if err := initializers.Set(s, &initializers.Initializers{}); err != nil {
		t.Fatal(err)
	}
	same("done", nil, read(w.do(http.MethodPut, secrets+"/x", codec.Protobuf, codec.Protobuf, write(s))))
	for _, want := range []*initializers.Initializers{one, nil} {
		name, obj := event()
		if name != "MODIFIED" {
			t.Errorf("event is %s", name)
		}
		same("event", want, read(obj))
	}
}

func TestSubresourcesLeaveInitializersAlone(t *testing.T) {
	w := newWire(t)
	const path = "/apis/apps/v1/namespaces/default/deployments"
	const body = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"%s},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}},"status":{"replicas":%d}}`
	w.do(http.MethodPost, path+"?"+asking, codec.JSON, codec.JSON, fmt.Appendf(nil, body, `,"initializers":{"pending":[{"name":"a.example.org"}]}`, 0))
	for name, b := range map[string][]byte{
		"status, put without": w.do(http.MethodPut, path+"/x/status", codec.JSON, codec.JSON, fmt.Appendf(nil, body, "", 1)),
		"status, put with":    w.do(http.MethodPut, path+"/x/status", codec.JSON, codec.JSON, fmt.Appendf(nil, body, `,"initializers":null`, 2)),
		"status, patched":     w.do(http.MethodPatch, path+"/x/status", "application/merge-patch+json", codec.JSON, []byte(`{"metadata":{"initializers":null},"status":{"replicas":3}}`)),
	} {
		if !strings.Contains(string(b), `"initializers":{"pending":[{"name":"a.example.org"}]}`) {
			t.Errorf("%s: %s", name, b)
		}
	}
}

// watcher keeps what a watch tells, by name: the revision of what is there.
type watcher struct {
	mu     sync.Mutex
	wrong  []string
	have   map[string]string
	hidden bool // objects that wait may be told of
	done   chan struct{}
}

// follow reads a watch until the object zz-last is told of.
func (w *wire) follow(query string, hidden bool) *watcher {
	resp := w.open(http.MethodGet, secrets+"?watch=true"+query, codec.JSON, codec.JSON, nil) //nolint:bodyclose // below
	f := &watcher{have: map[string]string{}, hidden: hidden, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		defer resp.Body.Close() //nolint:errcheck // it is only read
		lines := json.NewDecoder(resp.Body)
		for {
			var e struct {
				Type   string
				Object struct {
					Metadata struct {
						Name, ResourceVersion string
						Initializers          *initializers.Initializers
					}
				}
			}
			if lines.Decode(&e) != nil {
				return
			}
			f.see(e.Type, e.Object.Metadata.Name, e.Object.Metadata.ResourceVersion, e.Object.Metadata.Initializers != nil)
			if e.Object.Metadata.Name == "zz-last" {
				return
			}
		}
	}()
	return f
}

func (f *watcher) see(kind, name, rev string, waits bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, known := f.have[name]
	if waits && !f.hidden || known == (kind == "ADDED") {
		f.wrong = append(f.wrong, fmt.Sprintf("%s %s at %s, waits: %t, known: %t", kind, name, rev, waits, known))
	}
	if kind == "DELETED" {
		delete(f.have, name)
	} else {
		f.have[name] = rev
	}
}

// Objects that wait, go on to wait, wait no more or go, all at once and by
// chance: who does not ask sees each come, change and go in order and nothing
// of what waits, and every watch ends where a list does.
func TestWatchersAgreeWithLists(t *testing.T) {
	w := newWire(t)
	const writers, steps = 4, 60
	plain, asks := w.follow("", false), w.follow("&"+asking, true)
	chosen := w.follow("&labelSelector=half%3D1", false)
	var all sync.WaitGroup
	for n := range writers {
		all.Go(func() { w.write(rand.New(rand.NewSource(int64(n))), n, steps) }) //nolint:gosec // the same every time
	}
	all.Wait()
	w.do(http.MethodPost, secrets, codec.JSON, codec.JSON, []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"zz-last","labels":{"half":"1"}}}`))
	late := w.follow("&resourceVersion=1", false)
	initial := w.follow("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", false)
	for name, c := range map[string]struct {
		*watcher
		query string
	}{
		"plain": {plain, ""}, "asking": {asks, asking}, "labels": {chosen, "labelSelector=half%3D1"}, "from the past": {late, ""}, "initial": {initial, ""},
	} {
		<-c.done
		var list struct {
			Items []struct {
				Metadata struct{ Name, ResourceVersion string }
			}
		}
		if err := json.Unmarshal(w.do(http.MethodGet, secrets+"?"+c.query, codec.JSON, codec.JSON, nil), &list); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for _, item := range list.Items {
			want[item.Metadata.Name] = item.Metadata.ResourceVersion
		}
		if diff := cmp.Diff(want, c.have); diff != "" {
			t.Errorf("%s: list, watch:\n%s", name, diff)
		}
		for _, wrong := range c.wrong {
			t.Errorf("%s: %s", name, wrong)
		}
	}
	if plain, asks := len(plain.have), len(asks.have); plain == 0 || plain >= asks {
		t.Errorf("%d are seen, of %d", plain, asks)
	}
}

// write makes, changes, finishes and removes objects of its own.
func (w *wire) write(by *rand.Rand, n, steps int) {
	mine := map[string]int{} // how many each waits for
	for step := range steps {
		names := slices.Sorted(maps.Keys(mine))
		if len(names) == 0 || by.Intn(3) == 0 {
			name, waits := fmt.Sprintf("s-%d-%d", n, step), by.Intn(3)
			field := ""
			if waits > 0 {
				field = fmt.Sprintf(`,"initializers":{"pending":[%s]}`, strings.TrimSuffix(strings.Repeat(`{"name":"a.example.org"},`, waits), ","))
			}
			w.do(http.MethodPost, secrets+"?"+asking, codec.JSON, codec.JSON,
				fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q,"labels":{"half":"%d"}%s}}`, name, by.Intn(2), field))
			mine[name] = waits
			continue
		}
		name := names[by.Intn(len(names))]
		switch what := by.Intn(4); {
		case what == 0:
			w.do(http.MethodDelete, secrets+"/"+name, codec.JSON, codec.JSON, nil)
			delete(mine, name)
		case mine[name] > 0 && what == 1:
			w.do(http.MethodPatch, secrets+"/"+name, "application/merge-patch+json", codec.JSON, []byte(`{"metadata":{"initializers":null}}`))
			mine[name] = 0
		default:
			w.do(http.MethodPatch, secrets+"/"+name, "application/merge-patch+json", codec.JSON, fmt.Appendf(nil, `{"metadata":{"annotations":{"step":"%d"}}}`, step))
		}
	}
}
