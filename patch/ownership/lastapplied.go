package ownership

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// kubectl is the manager whose applies take over from those that it made itself
// before servers could, and which noted in an annotation what they had applied.
const kubectl = "kubectl"

const lastAppliedAnnotation = "kubectl.kubernetes.io/last-applied-configuration"

var errNoAnnotation = errors.New("nothing was applied by the client")

// lastApplied are the fields that kubectl has applied itself and that are still
// as it wanted them: they can be taken from whoever is said to own them.
func (m *Manager) lastApplied(live runtime.Object) (*fieldpath.Set, error) {
	a, err := meta.Accessor(live)
	if err != nil {
		return nil, err
	}
	text := a.GetAnnotations()[lastAppliedAnnotation]
	if text == "" {
		return nil, errNoAnnotation
	}
	shown, err := m.bare(live)
	if err != nil {
		return nil, err
	}
	have, err := m.Types.ObjectToTyped(shown)
	if err != nil {
		return nil, err
	}
	then := &unstructured.Unstructured{Object: map[string]any{}}
	if err := json.Unmarshal([]byte(text), then); err != nil {
		return nil, err
	}
	if then.GetAPIVersion() != string(m.version) {
		return nil, fmt.Errorf("it was applied in version %s", then.GetAPIVersion())
	}
	wanted, err := m.Types.ObjectToTyped(then)
	if err != nil {
		return nil, err
	}
	fields, err := wanted.ToFieldSet()
	if err != nil {
		return nil, err
	}
	found, err := wanted.Compare(have)
	if err != nil {
		return nil, err
	}
	return fields.Difference(found.Modified).Difference(found.Added).Difference(found.Removed), nil
}

// keepLastApplied notes in an object what kubectl has applied, where it has
// noted that before. Compat: a note that is too large is removed.
func keepLastApplied(obj, applied runtime.Object) error {
	a, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	annotations := a.GetAnnotations()
	if annotations[lastAppliedAnnotation] == "" {
		return nil
	}
	noted := applied.DeepCopyObject()
	n, err := meta.Accessor(noted)
	if err != nil {
		return err
	}
	rest := n.GetAnnotations()
	delete(rest, lastAppliedAnnotation)
	n.SetAnnotations(rest)
	text, err := runtime.Encode(unstructured.UnstructuredJSONScheme, noted)
	if err != nil {
		return fmt.Errorf("failed to build last-applied annotation: couldn't encode object into last applied annotation: %w", err)
	}
	annotations[lastAppliedAnnotation] = string(text)
	if validation.ValidateAnnotationsSize(annotations) != nil {
		delete(annotations, lastAppliedAnnotation)
	}
	a.SetAnnotations(annotations)
	return nil
}
