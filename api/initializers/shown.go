package initializers

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Shown is an object as clients see it: one that carries initializers is told
// without its Go type, which has no place for them. All others are as they are.
// obj is of a version, not of an internal type.
func Shown(obj runtime.Object) (runtime.Object, error) {
	if obj == nil {
		return nil, nil
	}
	spots := Spots(obj)
	if spots == nil {
		return obj, nil
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	for i := range spots {
		if err := spots[i].show(fields); err != nil {
			return nil, err
		}
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

// show moves what the spot carries to where the field is in plain values.
func (s *Spot) show(fields map[string]any) error {
	at := fields
	for _, step := range s.Path {
		name, _ := step.(string)
		next, ok := at[name].(map[string]any)
		if !ok {
			return fmt.Errorf("there is no metadata at %v", s.Path)
		}
		at = next
	}
	var value any
	if err := utiljson.Unmarshal([]byte(s.Text), &value); err != nil {
		return fmt.Errorf("metadata.%s: %w", field, err)
	}
	at[field] = value
	annotations, _ := at["annotations"].(map[string]any)
	delete(annotations, Carried)
	if len(annotations) == 0 {
		delete(at, "annotations")
	}
	return nil
}
