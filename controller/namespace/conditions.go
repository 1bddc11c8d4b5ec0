package namespace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// remains is what is left in a namespace, and why.
type remains struct {
	undiscovered error // why not all resources are known
	unparsed     error
	failures     []error
	objects      map[schema.GroupResource]int
	finalizers   map[string]int // how many objects have each
	pods         int            // for which everything else still waits
}

// done says that nothing is left, as far as can be known.
func (r remains) done() bool {
	return r.undiscovered == nil && r.unparsed == nil && len(r.failures) == 0 && len(r.objects) == 0
}

// wordings are the conditions in their order, and what each says when all is
// well. Compat: the words are upstream's.
var wordings = []struct {
	of              corev1.NamespaceConditionType
	reason, message string
}{
	{corev1.NamespaceDeletionDiscoveryFailure, "ResourcesDiscovered", "All resources successfully discovered"},
	{corev1.NamespaceDeletionGVParsingFailure, "ParsedGroupVersions", "All legacy kube types successfully parsed"},
	{corev1.NamespaceDeletionContentFailure, "ContentDeleted", "All content successfully deleted, may be waiting on finalization"},
	{corev1.NamespaceContentRemaining, "ContentRemoved", "All content successfully removed"},
	{corev1.NamespaceFinalizersRemaining, "ContentHasNoFinalizers", "All content-preserving finalizers finished"},
}

// conditions are before with those that tell what remains, and whether that
// changes anything.
func conditions(before []corev1.NamespaceCondition, r remains, now time.Time) (after []corev1.NamespaceCondition, changed bool) {
	wrong := r.wrong()
	after = slices.Clone(before)
	for _, w := range wordings {
		c := corev1.NamespaceCondition{Type: w.of, Status: corev1.ConditionFalse, Reason: w.reason, Message: w.message}
		if bad, is := wrong[w.of]; is {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, bad[0], bad[1]
		}
		i := slices.IndexFunc(after, func(o corev1.NamespaceCondition) bool { return o.Type == w.of })
		if i < 0 {
			c.LastTransitionTime = metav1.NewTime(now)
			after, changed = append(after, c), true
			continue
		}
		c.LastTransitionTime = after[i].LastTransitionTime
		if c != after[i] {
			if c.Status != after[i].Status {
				c.LastTransitionTime = metav1.NewTime(now)
			}
			after[i], changed = c, true
		}
	}
	return after, changed
}

// wrong is the reason and message of every condition that is not well.
func (r remains) wrong() map[corev1.NamespaceConditionType][2]string {
	wrong := map[corev1.NamespaceConditionType][2]string{}
	if r.undiscovered != nil {
		message := r.undiscovered.Error()
		if failed, ok := errors.AsType[*discovery.ErrGroupDiscoveryFailed](r.undiscovered); ok {
			message = fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(failed.Groups), failed)
		}
		wrong[corev1.NamespaceDeletionDiscoveryFailure] = [2]string{"DiscoveryFailed", message}
	}
	if r.unparsed != nil {
		wrong[corev1.NamespaceDeletionGVParsingFailure] = [2]string{"GroupVersionParsingFailed", r.unparsed.Error()}
	}
	if len(r.failures) > 0 {
		var texts []string
		for _, err := range r.failures {
			texts = append(texts, err.Error())
		}
		slices.Sort(texts)
		wrong[corev1.NamespaceDeletionContentFailure] = [2]string{"ContentDeletionFailed", fmt.Sprintf("Failed to delete all resource types, %d remaining: %v", len(texts), strings.Join(texts, ", "))}
	}
	if r.pods > 0 {
		return wrong // Compat: while pods go first, nothing is said of what remains
	}
	if len(r.objects) > 0 {
		wrong[corev1.NamespaceContentRemaining] = [2]string{"SomeResourcesRemain", "Some resources are remaining: " + listed(r.objects, func(gr schema.GroupResource, n int) string {
			return fmt.Sprintf("%s.%s has %d resource instances", gr.Resource, gr.Group, n)
		})}
	}
	if len(r.finalizers) > 0 {
		wrong[corev1.NamespaceFinalizersRemaining] = [2]string{"SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: " + listed(r.finalizers, func(f string, n int) string {
			return fmt.Sprintf("%s in %d resource instances", f, n)
		})}
	}
	return wrong
}

func listed[K comparable](counts map[K]int, say func(K, int) string) string {
	var texts []string
	for k, n := range counts {
		texts = append(texts, say(k, n))
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}
