// Package initializers is `metadata.initializers`: what must still happen to an
// object before anyone sees it.
//
// Today's Go types have no such field. On the wire and in the store it is where
// Kubernetes 1.7 to 1.15 had it, `metadata.initializers`; an object in memory
// carries it in an annotation of a name that no client can set, and an
// object without a Go type in its place. Of and Set know which; api/codec moves it
// when it reads and writes. The metadata of pod templates may have it, too.
//
// A field that was sent as null is not the same as none: it is an order to wait
// for nothing. Of returns what is empty for it, as for {} and for an empty list,
// and nil where the field is not there.
package initializers

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// Carried is the annotation that typed objects carry their initializers in.
const Carried = "initializers.setpoint.dev/carried"

// field is its name in metadata, where there is a field.
const field = "initializers"

// null is what the annotation says where the field was sent as null.
const null = "null"

// Initializers is what an object waits for. One that has none waits for
// nothing and is visible.
type Initializers struct {
	// Pending are the initializers that are to act, the next one first. Compat:
	// an empty list is written as null or [], as it is, and not left out.
	Pending []Initializer `json:"pending" patchStrategy:"merge" patchMergeKey:"name"`
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
		value, there, err := unstructured.NestedFieldNoCopy(u.Object, "metadata", field)
		if err != nil || !there {
			return nil, err
		}
		if value == nil {
			return &Initializers{}, nil
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
			unstructured.RemoveNestedField(u.Object, "metadata", field)
			return nil
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(i)
		if err != nil {
			return err
		}
		return unstructured.SetNestedMap(u.Object, fields, "metadata", field)
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if i == nil {
		carry(m, "")
		return nil
	}
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	carry(m, string(text))
	return nil
}

// carry gives metadata the annotation, or takes it away where there is no text.
// The map that was there before stays as it is: it may be shared.
func carry(m metav1.Object, text string) {
	had := m.GetAnnotations()
	if _, carries := had[Carried]; !carries && text == "" {
		return
	}
	var annotations map[string]string
	for k, v := range had {
		if k != Carried {
			if annotations == nil {
				annotations = make(map[string]string, len(had)+1)
			}
			annotations[k] = v
		}
	}
	if text != "" {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[Carried] = text
	}
	m.SetAnnotations(annotations)
}

// Clear makes an object wait for nothing, in the sense of a client that says so:
// Of finds what is empty.
func Clear(obj runtime.Object) error {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return unstructured.SetNestedField(u.Object, nil, "metadata", field)
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	carry(m, null)
	return nil
}

// Forget takes the field away where it was sent as null. For an object that is
// made anew that means nothing.
func Forget(obj runtime.Object) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if value, there, err := unstructured.NestedFieldNoCopy(u.Object, "metadata", field); there && value == nil && err == nil {
			unstructured.RemoveNestedField(u.Object, "metadata", field)
		}
		return
	}
	if m, err := meta.Accessor(obj); err == nil && m.GetAnnotations()[Carried] == null {
		carry(m, "")
	}
}

// Read reads the field from JSON. What it does not know, or finds twice, are the
// paths of unknown.
func Read(text []byte) (i *Initializers, unknown []error, err error) {
	i = &Initializers{}
	unknown, err = kjson.UnmarshalStrict(text, i)
	return i, unknown, err
}

// Lift takes the field out of an object without a Go type, and what nobody may
// send with it; its metadata can be read as today's then. Put gives it back, with
// what i has become. A field that cannot be read is an error.
func Lift(u *unstructured.Unstructured) (put func(), unknown []error, err error) {
	put = func() {}
	about, _ := u.Object["metadata"].(map[string]any)
	if annotations, _ := about["annotations"].(map[string]any); annotations[Carried] != nil {
		delete(annotations, Carried)
	}
	value, there := about[field]
	if !there {
		return put, nil, nil
	}
	delete(about, field)
	if value == nil {
		return func() { _ = Clear(u) }, nil, nil // metadata is there
	}
	text, err := json.Marshal(value)
	if err != nil {
		return put, nil, err
	}
	i, unknown, err := Read(text)
	if err != nil {
		return put, nil, fmt.Errorf("metadata.%s: %w", field, err)
	}
	for at, e := range unknown {
		unknown[at] = Within(e, "metadata")
	}
	return func() { _ = Set(u, i) }, unknown, nil // likewise
}

// UnknownPath is the path in an error of Lift.
func UnknownPath(err error) string {
	_, path, _ := strings.Cut(err.Error(), ` field "`)
	return strings.TrimSuffix(path, `"`)
}

// Within says what is wrong with the field at the path where the field is.
func Within(err error, metadata string) error {
	if kind, path, ok := strings.Cut(err.Error(), ` field "`); ok {
		return fmt.Errorf(`%s field "%s.%s.%s`, kind, metadata, field, path)
	}
	return err
}
