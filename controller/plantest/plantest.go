// Package plantest compares what plan functions decide with what is written down
// of them in files, which the flag -rewrite records anew.
package plantest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "record what plans are now")

// Golden compares a description of plans with the file of that name in testdata.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("plans differ from %s:\n%s", path, diff)
	}
}

// Cases compares what is decided in named cases, sorted by their names, with the
// file of that name in testdata.
func Cases[T any](t *testing.T, name string, cases map[string]T, decide func(T) string) {
	t.Helper()
	var b strings.Builder
	for _, c := range slices.Sorted(maps.Keys(cases)) {
		fmt.Fprintf(&b, "# %s\n%s\n", c, decide(cases[c]))
	}
	Golden(t, name, b.String())
}
