// Package initializers is `metadata.initializers`: what must still happen to an
// object before anyone sees it.
//
// Today's Go types have no such field. On the wire and in the store it is where
// Kubernetes 1.7 to 1.15 had it, `metadata.initializers`; an object in memory
// carries it in an annotation of a name that no client can set, and an
// object without a Go type in its place. Of and Set know which; api/codec moves it
// when it reads and writes.
package initializers

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Carried is the annotation that typed objects carry their initializers in.
const Carried = "initializers.setpoint.dev/carried"

// Initializers is what an object waits for. One that has none waits for
// nothing and is visible.
type Initializers struct {
	// Pending are the initializers that are to act, the next one first. Compat:
	// an empty list is written as null or [], as it is, and not left out.
	Pending []Initializer `json:"pending"`
	// Result is set when an initializer has failed; the object goes then.
	Result *metav1.Status `json:"result,omitempty"`
}

// Initializer is one that has not acted yet.
type Initializer struct {
	Name string `json:"name"`
}

// Empty says that there is nothing to wait for and nothing has failed.
func (i *Initializers) Empty() bool {
	return i == nil || len(i.Pending) == 0 && i.Result == nil
}

// Of returns what an object waits for, nil when the field is not there.
func Of(obj runtime.Object) (*Initializers, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		value, there, err := unstructured.NestedFieldNoCopy(u.Object, "metadata", "initializers")
		if err != nil || !there || value == nil {
			return nil, err
		}
		fields, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("metadata.initializers is a %T", value)
		}
		i := &Initializers{}
		return i, runtime.DefaultUnstructuredConverter.FromUnstructured(fields, i)
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil //nolint:nilerr // what has no metadata waits for nothing
	}
	text, there := m.GetAnnotations()[Carried]
	if !there {
		return nil, nil
	}
	i := &Initializers{}
	if err := json.Unmarshal([]byte(text), i); err != nil {
		return nil, fmt.Errorf("metadata.initializers: %w", err)
	}
	return i, nil
}

// Set makes an object wait for what i says; nil takes the field away.
func Set(obj runtime.Object, i *Initializers) error {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if i == nil {
			unstructured.RemoveNestedField(u.Object, "metadata", "initializers")
			return nil
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(i)
		if err != nil {
			return err
		}
		return unstructured.SetNestedMap(u.Object, fields, "metadata", "initializers")
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	annotations := m.GetAnnotations()
	if i == nil {
		delete(annotations, Carried)
		if len(annotations) == 0 {
			annotations = nil
		}
		m.SetAnnotations(annotations)
		return nil
	}
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[Carried] = string(text)
	m.SetAnnotations(annotations)
	return nil
}
