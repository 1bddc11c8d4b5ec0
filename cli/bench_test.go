package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestBenchmarksAreFoundInACheckout(t *testing.T) {
	t.Chdir("..")
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(root, "server", "rest"))
	if got, err := benchmarks(); err != nil || got != filepath.Join(root, "test", "bench") {
		t.Errorf("in %s: %q, %v", "server/rest", got, err)
	}
	t.Chdir(t.TempDir())
	c := benchCommand()
	c.SetArgs(nil)
	c.SilenceUsage, c.SilenceErrors = true, true
	if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "make bench") {
		t.Errorf("outside of a checkout: %v", err)
	}
}
