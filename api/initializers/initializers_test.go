package initializers_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"setpoint.dev/setpoint/api/initializers"
)

func TestWhatIsSetIsFound(t *testing.T) {
	for name, value := range map[string]*initializers.Initializers{
		"none":    nil,
		"empty":   {},
		"pending": {Pending: []initializers.Initializer{{Name: "a.example.org"}, {Name: "b.example.org"}}},
		"failed":  {Pending: []initializers.Initializer{{Name: "a.example.org"}}, Result: &metav1.Status{Status: metav1.StatusFailure, Code: 418, Message: "no"}},
	} {
		for kind, obj := range map[string]runtime.Object{
			"typed":   &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}}},
			"untyped": &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "x"}}},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				before := obj.DeepCopyObject()
				if err := initializers.Set(obj, value); err != nil {
					t.Fatal(err)
				}
				got, err := initializers.Of(obj)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(value, got); diff != "" {
					t.Errorf("want, got:\n%s", diff)
				}
				if err := initializers.Set(obj, nil); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, obj); diff != "" {
					t.Errorf("not as before:\n%s", diff)
				}
			})
		}
	}
}
