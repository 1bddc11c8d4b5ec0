package garbage_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"setpoint.dev/setpoint/app/apptest"
)

// world is a control plane with a garbage collector.
type world struct {
	*testing.T
	kubernetes.Interface
	plane *apptest.Plane
}

func begin(t *testing.T) world {
	t.Helper()
	p := apptest.StartWith(t, "garbage-collector-controller")
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	return world{t, k, p}
}

func owned(name string, by ...*corev1.ConfigMap) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	block := true
	for _, o := range by {
		cm.OwnerReferences = append(cm.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: o.Name, UID: o.UID, BlockOwnerDeletion: &block})
	}
	return cm
}

func (w world) create(cm *corev1.ConfigMap) *corev1.ConfigMap {
	w.Helper()
	made, err := w.CoreV1().ConfigMaps(cm.Namespace).Create(w.Context(), cm, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return made
}

func (w world) deleteA(how metav1.DeletionPropagation) {
	w.Helper()
	if err := w.CoreV1().ConfigMaps("default").Delete(w.Context(), "a", metav1.DeleteOptions{PropagationPolicy: &how}); err != nil {
		w.Fatal(err)
	}
}

// names are the config maps there are, with how many owners each has.
func (w world) names(ctx context.Context) string {
	w.Helper()
	l, err := w.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	text := ""
	for _, cm := range l.Items {
		text += fmt.Sprintf("%s:%d ", cm.Name, len(cm.OwnerReferences))
	}
	return text
}

func (w world) eventually(what func(ctx context.Context) string, want string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	defer cancel()
	for got := what(ctx); got != want; got = what(ctx) {
		select {
		case <-ctx.Done():
			w.Fatalf("in the end there is %q, not %q", got, want)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestBackground(t *testing.T) {
	w := begin(t)
	a := w.create(owned("a"))
	other := w.create(owned("other"))
	b := w.create(owned("b", a))
	w.create(owned("c", b))
	w.create(owned("d", a, other))
	w.deleteA(metav1.DeletePropagationBackground)
	w.eventually(w.names, "d:1 other:0 ")
}

func TestForeground(t *testing.T) {
	w := begin(t)
	a := w.create(owned("a"))
	held := owned("b", a)
	held.Finalizers = []string{"example.org/hold"}
	b := w.create(held)
	w.create(owned("c", b))
	w.deleteA(metav1.DeletePropagationForeground)
	w.eventually(w.names, "a:0 b:1 ")
	// The collector may change it at the same time.
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		b, err := w.CoreV1().ConfigMaps("default").Get(t.Context(), "b", metav1.GetOptions{})
		if err != nil {
			return err
		}
		b.Finalizers = nil
		_, err = w.CoreV1().ConfigMaps("default").Update(t.Context(), b, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.eventually(w.names, "")
}

func TestOrphan(t *testing.T) {
	w := begin(t)
	a := w.create(owned("a"))
	w.create(owned("b", a))
	w.create(owned("c", a))
	w.deleteA(metav1.DeletePropagationOrphan)
	w.eventually(w.names, "b:0 c:0 ")
}

func TestACircleGoes(t *testing.T) {
	w := begin(t)
	a := w.create(owned("a"))
	b := w.create(owned("b", a))
	a.OwnerReferences = owned("", b).OwnerReferences
	if _, err := w.CoreV1().ConfigMaps("default").Update(t.Context(), a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.deleteA(metav1.DeletePropagationForeground)
	w.eventually(w.names, "")
}

func TestOwnersThatAreNot(t *testing.T) {
	w := begin(t)
	ctx := t.Context()
	if _, err := w.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "far"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	far := owned("owner")
	far.Namespace = "far"
	far = w.create(far)
	w.create(owned("cross", far))
	a := w.create(owned("a"))
	wrong := owned("wrong", a)
	wrong.OwnerReferences[0].Kind = "Secret"
	w.create(wrong)
	w.create(owned("virtual", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "nobody", UID: "0000"}}))
	unknown := owned("unknown", a)
	unknown.OwnerReferences[0].APIVersion, unknown.OwnerReferences[0].Kind = "example.org/v1", "Thing"
	w.create(unknown)
	w.eventually(w.names, "a:0 unknown:1 ")
	w.eventually(func(ctx context.Context) string {
		events, err := w.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil || len(events.Items) == 0 {
			return fmt.Sprint(err)
		}
		return events.Items[0].InvolvedObject.Name + " " + events.Items[0].Reason
	}, "cross OwnerRefInvalidNamespace")
}

func TestCustomKindsComeAndGo(t *testing.T) {
	w := begin(t)
	ctx := t.Context()
	definitions, err := apiextensions.NewForConfig(w.plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(w.plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	keep := true
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "things.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: "Namespaced", Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Kind: "Thing"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &keep}},
			}},
		},
	}
	if _, err := definitions.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	things := objects.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "things"}).Namespace("default")
	thing := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.org/v1", "kind": "Thing", "metadata": map[string]any{"name": "a"}}}
	a, err := things.Create(ctx, thing, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string) *corev1.ConfigMap {
		cm := owned(name, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: a.GetName(), UID: a.GetUID()}})
		cm.OwnerReferences[0].APIVersion, cm.OwnerReferences[0].Kind = "example.org/v1", "Thing"
		return cm
	}
	w.create(of("b"))
	time.Sleep(500 * time.Millisecond) // long enough for a wrong deletion
	w.eventually(w.names, "b:1 ")
	if err := things.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually(w.names, "")
	if a, err = things.Create(ctx, thing, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create(of("c"))
	if err := definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, crd.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually(func(ctx context.Context) string {
		if _, err := things.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(err)
		}
		return "gone"
	}, "gone")
}
