package quota_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
)

func plane(t *testing.T) (*apptest.Plane, kubernetes.Interface) {
	t.Helper()
	p := apptest.StartWith(t, "resourcequota-controller")
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	return p, k
}

func limit(t *testing.T, k kubernetes.Interface, hard map[corev1.ResourceName]string) {
	t.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for name, n := range hard {
		q.Spec.Hard[name] = resource.MustParse(n)
	}
	if _, err := k.CoreV1().ResourceQuotas("default").Create(t.Context(), q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// used waits until the quota says that so much is used.
func used(t *testing.T, k kubernetes.Interface, want map[corev1.ResourceName]string) {
	t.Helper()
	apptest.Eventually(t, func(ctx context.Context) string {
		q, err := k.CoreV1().ResourceQuotas("default").Get(ctx, "q", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for name, n := range want {
			have, has := q.Status.Used[name]
			if _, limited := q.Status.Hard[name]; !has || !limited || have.Cmp(resource.MustParse(n)) != 0 {
				return fmt.Sprintf("of %s %s is used, %v", name, have.String(), q.Status)
			}
		}
		return ""
	})
}

func pod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "v1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
	}}}}
}

func TestWhatGoesIsCountedNoMore(t *testing.T) {
	_, k := plane(t)
	secrets, pods := k.CoreV1().Secrets("default"), k.CoreV1().Pods("default")
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "before"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	limit(t, k, map[corev1.ResourceName]string{"secrets": "5", "count/configmaps": "5", "pods": "3", "requests.cpu": "3"})
	used(t, k, map[corev1.ResourceName]string{"secrets": "1", "pods": "0", "requests.cpu": "0"})
	for _, name := range []string{"a", "b"} {
		if _, err := pods.Create(t.Context(), pod(name, "500m"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	used(t, k, map[corev1.ResourceName]string{"pods": "2", "requests.cpu": "1"})
	a, err := pods.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.Status.Phase = corev1.PodSucceeded
	if _, err := pods.UpdateStatus(t.Context(), a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	used(t, k, map[corev1.ResourceName]string{"pods": "1", "requests.cpu": "500m"})
	if err := pods.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := secrets.Delete(t.Context(), "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used(t, k, map[corev1.ResourceName]string{"pods": "0", "requests.cpu": "0", "secrets": "0"})
}

func TestCustomKindsAreCounted(t *testing.T) {
	p, k := plane(t)
	limit(t, k, map[corev1.ResourceName]string{"count/things.example.org": "5"})
	ext, err := apiextensions.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ext.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "things.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: apiextensionsv1.NamespaceScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Kind: "Thing"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := k.CoreV1().ResourceQuotas("default").Delete(t.Context(), "q", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	limit(t, k, map[corev1.ResourceName]string{"count/things.example.org": "6"}) // a kind that was unknown is looked up again
	d, err := dynamic.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	used(t, k, map[corev1.ResourceName]string{"count/things.example.org": "0"})
	things := d.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "things"}).Namespace("default")
	for _, name := range []string{"a", "b"} {
		thing := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.org/v1", "kind": "Thing", "metadata": map[string]any{"name": name}}}
		if _, err := things.Create(t.Context(), thing, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	used(t, k, map[corev1.ResourceName]string{"count/things.example.org": "2"})
	if err := things.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used(t, k, map[corev1.ResourceName]string{"count/things.example.org": "1"})
}

// Whoever makes an object charges it while the controller counts: never may more
// be made than is allowed, and in the end the count is right.
func TestCountsAndChargesDoNotMeet(t *testing.T) {
	_, k := plane(t)
	secrets := k.CoreV1().Secrets("default")
	limit(t, k, map[corev1.ResourceName]string{"secrets": "10"})
	used(t, k, map[corev1.ResourceName]string{"secrets": "0"})
	var there, most atomic.Int64
	var all sync.WaitGroup
	begun := time.Now()
	for i := range 4 {
		all.Go(func() {
			for n := 0; time.Since(begun) < 2*time.Second; n++ {
				name := fmt.Sprintf("s%d-%d", i, n)
				if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
					continue // it is full
				}
				most.Store(max(most.Load(), there.Add(1)))
				if n%2 == 0 {
					there.Add(-1) // before it goes: what is counted may only be too little
					if err := secrets.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	if most.Load() > 10 {
		t.Errorf("there were %d", most.Load())
	}
	left, err := secrets.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	used(t, k, map[corev1.ResourceName]string{"secrets": fmt.Sprint(len(left.Items))})
}
