package crd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/app/apptest"
)

// patience bounds every wait for the server.
const patience = 2 * time.Minute

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func resource(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: plural}
}

func client(t testing.TB, p *apptest.Plane) *dynamic.DynamicClient {
	t.Helper()
	c, err := dynamic.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func read(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	j, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(j, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

const open = "{type: object, x-kubernetes-preserve-unknown-fields: true}"

// definition is one of a cluster-wide kind in version v1 of example.org.
func definition(t testing.TB, plural, kind, schema string) *unstructured.Unstructured {
	t.Helper()
	return read(t, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.example.org}
spec:
  group: example.org
  scope: Cluster
  names: {plural: %[1]s, kind: %[2]s, listKind: %[3]sList, singular: %[4]s}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: %[5]s}}]
`, plural, kind, "List"+plural, "one"+plural, schema))
}

func object(t testing.TB, kind, name string) *unstructured.Unstructured {
	t.Helper()
	return read(t, fmt.Sprintf("{apiVersion: example.org/v1, kind: %s, metadata: {name: %s}, spec: {a: text}}", kind, name))
}

func revision(t testing.TB, u *unstructured.Unstructured) int64 {
	t.Helper()
	rev, err := strconv.ParseInt(u.GetResourceVersion(), 10, 64)
	if err != nil {
		t.Error(err)
	}
	return rev
}

// isTrue says that a definition has a condition.
func isTrue(u *unstructured.Unstructured, condition string) bool {
	all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range all {
		if m, ok := c.(map[string]any); ok && m["type"] == condition && m["status"] == "True" {
			return true
		}
	}
	return false
}

// eventually looks until something holds.
func eventually(t testing.TB, what string, holds func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); !holds(ctx); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}
