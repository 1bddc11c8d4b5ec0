package storageversion_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	migrationv1 "k8s.io/api/storagemigration/v1beta1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
)

// A version that objects are stored in cannot leave its definition; after a
// migration it can, and the objects are there.
func TestAnOldVersionCanGo(t *testing.T) {
	w := start(t)
	crd := w.define("v1")
	for i := range 3 {
		w.make(fmt.Sprint("thing-", i))
	}
	crd.Spec.Versions = append(crd.Spec.Versions, version("v2"))
	crd.Spec.Versions[0].Storage = false
	crd = w.update(crd)
	if !slices.Equal(crd.Status.StoredVersions, []string{"v1", "v2"}) {
		t.Fatalf("stored are %v", crd.Status.StoredVersions)
	}
	w.make("young") // in v2
	young := w.revision("young")
	without := crd.DeepCopy()
	without.Spec.Versions = without.Spec.Versions[1:]
	if _, err := w.definitions.Update(t.Context(), without, metav1.UpdateOptions{}); err == nil {
		t.Fatal("a version that objects are stored in was taken away")
	}
	w.migrate("first", "things", migrationv1.MigrationSucceeded)
	apptest.Eventually(t, func(ctx context.Context) string {
		var err error
		if crd, err = w.definitions.Get(ctx, crd.Name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		for _, c := range crd.Status.Conditions {
			if c.Type == apiextensionsv1.StorageMigrating && c.Reason == "MigrationSucceeded" {
				return ""
			}
		}
		return "the definition does not say that the migration is over"
	})
	if !slices.Equal(crd.Status.StoredVersions, []string{"v2"}) {
		t.Fatalf("stored are %v", crd.Status.StoredVersions)
	}
	if now := w.revision("young"); now != young {
		t.Errorf("an object of today's version went from %s to %s", young, now)
	}
	crd.Spec.Versions = crd.Spec.Versions[1:]
	w.update(crd)
	all, err := w.things("v2").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != 4 {
		t.Errorf("%d things", len(all.Items))
	}
	for _, thing := range all.Items {
		if size, _, _ := unstructured.NestedInt64(thing.Object, "size"); size != 1 || thing.GetAPIVersion() != "example.org/v2" {
			t.Errorf("%s is %s, %d", thing.GetName(), thing.GetAPIVersion(), size)
		}
	}
}

// Built-in kinds migrate as well. What needs no migration is not written.
func TestNothingToMigrate(t *testing.T) {
	w := start(t)
	before, err := w.client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := w.migrate("namespaces", "namespaces", migrationv1.MigrationSucceeded)
	if m.Status.ResourceVersion == "" {
		t.Error("it does not say as of when")
	}
	after, err := w.client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("from %s to %s, %v", before.ResourceVersion, after.ResourceVersion, err)
	}
}

// An object that its definition does not allow any more fails a migration, and
// nothing is forgotten.
func TestAMigrationThatFails(t *testing.T) {
	w := start(t)
	crd := w.define("v1")
	w.make("wide")
	crd.Spec.Versions = append(crd.Spec.Versions, version("v2"))
	crd.Spec.Versions[0].Storage = false
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema.OpenAPIV3Schema.XValidations = apiextensionsv1.ValidationRules{{Rule: "self.size > 1"}}
	}
	w.update(crd)
	m := w.migrate("first", "things", migrationv1.MigrationFailed)
	if c := meta.FindStatusCondition(m.Status.Conditions, "Failed"); c.Reason != "StorageVersionMigrationFailed" {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
	got, err := w.definitions.Get(t.Context(), crd.Name, metav1.GetOptions{})
	if err != nil || !slices.Equal(got.Status.StoredVersions, []string{"v1", "v2"}) {
		t.Errorf("stored are %v, %v", got.Status.StoredVersions, err)
	}
}

type world struct {
	t           *testing.T
	client      kubernetes.Interface
	objects     dynamic.Interface
	definitions interface {
		Create(context.Context, *apiextensionsv1.CustomResourceDefinition, metav1.CreateOptions) (*apiextensionsv1.CustomResourceDefinition, error)
		Update(context.Context, *apiextensionsv1.CustomResourceDefinition, metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error)
		Get(context.Context, string, metav1.GetOptions) (*apiextensionsv1.CustomResourceDefinition, error)
	}
}

func start(t *testing.T) *world {
	p := apptest.StartWith(t, "storage-version-migrator-controller")
	w := &world{t: t}
	var err error
	if w.client, err = kubernetes.NewForConfig(p.Config); err != nil {
		t.Fatal(err)
	}
	if w.objects, err = dynamic.NewForConfig(p.Config); err != nil {
		t.Fatal(err)
	}
	d, err := apiextensions.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	w.definitions = d.ApiextensionsV1().CustomResourceDefinitions()
	return w
}

func version(name string) apiextensionsv1.CustomResourceDefinitionVersion {
	return apiextensionsv1.CustomResourceDefinitionVersion{
		Name: name, Served: true, Storage: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"size": {Type: "integer"}},
		}},
	}
}

func (w *world) define(v string) *apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	crd, err := w.definitions.Create(w.t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "things.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: "Namespaced", Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Kind: "Thing"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version(v)},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return crd
}

func (w *world) update(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	crd, err := w.definitions.Update(w.t.Context(), crd, metav1.UpdateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return crd
}

func (w *world) things(v string) dynamic.ResourceInterface {
	return w.objects.Resource(schema.GroupVersionResource{Group: "example.org", Version: v, Resource: "things"}).Namespace("default")
}

func (w *world) make(name string) {
	w.t.Helper()
	_, err := w.things("v1").Create(w.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.org/v1", "kind": "Thing", "metadata": map[string]any{"name": name}, "size": int64(1),
	}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) revision(name string) string {
	w.t.Helper()
	thing, err := w.things("v1").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return thing.GetResourceVersion()
}

// migrate asks for a migration and waits until it has ended as wanted.
func (w *world) migrate(name, resource string, want migrationv1.MigrationConditionType) *migrationv1.StorageVersionMigration {
	w.t.Helper()
	migrations := w.client.StoragemigrationV1beta1().StorageVersionMigrations()
	of := metav1.GroupResource{Resource: resource}
	if resource == "things" {
		of.Group = "example.org"
	}
	m, err := migrations.Create(w.t.Context(), &migrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: migrationv1.StorageVersionMigrationSpec{Resource: of},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	apptest.Eventually(w.t, func(ctx context.Context) string {
		if m, err = migrations.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if !meta.IsStatusConditionTrue(m.Status.Conditions, string(want)) || meta.IsStatusConditionTrue(m.Status.Conditions, string(migrationv1.MigrationRunning)) {
			return fmt.Sprintf("the migration is %v", m.Status.Conditions)
		}
		return ""
	})
	return m
}
