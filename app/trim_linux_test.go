package app

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// mapped is how many KiB of files the process has in memory.
func mapped(t *testing.T) (size int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &size); n == 1 {
			return size
		}
	}
	t.Skip("the kernel does not tell mapped files apart")
	return 0
}

func TestTrimGivesBackTheProgramsPages(t *testing.T) {
	before := mapped(t)
	if err := trim(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after > before/2 {
		t.Errorf("%d KiB of files in memory, %d before", after, before)
	}
}
