package initializer

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChangesOfTheList(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after                string
		removed, ahead, added, moved string
		warnings                     int
	}{
		"nothing":                     {before: "a b", after: "a b"},
		"the next one":                {before: "a b", after: "b", removed: "a"},
		"the next two":                {before: "a b c", after: "c", removed: "a b"},
		"all":                         {before: "a b", after: "", removed: "a b"},
		"one that is not next":        {before: "a b c", after: "a c", removed: "b", ahead: "b", warnings: 1},
		"added at the end":            {before: "a", after: "a b", added: "b", warnings: 1},
		"added in front":              {before: "a", after: "b a", added: "b", warnings: 1},
		"next one off and another on": {before: "a b", after: "b c", removed: "a", added: "c", warnings: 1},
		"order":                       {before: "a b", after: "b a", moved: "a b", warnings: 1},
		"one of two of a name":        {before: "a a b", after: "a b", removed: "a", ahead: "a", warnings: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := compare(strings.Fields(tc.before), strings.Fields(tc.after))
			got := []string{strings.Join(c.removed, " "), strings.Join(c.ahead, " "), strings.Join(c.added, " "), strings.Join(c.moved, " ")}
			if diff := cmp.Diff([]string{tc.removed, tc.ahead, tc.added, tc.moved}, got); diff != "" {
				t.Error(diff)
			}
			if n := len(c.warnings()); n != tc.warnings {
				t.Errorf("%d warnings: %q", n, c.warnings())
			}
		})
	}
}
