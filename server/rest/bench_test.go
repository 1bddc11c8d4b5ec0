package rest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/server/rest"
	"setpoint.dev/setpoint/server/route"
	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/watch"
)

// discard is a client that takes everything and keeps nothing.
type discard struct {
	header http.Header
	code   int
	bytes  int
	begun  chan struct{} // closed when the answer begins; may be nil
	wrote  func()
}

func (d *discard) Header() http.Header { return d.header }

func (d *discard) WriteHeader(code int) {
	if d.code = code; d.begun != nil {
		close(d.begun)
	}
}

func (d *discard) Flush() {}

func (d *discard) Write(b []byte) (int, error) {
	d.bytes += len(b)
	if d.wrote != nil {
		d.wrote()
	}
	return len(b), nil
}

// direct is the request path without a network: the handler of a store in
// memory.
type direct struct {
	*rest.Handler
	tb testing.TB
}

func newDirect(tb testing.TB) *direct {
	tb.Helper()
	return newDirectOn(tb, store.Config{}, nil)
}

func newDirectOn(tb testing.TB, cfg store.Config, admit admission.Interface) *direct {
	tb.Helper()
	s, err := store.Open(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	hub := watch.New(s, watch.Config{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- hub.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		<-ended
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	list := kinds.Builtin(kinds.Deps{})
	return &direct{rest.New(rest.Config{Store: s, Hub: hub, Kinds: func() *kinds.List { return list }, Admission: admit}), tb}
}

func (d *direct) request(ctx context.Context, method, path, accept, body string) *http.Request {
	d.tb.Helper()
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	r.Header.Set("Accept", accept)
	r.Header.Set("Content-Type", "application/json")
	what, err := route.Resolve(r)
	if err != nil {
		d.tb.Fatal(err)
	}
	return r.WithContext(request.WithUser(route.With(r.Context(), what), &user.DefaultInfo{Name: "bench"}))
}

func (d *direct) create(name string, size int) {
	d.tb.Helper()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"x":%q}}`, name, strings.Repeat("x", size))
	w := &discard{header: http.Header{}}
	d.ServeHTTP(w, d.request(d.tb.Context(), http.MethodPost, "/api/v1/namespaces/default/configmaps", "application/json", body))
	if w.code != http.StatusCreated {
		d.tb.Fatalf("create: %d", w.code)
	}
}

// BenchmarkList shows what a list costs per object, by size and format.
func BenchmarkList(b *testing.B) {
	const objects = 1000
	for _, size := range []int{1 << 10, 16 << 10} {
		d := newDirect(b)
		for i := range objects {
			d.create(fmt.Sprintf("m-%04d", i), size)
		}
		for _, r := range codec.Representations {
			if r.Form == nil {
				continue
			}
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, r.MediaType[strings.LastIndexAny(r.MediaType, "./")+1:]), func(b *testing.B) {
				r := d.request(b.Context(), http.MethodGet, "/api/v1/configmaps", r.MediaType, "")
				d.ServeHTTP(&discard{header: http.Header{}}, r) // parts are made at the first
				b.ReportAllocs()
				for b.Loop() {
					d.ServeHTTP(&discard{header: http.Header{}}, r)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/objects, "ns/object")
			})
		}
	}
}

// What a list costs in memory does not depend on how many objects there are,
// once their parts are made: a handful of allocations, in every form.
func TestListsAllocateNothingPerObject(t *testing.T) {
	const objects = 300
	d := newDirect(t)
	for i := range objects {
		d.create(fmt.Sprintf("m-%04d", i), 1<<10)
	}
	for _, r := range codec.Representations {
		if r.Form == nil {
			continue
		}
		request := d.request(t.Context(), http.MethodGet, "/api/v1/configmaps", r.MediaType, "")
		list := func() {
			w := &discard{header: http.Header{}}
			d.ServeHTTP(w, request)
			if w.code != http.StatusOK || w.bytes < objects<<10 {
				t.Fatalf("%s: %d with %d bytes", r.MediaType, w.code, w.bytes)
			}
		}
		list()
		if n := testing.AllocsPerRun(20, list); n >= objects/2 {
			t.Errorf("%s: %v allocations for %d objects", r.MediaType, n, objects)
		}
	}
}

// BenchmarkGet shows what a GET costs, by size and format.
func BenchmarkGet(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10} {
		d := newDirect(b)
		d.create("one", size)
		for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, media[strings.LastIndexByte(media, '.')+1:]), func(b *testing.B) {
				r := d.request(b.Context(), http.MethodGet, "/api/v1/namespaces/default/configmaps/one", media, "")
				d.ServeHTTP(&discard{header: http.Header{}}, r) // protobuf is made at the first
				b.ReportAllocs()
				for b.Loop() {
					d.ServeHTTP(&discard{header: http.Header{}}, r)
				}
			})
		}
	}
}

// audience is a number of watches of config maps that get every change one by
// one.
type audience struct {
	*direct
	watchers  int
	delivered sync.WaitGroup // of one change
	change    store.Op
	end       func()
}

// gather begins the watches, of one object of about the given size.
func gather(b *testing.B, size, watchers int, media string) *audience {
	b.Helper()
	a := &audience{direct: newDirect(b), watchers: watchers}
	a.create("one", size)
	sn, err := a.Store.Snapshot(store.Main)
	if err != nil {
		b.Fatal(err)
	}
	o, err := sn.Get(b.Context(), "configmaps", "default/one")
	if err != nil || o == nil {
		b.Fatalf("%v %v", o, err)
	}
	a.change = store.Op{Plane: store.Main, Resource: "configmaps", Key: o.Key(), If: store.Any, Value: o.Value(), RevAt: -1}
	ctx, cancel := context.WithCancel(b.Context())
	var watching sync.WaitGroup
	for range watchers {
		begun := make(chan struct{})
		w := &discard{header: http.Header{}, begun: begun, wrote: a.delivered.Done}
		r := a.request(ctx, http.MethodGet, fmt.Sprintf("/api/v1/configmaps?watch=1&resourceVersion=%d", sn.Rev()), media, "")
		watching.Go(func() { a.ServeHTTP(w, r) })
		<-begun
	}
	a.end = func() {
		cancel()
		watching.Wait()
	}
	return a
}

// tell makes a change and waits until everybody has it.
func (a *audience) tell() {
	a.delivered.Add(a.watchers)
	if _, err := a.Store.Commit(context.Background(), store.Provenance{}, a.change); err != nil {
		a.tb.Fatal(err)
	}
	a.delivered.Wait()
}

// cost is what n changes allocate, each.
func (a *audience) cost(n int) (allocs, bytes float64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		a.tell()
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(n), float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
}

// BenchmarkWatch shows what a change costs that one watch or a hundred hear of,
// each by itself, by size and format. What is reported per delivery is what
// one more watch adds: committing the change, and making protobuf of it once,
// is left out.
func BenchmarkWatch(b *testing.B) {
	for _, size := range []int{2 << 10, 64 << 10} {
		for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			one := gather(b, size, 1, media)
			one.tell()
			allocs, bytes := one.cost(500)
			one.end()
			for _, watchers := range []int{1, 100} {
				b.Run(fmt.Sprintf("%dKiB/%s/%d", size>>10, media[strings.LastIndexByte(media, '.')+1:], watchers), func(b *testing.B) {
					a := gather(b, size, watchers, media)
					defer a.end()
					a.tell()
					b.ReportAllocs()
					for b.Loop() {
						a.tell()
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(watchers), "ns/delivery")
					if watchers > 1 {
						allAllocs, allBytes := a.cost(500)
						b.ReportMetric((allAllocs-allocs)/float64(watchers-1), "allocs/delivery")
						b.ReportMetric((allBytes-bytes)/float64(watchers-1), "B/delivery")
					}
				})
			}
		}
	}
}
