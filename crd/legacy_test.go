package crd_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/app/apptest"
)

// written is a value as JSON, which does not tell numbers apart.
func written(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Definitions as they were written for Kubernetes 1.15 to 1.21 are served as
// they were then, and are valid when they are read back in v1.
func TestDefinitionsOfV1beta1(t *testing.T) {
	c := client(t, apptest.Start(t))
	ctx := t.Context()
	old := definitions
	old.Version = "v1beta1"
	define := func(text string) (asV1 *unstructured.Unstructured) {
		t.Helper()
		made, err := c.Resource(old).Create(ctx, read(t, text), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if made.GetAPIVersion() != "apiextensions.k8s.io/v1beta1" || !isTrue(made, "Established") {
			t.Errorf("made %v", made)
		}
		asV1, err = c.Resource(definitions).Get(ctx, made.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if isTrue(asV1, "NonStructuralSchema") {
			t.Errorf("its schema cannot be pruned by: %v", asV1)
		}
		asV1.SetAnnotations(map[string]string{"example.org/touched": "yes"})
		if asV1, err = c.Resource(definitions).Update(ctx, asV1, metav1.UpdateOptions{}); err != nil {
			t.Errorf("read back in v1 it is not valid: %v", err)
		}
		return asV1
	}
	t.Run("everything at the top", func(t *testing.T) {
		asV1 := define(`
apiVersion: apiextensions.k8s.io/v1beta1
kind: CustomResourceDefinition
metadata: {name: olds.example.org}
spec:
  group: example.org
  version: v1
  scope: Cluster
  names: {plural: olds, kind: Old}
  subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
  additionalPrinterColumns: [{name: Replicas, type: integer, JSONPath: .spec.replicas}]
  validation: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {replicas: {type: integer, minimum: 1}}}}}}
`)
		versions, _, _ := unstructured.NestedSlice(asV1.Object, "spec", "versions")
		want := read(t, `
versions:
- name: v1
  served: true
  storage: true
  additionalPrinterColumns: [{name: Replicas, type: integer, jsonPath: .spec.replicas}]
  subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
  schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {spec: {type: object, properties: {replicas: {type: integer, minimum: 1}}}}}}
`)
		if diff := cmp.Diff(written(t, want.Object["versions"]), written(t, versions)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		olds := c.Resource(resource("olds"))
		_, err := olds.Create(ctx, read(t, "{apiVersion: example.org/v1, kind: Old, metadata: {name: bad}, spec: {replicas: 0}}"), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.replicas in body should be greater than or equal to 1") {
			t.Errorf("got %v", err)
		}
		made, err := olds.Create(ctx, read(t, "{apiVersion: example.org/v1, kind: Old, metadata: {name: a}, spec: {replicas: 2}, more: {of: this}, status: {replicas: 9}}"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if more, _, _ := unstructured.NestedString(made.Object, "more", "of"); more != "this" || made.Object["status"] != nil {
			t.Errorf("unknown fields are kept, and status is not for a create: %v", made)
		}
		scale, err := olds.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec": {"replicas": 5}}`), metav1.PatchOptions{}, "scale")
		if err != nil || scale.GetKind() != "Scale" {
			t.Fatal(scale, err)
		}
		got, err := olds.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec": {"replicas": 7}, "status": {"replicas": 3}}`), metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
		spec, _, _ := unstructured.NestedInt64(got.Object, "spec", "replicas")
		status, _, _ := unstructured.NestedInt64(got.Object, "status", "replicas")
		if spec != 5 || status != 3 {
			t.Errorf("%d replicas of %d: %v", status, spec, got)
		}
	})
	t.Run("no schema", func(t *testing.T) {
		asV1 := define(`
apiVersion: apiextensions.k8s.io/v1beta1
kind: CustomResourceDefinition
metadata: {name: frees.example.org}
spec: {group: example.org, version: v1, scope: Cluster, names: {plural: frees, kind: Free}}
`)
		versions, _, _ := unstructured.NestedSlice(asV1.Object, "spec", "versions")
		want := read(t, "versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]")
		if diff := cmp.Diff(written(t, want.Object["versions"]), written(t, versions)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		sent := read(t, "{apiVersion: example.org/v1, kind: Free, metadata: {name: a}, spec: {any: [1, {thing: true}]}}")
		made, err := c.Resource(resource("frees")).Create(ctx, sent, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(written(t, sent.Object["spec"]), written(t, made.Object["spec"])); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}
