package crd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// groups are what /apis lists, in order.
func groups(t *testing.T, p *apptest.Plane) (names []string) {
	t.Helper()
	h, err := rest.HTTPClientFor(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL+"/apis", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := h.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read
	var list metav1.APIGroupList
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range list.Groups {
		names = append(names, g.Name)
	}
	return names
}

// inGroup is a definition in a group of its own.
func inGroup(t *testing.T, group, plural, kind string) *unstructured.Unstructured {
	t.Helper()
	u := definition(t, plural, kind, open)
	u.SetName(plural + "." + group)
	_ = unstructured.SetNestedField(u.Object, group, "spec", "group") // it has a spec
	return u
}

func TestCustomGroupsHaveAPIServices(t *testing.T) {
	p := apptest.Start(t)
	c := client(t, p)
	ctx := t.Context()
	create := func(u *unstructured.Unstructured) {
		t.Helper()
		if _, err := c.Resource(definitions).Create(ctx, u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	has := func(ctx context.Context, name string) bool {
		t.Helper()
		_, err := c.Resource(apiServices).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	remove := func(name string) {
		t.Helper()
		if err := c.Resource(definitions).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" goes", func(ctx context.Context) bool {
			_, err := c.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	create(inGroup(t, "two.example.org", "firsts", "First"))
	got, err := c.Resource(apiServices).Get(ctx, "v1.two.example.org", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetLabels()["kube-aggregator.kubernetes.io/automanaged"] != "true" || !isTrue(got, "Available") {
		t.Errorf("not what the server makes: %v", got)
	}
	want := map[string]any{"group": "two.example.org", "version": "v1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(100)}
	if diff := cmp.Diff(want, got.Object["spec"]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	create(inGroup(t, "one.example.org", "thirds", "Third"))
	all := groups(t, p)
	if diff := cmp.Diff([]string{"one.example.org", "two.example.org"}, all[len(all)-2:]); diff != "" {
		t.Errorf("/apis ends with (-want +got)\n%s", diff)
	}

	t.Run("as long as one definition serves the version", func(t *testing.T) {
		create(inGroup(t, "two.example.org", "seconds", "Second"))
		remove("firsts.two.example.org")
		if !has(ctx, "v1.two.example.org") {
			t.Error("the APIService is gone before the last definition")
		}
		remove("seconds.two.example.org")
		if slices.Contains(groups(t, p), "two.example.org") {
			t.Error("a group without kinds is listed")
		}
		eventually(t, "the APIService goes", func(ctx context.Context) bool { return !has(ctx, "v1.two.example.org") })
	})
	t.Run("not for a version that is not served", func(t *testing.T) {
		stop := []byte(`[{"op": "add", "path": "/spec/versions/-", "value": {"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}}}]`)
		if _, err := c.Resource(definitions).Patch(ctx, "thirds.one.example.org", types.JSONPatchType, stop, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if !has(ctx, "v2.one.example.org") {
			t.Error("a version that is new has no APIService")
		}
		stop = []byte(`[{"op": "replace", "path": "/spec/versions/1/served", "value": false}]`)
		if _, err := c.Resource(definitions).Patch(ctx, "thirds.one.example.org", types.JSONPatchType, stop, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the APIService goes", func(ctx context.Context) bool { return !has(ctx, "v2.one.example.org") })
	})
	t.Run("but not in the place of another", func(t *testing.T) {
		mine := read(t, `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.mine.example.org}
spec: {group: mine.example.org, version: v1, groupPriorityMinimum: 7, versionPriority: 8}
`)
		if _, err := c.Resource(apiServices).Create(ctx, mine, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		create(inGroup(t, "mine.example.org", "mines", "Mine"))
		remove("mines.mine.example.org")
		create(inGroup(t, "last.example.org", "lasts", "Last")) // and with this one, all before is settled
		remove("lasts.last.example.org")
		eventually(t, "another APIService goes", func(ctx context.Context) bool { return !has(ctx, "v1.last.example.org") })
		got, err := c.Resource(apiServices).Get(ctx, "v1.mine.example.org", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if priority, _, _ := unstructured.NestedInt64(got.Object, "spec", "groupPriorityMinimum"); priority != 7 || len(got.GetLabels()) > 0 {
			t.Errorf("another's APIService has changed: %v", got)
		}
	})
}

func TestAPIServicesOutliveARestart(t *testing.T) {
	dir := t.TempDir()
	p := apptest.StartOn(t, app.Config{Data: dir})
	c := client(t, p)
	var made []types.UID
	for i := range 3 {
		group := fmt.Sprintf("g%d.example.org", i)
		if _, err := c.Resource(definitions).Create(t.Context(), inGroup(t, group, "keeps", "Keep"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		u, err := c.Resource(apiServices).Get(t.Context(), "v1."+group, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, u.GetUID())
	}
	// Missing at the next start, it is made again.
	if err := c.Resource(apiServices).Delete(t.Context(), "v1.g2.example.org", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Stop()
	c = client(t, apptest.StartOn(t, app.Config{Data: dir}))
	for i := range 3 {
		u, err := c.Resource(apiServices).Get(t.Context(), fmt.Sprintf("v1.g%d.example.org", i), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if same := u.GetUID() == made[i]; same != (i < 2) {
			t.Errorf("v1.g%d.example.org is the same: %v", i, same)
		}
	}
}
