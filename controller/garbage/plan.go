package garbage

import (
	"context"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// owners are an object's owner references by what the API knows of the owners.
type owners struct {
	solid   []metav1.OwnerReference // they are there
	gone    []metav1.OwnerReference
	waiting []metav1.OwnerReference // they go when their dependents have gone
}

// Plan is what is to be done to an object.
type Plan struct {
	// Owners are what its owner references are to be; nil leaves them.
	Owners *[]metav1.OwnerReference
	// Delete is how it is to be deleted; "" keeps it.
	Delete metav1.DeletionPropagation
}

// plan says what to do to an object. One with an owner that is there stays and
// loses its references to the others: who waits for it must not wait in vain.
// One without is deleted the way that it or its owners ask for.
func plan(obj *metav1.PartialObjectMetadata, o owners, dependents []node) Plan {
	switch {
	case len(o.solid) > 0 && len(o.gone)+len(o.waiting) == 0:
		return Plan{}
	case len(o.solid) > 0:
		kept := without(obj.OwnerReferences, func(ref metav1.OwnerReference) bool { return !contains(o.solid, ref) })
		return Plan{Owners: &kept}
	case len(o.waiting) > 0 && len(dependents) > 0:
		p := Plan{Delete: metav1.DeletePropagationForeground}
		// Two that wait for each other would wait forever.
		if slices.ContainsFunc(dependents, func(d node) bool { return d.foreground }) {
			p.Owners = unblocked(obj.OwnerReferences)
		}
		return p
	case has(obj.Finalizers, metav1.FinalizerOrphanDependents):
		return Plan{Delete: metav1.DeletePropagationOrphan}
	case has(obj.Finalizers, metav1.FinalizerDeleteDependents):
		return Plan{Delete: metav1.DeletePropagationForeground}
	}
	return Plan{Delete: metav1.DeletePropagationBackground}
}

// unblocked are references that block nobody; nil when none did.
func unblocked(refs []metav1.OwnerReference) *[]metav1.OwnerReference {
	var changed bool
	free := slices.Clone(refs)
	for i := range free {
		if free[i].BlockOwnerDeletion != nil && *free[i].BlockOwnerDeletion {
			free[i].BlockOwnerDeletion, changed = new(bool), true
		}
	}
	if !changed {
		return nil
	}
	return &free
}

func contains(refs []metav1.OwnerReference, ref metav1.OwnerReference) bool {
	return slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool {
		return r.UID == ref.UID && r.Name == ref.Name && r.Kind == ref.Kind && r.APIVersion == ref.APIVersion
	})
}

func has(finalizers []string, f string) bool { return slices.Contains(finalizers, f) }

// without is never nil: it replaces a list, and may replace it by nothing.
func without[T any](of []T, drop func(T) bool) []T {
	kept := make([]T, 0, len(of))
	for _, t := range of {
		if !drop(t) {
			kept = append(kept, t)
		}
	}
	return kept
}

// patch replaces a list in an object's metadata, on condition that the object is
// as it was looked at.
func (c *Controller) patch(ctx context.Context, n node, live *metav1.PartialObjectMetadata, field string, value any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": live.UID, "resourceVersion": live.ResourceVersion, field: value,
	}})
	if err != nil {
		return err
	}
	_, err = c.resource(n).Patch(ctx, n.name, types.MergePatchType, body, metav1.PatchOptions{})
	return gone(err)
}
