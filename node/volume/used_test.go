package volume

import (
	"os"
	"path/filepath"
	"testing"
)

func TestUsed(t *testing.T) {
	v, p := open(t, sources()), pod(t, "[{name: a, emptyDir: {}}, {name: b, emptyDir: {}}, {name: c, hostPath: {path: /}}]")
	if err := v.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	before := v.Used(p)
	if err := os.WriteFile(filepath.Join(v.place(p, &p.Spec.Volumes[0]), "large"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	after := v.Used(p)
	if len(before) != 2 || len(after) != 2 || after[0].Name != "a" || after[1].Name != "b" {
		t.Fatalf("used was %v and is %v", before, after)
	}
	if grown := *after[0].UsedBytes - *before[0].UsedBytes; grown < 1<<20 || grown > 3<<19 || *after[0].InodesUsed != *before[0].InodesUsed+1 || *after[1].UsedBytes != *before[1].UsedBytes {
		t.Errorf("used was %v and is %v", before, after)
	}
}
