package disk_test

import (
	"os"
	"path/filepath"
	"testing"

	"setpoint.dev/setpoint/node/disk"
)

func TestUsed(t *testing.T) {
	dir := t.TempDir()
	before, _ := disk.Used(dir)
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "large"), filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	after, files := disk.Used(dir)
	if grown := after - before; grown < 1<<20 || grown > 3<<19 || files != 2 {
		t.Errorf("%d bytes more, in %d files", grown, files)
	}
	if bytes, files := disk.Used(filepath.Join(dir, "missing")); bytes != 0 || files != 0 {
		t.Errorf("what is not there takes up %d bytes in %d files", bytes, files)
	}
}
