package volume

import (
	"os"
	"path/filepath"
	"testing"
)

func TestUsed(t *testing.T) {
	v, p := open(t, sources()), pod(t, "[{name: a, emptyDir: {}}, {name: b, emptyDir: {}}]")
	if err := v.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	before := v.Used(p)
	dir := v.place(p, &p.Spec.Volumes[0])
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "large"), filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	after := v.Used(p)
	if grown := after["a"] - before["a"]; grown < 1<<20 || grown > 3<<19 || after["b"] != before["b"] {
		t.Errorf("used was %v and is %v", before, after)
	}
}
