package crd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

func TestAKindIsServedWhenItsDefinitionIsStored(t *testing.T) {
	c := client(t, apptest.Start(t))
	ctx := t.Context()
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			plural, kind := fmt.Sprintf("things%d", i), fmt.Sprintf("Thing%d", i)
			made, err := c.Resource(definitions).Create(ctx, definition(t, plural, kind, open), metav1.CreateOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			if !isTrue(made, "Established") {
				t.Errorf("%s is stored and not established", plural)
			}
			if _, err := c.Resource(resource(plural)).Create(ctx, object(t, kind, "a"), metav1.CreateOptions{}); err != nil {
				t.Errorf("the first request to %s: %v", plural, err)
			}
			list, err := c.Resource(resource(plural)).List(ctx, metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 {
				t.Errorf("list of %s: %v, %v", plural, list, err)
			}
		})
	}
	wg.Wait()
}

func TestOneOfManyGetsAName(t *testing.T) {
	c := client(t, apptest.Start(t))
	const many = 8
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			if _, err := c.Resource(definitions).Create(t.Context(), definition(t, fmt.Sprintf("wants%d", i), "Wanted", open), metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	owners := func(ctx context.Context) (names []string) {
		list, err := c.Resource(definitions).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if isTrue(&list.Items[i], "NamesAccepted") {
				names = append(names, list.Items[i].GetName())
			}
		}
		return names
	}
	for left := many; left > 0; left-- {
		var has string
		eventually(t, "one has the name", func(ctx context.Context) bool {
			names := owners(ctx)
			if len(names) > 1 {
				t.Fatalf("several definitions have the name: %v", names)
			}
			if len(names) == 1 {
				has = names[0]
			}
			return len(names) == 1
		})
		if err := c.Resource(definitions).Delete(t.Context(), has, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it goes", func(ctx context.Context) bool {
			_, err := c.Resource(definitions).Get(ctx, has, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
}

func TestNamesCannotBeTakenThroughStatus(t *testing.T) {
	c := client(t, apptest.Start(t))
	if _, err := c.Resource(definitions).Create(t.Context(), definition(t, "owns", "Own", open), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resource(definitions).Create(t.Context(), definition(t, "thieves", "Thief", open), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	steal := []byte(`{"status": {"acceptedNames": {"kind": "Own"}}}`)
	got, err := c.Resource(definitions).Patch(t.Context(), "thieves.example.org", types.MergePatchType, steal, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if kind, _, _ := unstructured.NestedString(got.Object, "status", "acceptedNames", "kind"); kind != "Thief" {
		t.Errorf("a definition goes by the name %s that it was not given", kind)
	}
}

func TestWatchesTellOfTheLastObjectsAndEnd(t *testing.T) {
	c := client(t, apptest.Start(t))
	ctx := t.Context()
	if _, err := c.Resource(definitions).Create(ctx, definition(t, "leaves", "Leaf", open), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resource(resource("leaves")).Create(ctx, object(t, "Leaf", "a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := c.Resource(resource("leaves")).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func(want watch.EventType) {
		t.Helper()
		select {
		case e, ok := <-w.ResultChan():
			if !ok || e.Type != want {
				t.Fatalf("event %v, want %v", e, want)
			}
		case <-time.After(patience):
			t.Fatalf("no %v", want)
		}
	}
	next(watch.Added)
	label := []byte(`{"metadata": {"labels": {"a": "b"}}}`)
	for _, through := range [][]string{nil, {"status"}} {
		if _, err := c.Resource(definitions).Patch(ctx, "leaves.example.org", types.MergePatchType, label, metav1.PatchOptions{}, through...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Resource(resource("leaves")).Patch(ctx, "a", types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	next(watch.Modified)
	if err := c.Resource(definitions).Delete(ctx, "leaves.example.org", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	next(watch.Deleted)
	select {
	case e, ok := <-w.ResultChan():
		if ok {
			t.Errorf("a watch of a kind that has gone goes on with %v", e)
		}
	case <-time.After(patience):
		t.Error("a watch of a kind that has gone does not end")
	}
}

func TestInformersLiveThroughSchemaChanges(t *testing.T) {
	c := client(t, apptest.Start(t))
	ctx := t.Context()
	if _, err := c.Resource(definitions).Create(ctx, definition(t, "grows", "Grow", open), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(c, 0)
	informer := factory.ForResource(resource("grows")).Informer()
	factory.Start(ctx.Done())
	t.Cleanup(factory.Shutdown)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer does not begin")
	}
	for i := range 4 {
		change := fmt.Appendf(nil, `[{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value":
			{"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string", "default": "v%d"}}}}}}]`, i)
		if _, err := c.Resource(definitions).Patch(ctx, "grows.example.org", types.JSONPatchType, change, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("o%d", i)
		if _, err := c.Resource(resource("grows")).Create(ctx, object(t, "Grow", name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the informer has "+name, func(context.Context) bool {
			_, has, _ := informer.GetStore().GetByKey(name)
			return has
		})
	}
	// The first object was stored under the first default, and keeps it.
	old, err := c.Resource(resource("grows")).Get(ctx, "o0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if b, _, _ := unstructured.NestedString(old.Object, "spec", "b"); b != "v0" {
		t.Errorf("a stored default became %q", b)
	}
}

func TestARestartKeepsKindsObjectsAndNames(t *testing.T) {
	dir := t.TempDir()
	p := apptest.StartOn(t, app.Config{Data: dir})
	c := client(t, p)
	if _, err := c.Resource(definitions).Create(t.Context(), definition(t, "keeps", "Keep", open), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want, err := c.Resource(resource("keeps")).Create(t.Context(), object(t, "Keep", "a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Stop()
	c = client(t, apptest.StartOn(t, app.Config{Data: dir}))
	got, err := c.Resource(resource("keeps")).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetUID() != want.GetUID() || got.GetResourceVersion() != want.GetResourceVersion() {
		t.Errorf("after a restart %v, want %v", got, want)
	}
	other, err := c.Resource(definitions).Create(t.Context(), definition(t, "others", "Keep", open), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if isTrue(other, "NamesAccepted") {
		t.Error("after a restart a name is given twice")
	}
}

func TestNoObjectOutlivesItsKind(t *testing.T) {
	c := client(t, apptest.Start(t))
	ctx := t.Context()
	for round := range 5 {
		if _, err := c.Resource(definitions).Create(ctx, definition(t, "ghosts", "Ghost", open), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if list, err := c.Resource(resource("ghosts")).List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
			t.Fatalf("round %d begins with %v, %v", round, list, err)
		}
		var wg sync.WaitGroup
		var stop atomic.Bool
		var mu sync.Mutex // guards last
		var last int64    // the revision of the last object
		note := func(rev int64) {
			mu.Lock()
			defer mu.Unlock()
			last = max(last, rev)
		}
		began := make(chan struct{}, 4)
		for w := range 4 {
			wg.Go(func() {
				for i := 0; !stop.Load(); i++ {
					made, err := c.Resource(resource("ghosts")).Create(ctx, object(t, "Ghost", fmt.Sprintf("g%d-%d", w, i)), metav1.CreateOptions{})
					if err == nil { // it is refused at some time
						note(revision(t, made))
					}
					if i == 0 {
						began <- struct{}{}
					}
				}
			})
		}
		for range 4 {
			<-began
		}
		w, err := c.Resource(definitions).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=ghosts.example.org"})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Resource(definitions).Delete(ctx, "ghosts.example.org", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		leaves := leaving(t, w)
		eventually(t, "the definition goes", func(ctx context.Context) bool {
			_, err := c.Resource(definitions).Get(ctx, "ghosts.example.org", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		stop.Store(true)
		wg.Wait()
		if last > leaves {
			t.Errorf("an object was made at revision %d of a kind that leaves since %d", last, leaves)
		}
	}
}

// leaving is the revision at which the removal of a watched definition began.
func leaving(t *testing.T, w watch.Interface) int64 {
	t.Helper()
	defer w.Stop()
	for {
		select {
		case e := <-w.ResultChan():
			if u, ok := e.Object.(*unstructured.Unstructured); !ok {
				t.Fatalf("event %v", e)
			} else if u.GetDeletionTimestamp() != nil {
				return revision(t, u)
			}
		case <-time.After(patience):
			t.Fatal("the removal does not begin")
		}
	}
}

// Every object is stored by the rules that hold at its own revision.
func TestWritesGoByTheDefinitionAsItIs(t *testing.T) {
	c := client(t, apptest.Start(t))
	ctx := t.Context()
	schema := func(i int) string {
		return fmt.Sprintf(`{"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string", "default": "v%d"}}}}}`, i)
	}
	made, err := c.Resource(definitions).Create(ctx, definition(t, "rules", "Rule", schema(0)), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	since := []int64{revision(t, made)} // of each schema, by number
	type written struct {
		rules string
		rev   int64
	}
	var mu sync.Mutex // guards all
	var all []written
	var wg sync.WaitGroup
	var stop atomic.Bool
	for w := range 3 {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				u, err := c.Resource(resource("rules")).Create(ctx, object(t, "Rule", fmt.Sprintf("r%d-%d", w, i)), metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				b, _, _ := unstructured.NestedString(u.Object, "spec", "b")
				mu.Lock()
				all = append(all, written{b, revision(t, u)})
				mu.Unlock()
			}
		})
	}
	const changes = 40
	for i := 1; i <= changes; i++ {
		change := fmt.Appendf(nil, `[{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value": %s}]`, schema(i))
		u, err := c.Resource(definitions).Patch(ctx, "rules.example.org", types.JSONPatchType, change, metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		since = append(since, revision(t, u))
	}
	stop.Store(true)
	wg.Wait()
	for _, w := range all {
		i := len(since) - 1
		for since[i] > w.rev {
			i--
		}
		if want := fmt.Sprintf("v%d", i); w.rules != want {
			t.Errorf("revision %d was written by the rules %s, want %s", w.rev, w.rules, want)
		}
	}
	t.Logf("%d objects under %d schemas", len(all), len(since))
}

func TestBadSchemasAreRefusedPrecisely(t *testing.T) {
	c := client(t, apptest.Start(t))
	tests := []struct {
		name, schema, want string
	}{
		{"exponential rule", `{type: object, properties: {a: {type: array, items: {type: array, items: {type: string}}, x-kubernetes-validations: [{rule: "self.all(x, self.all(y, self.all(z, x.all(i, y.all(j, z.all(k, i + j == k))))))"}]}}}`, "estimated rule cost"},
		{"rule that is no expression", `{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: "` + strings.Repeat("(", 500) + `"}]}}}`, "compilation failed"},
		{"rule of great size", `{type: object, properties: {a: {type: integer, x-kubernetes-validations: [{rule: "` + strings.Repeat("self + ", 20000) + `self > 0"}]}}}`, ""},
		{"pattern that cannot be bounded", `{type: object, properties: {a: {type: string, pattern: "((a{1000}){1000}){1000}"}}}`, "invalid repeat count"},
		{"choices inside choices", `{type: object, properties: {a: ` + strings.Repeat("{type: object, properties: {b: {type: string}}, oneOf: [", 200) + "{}" + strings.Repeat("]}", 200) + `}}`, "Forbidden"},
		{"more than a body may have", `{type: object, description: "` + strings.Repeat("x", 4<<20) + `"}`, "limit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := c.Resource(definitions).Create(t.Context(), definition(t, "bads", "Bad", tt.schema), metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %.300v, want %q", err, tt.want)
			}
			if _, ok := err.(apierrors.APIStatus); !ok {
				t.Errorf("no Status: %.300v", err)
			}
		})
	}
	for kind, schema := range map[string]string{
		"Large":  `{type: object, x-kubernetes-preserve-unknown-fields: true, description: "` + strings.Repeat("x", 1<<20) + `"}`,
		"Wide":   wide(5_000),
		"Torn":   `{type: object, properties: {spec: {type: object, properties: {a: {type: string, pattern: "^(([a-z])+.)+[A-Z]([a-z])+$|^(a+)+text|text$"}}}}}`,
		"Choosy": `{type: object, properties: {spec: {type: object, properties: {a: {type: string}}, anyOf: [` + strings.Repeat("{properties: {a: {pattern: x}}, required: [a]}, ", 500) + `{required: [a]}]}}}`,
		"Deep":   strings.Repeat("{type: object, properties: {a: ", 4000) + "{type: string}" + strings.Repeat("}}", 4000),
	} {
		plural := strings.ToLower(kind) + "s"
		if _, err := c.Resource(definitions).Create(t.Context(), definition(t, plural, kind, schema), metav1.CreateOptions{}); err != nil {
			t.Errorf("%s: %.300v", kind, err)
		}
		if _, err := c.Resource(resource(plural)).Create(t.Context(), object(t, kind, "a"), metav1.CreateOptions{}); err != nil {
			t.Errorf("an object of %s: %.300v", kind, err)
		}
	}
}

// wide is a schema of many properties.
func wide(n int) string {
	var b strings.Builder
	b.WriteString("{type: object, properties: {spec: {type: object, properties: {a: {type: string}")
	for i := range n {
		fmt.Fprintf(&b, ", p%d: {type: string, maxLength: 10}", i)
	}
	b.WriteString("}}}}")
	return b.String()
}

// What a rule costs is bounded when it is asked, too; upstream's words tell.
func TestRulesRunOutOfBudget(t *testing.T) {
	c := client(t, apptest.Start(t))
	// Comparing long strings costs much of the budget and little time.
	const schema = `{type: object, properties: {spec: {type: object, properties: {a: {type: string}, list: {type: array, maxItems: 45, items: {type: string, maxLength: 10000},
		x-kubernetes-validations: [{rule: "self.all(x, self.all(y, x == y))"}]}}}}}`
	if _, err := c.Resource(definitions).Create(t.Context(), definition(t, "costs", "Cost", schema), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	u := object(t, "Cost", "a")
	many := slices.Repeat([]any{strings.Repeat("x", 10_000)}, 45)
	_ = unstructured.SetNestedSlice(u.Object, many, "spec", "list") // it has a spec
	_, err := c.Resource(resource("costs")).Create(t.Context(), u, metav1.CreateOptions{})
	if want := "call cost exceeds limit"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %.400v, want %q", err, want)
	}
	if _, err := c.Resource(resource("costs")).Create(t.Context(), object(t, "Cost", "b"), metav1.CreateOptions{}); err != nil {
		t.Errorf("the next object: %v", err)
	}
}

func TestProtobufIsRefusedWithAStatus(t *testing.T) {
	p := apptest.Start(t)
	c := client(t, p)
	if _, err := c.Resource(definitions).Create(t.Context(), definition(t, "texts", "Text", open), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h, err := rest.HTTPClientFor(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"", "k8s", "k8s\x00", "k8s\x00\x0a\x00", "no protobuf at all", "k8s\x00\x0a\x13\x0a\x0eexample.org/v1\x12\x04Text\x12\x00"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+"/apis/example.org/v1/texts", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/vnd.kubernetes.protobuf")
		resp, err := h.Do(req)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		var status metav1.Status
		err = json.NewDecoder(resp.Body).Decode(&status)
		_ = resp.Body.Close() // it was read
		if err != nil || resp.StatusCode != http.StatusBadRequest || status.Kind != "Status" {
			t.Errorf("%q: %d, %v, %v", body, resp.StatusCode, status, err)
		}
	}
}
