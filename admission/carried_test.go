package admission_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/admission"
	"setpoint.dev/setpoint/api/initializers"
)

// blunt is a plugin that takes all annotations and labels away, and remembers
// whether it has seen what objects wait for.
type blunt struct {
	upstream.Handler
	t *testing.T
}

func (blunt) Handles(upstream.Operation) bool { return true }

func (b blunt) look(a upstream.Attributes) {
	b.t.Helper()
	for _, obj := range []runtime.Object{a.GetObject(), a.GetOldObject()} {
		if have, err := initializers.Of(obj); have != nil || err != nil {
			b.t.Errorf("it sees %v, %v", have, err)
		}
		if text, there := templateOf(obj); there {
			b.t.Errorf("it sees %q in a template", text)
		}
	}
}

func (b blunt) Admit(_ context.Context, a upstream.Attributes, _ upstream.ObjectInterfaces) error {
	b.look(a)
	m, err := meta.Accessor(a.GetObject())
	if err != nil {
		return err
	}
	m.SetAnnotations(nil)
	m.SetLabels(nil)
	return nil
}

func (b blunt) Validate(_ context.Context, a upstream.Attributes, _ upstream.ObjectInterfaces) error {
	b.look(a)
	return nil
}

// templateOf is what an object's template waits for.
func templateOf(obj runtime.Object) (string, bool) {
	job, ok := obj.(*batch.Job)
	if !ok {
		return "", false
	}
	text, there := job.Spec.Template.Annotations[initializers.Carried]
	return text, there
}

func TestPluginsSeeObjectsWithoutWhatTheyWaitFor(t *testing.T) {
	about := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "x", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"a": "b"}}
	}
	job := &batch.Job{ObjectMeta: about()}
	job.Spec.Template.Annotations = map[string]string{initializers.Carried: `{"pending":[{"name":"pod.example.org"}]}`}
	for name, obj := range map[string]runtime.Object{
		"typed":           &core.Pod{ObjectMeta: about()},
		"with a template": job,
		"untyped":         &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "x", "annotations": map[string]any{"a": "b"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			want := &initializers.Initializers{Pending: []initializers.Initializer{{Name: "a.example.org"}}}
			if err := initializers.Set(obj, want); err != nil {
				t.Fatal(err)
			}
			old := obj.DeepCopyObject()
			template, had := templateOf(obj)
			a := upstream.NewAttributesRecord(obj, old, schema.GroupVersionKind{}, "default", "x", schema.GroupVersionResource{}, "", upstream.Update, &metav1.UpdateOptions{}, false, nil)
			chain := admission.ChainOf(blunt{t: t}, blunt{t: t})
			if err := chain.Admit(t.Context(), a, nil); err != nil {
				t.Fatal(err)
			}
			if err := chain.Validate(t.Context(), a, nil); err != nil {
				t.Fatal(err)
			}
			for what, o := range map[string]runtime.Object{"the object": obj, "the old one": old} {
				got, err := initializers.Of(o)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s waits for:\n%s", what, diff)
				}
				if now, has := templateOf(o); now != template || has != had {
					t.Errorf("the template of %s waits for %q", what, now)
				}
			}
			if m, _ := meta.Accessor(obj); len(m.GetLabels()) > 0 || m.GetAnnotations()["a"] != "" {
				t.Errorf("what the plugins did is lost: %v %v", m.GetLabels(), m.GetAnnotations())
			}
		})
	}
}
