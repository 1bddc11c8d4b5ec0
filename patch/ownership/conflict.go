package ownership

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// conflicts are the fields that others own and an apply would change.
type conflicts []conflict

type conflict struct {
	with who
	id   string
	path fieldpath.Path
}

// Error says how many.
func (c conflicts) Error() string { return fmt.Sprintf("%d conflicts", len(c)) }

// conflictsOf are the conflicts about what is taken, by owner.
func conflictsOf(all []taken) conflicts {
	var c conflicts
	for _, t := range all {
		id := t.from.id()
		t.fields.Iterate(func(p fieldpath.Path) { c = append(c, conflict{t.from, id, p.Copy()}) })
	}
	c.sort()
	return c
}

// sort puts the conflicts with one owner together. Compat: upstream leaves the
// order of owners to chance.
func (c conflicts) sort() {
	slices.SortStableFunc(c, func(a, b conflict) int { return strings.Compare(a.id, b.id) })
}

// beyond are the conflicts about fields that are not in a set.
func (c conflicts) beyond(allowed *fieldpath.Set) conflicts {
	return slices.DeleteFunc(slices.Clone(c), func(one conflict) bool { return allowed.Has(one.path) })
}

// asStatus is an error as clients see it.
func asStatus(err error) error {
	c, ok := errors.AsType[conflicts](err)
	if !ok {
		return err
	}
	causes := make([]metav1.StatusCause, len(c))
	for i, one := range c {
		causes[i] = metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict, Message: "conflict with " + one.with.String(), Field: one.path.String()}
	}
	return apierrors.NewApplyConflict(causes, c.message())
}

func (c conflicts) message() string {
	if len(c) == 1 {
		return fmt.Sprintf("Apply failed with 1 conflict: conflict with %v: %v", c[0].with, c[0].path)
	}
	var lines []string
	for i, one := range c {
		if i == 0 || one.with != c[i-1].with {
			lines = append(lines, fmt.Sprintf("conflicts with %v:", one.with))
		}
		lines = append(lines, fmt.Sprintf("- %v", one.path))
	}
	return fmt.Sprintf("Apply failed with %d conflicts: %s", len(c), strings.Join(lines, "\n"))
}

// String names an owner as conflicts do.
func (w who) String() string {
	name := fmt.Sprintf("%q", w.manager)
	if w.subresource != "" {
		name += fmt.Sprintf(" with subresource %q", w.subresource)
	}
	if !w.applies() {
		name += fmt.Sprintf(" using %v", w.version)
	}
	return name
}
