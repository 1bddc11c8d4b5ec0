package own

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// Selecting is an owner that may adopt what it selects.
type Selecting struct {
	metav1.Object
	Selector *metav1.LabelSelector
}

// Concerned returns which owners of a kind a change to an object concerns: those
// that control it or did, and for an orphan those that might adopt it, of all
// that there are in its namespace.
func Concerned[T interface {
	comparable
	metav1.Object
}](kind schema.GroupVersionKind, all func(namespace string) []Selecting) func(before, after T) []cache.ObjectName {
	var none T
	return func(before, after T) []cache.ObjectName {
		var keys []cache.ObjectName
		for _, obj := range []T{before, after} {
			if obj == none {
				continue
			}
			if ref := metav1.GetControllerOfNoCopy(obj); ref != nil && ref.Kind == kind.Kind && ref.APIVersion == kind.GroupVersion().String() {
				keys = append(keys, cache.ObjectName{Namespace: obj.GetNamespace(), Name: ref.Name})
			}
		}
		if after == none || metav1.GetControllerOfNoCopy(after) != nil {
			return slices.Compact(keys)
		}
		if before == none || metav1.GetControllerOfNoCopy(before) != nil || !maps.Equal(before.GetLabels(), after.GetLabels()) {
			keys = append(keys, adopters(after, all(after.GetNamespace()))...)
		}
		return keys
	}
}

// adopters are those of some owners that select an orphan.
func adopters(orphan metav1.Object, among []Selecting) []cache.ObjectName {
	var keys []cache.ObjectName
	for _, owner := range among {
		if s, err := metav1.LabelSelectorAsSelector(owner.Selector); err == nil && !s.Empty() && s.Matches(labels.Set(orphan.GetLabels())) {
			keys = append(keys, cache.ObjectName{Namespace: owner.GetNamespace(), Name: owner.GetName()})
		}
	}
	return keys
}
