package app

import (
	"fmt"
	"os"
	"slices"
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
	own, err := ownPages()
	if err != nil {
		t.Fatal(err)
	}
	sum := byte(0)
	for _, m := range own {
		for at := 0; at < len(m.bytes()); at += os.Getpagesize() {
			sum += m.bytes()[at]
		}
	}
	before := mapped(t)
	if err := trim(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after > before/2 {
		t.Errorf("%d KiB of files in memory, %d before (%d)", after, before, sum)
	}
}

// What has been written must stay, even where it cannot be written any more.
func TestTrimKeepsWhatWasWritten(t *testing.T) {
	const smaps = `1000-3000 r--p 00000000 fe:00 1 /bin/setpoint
Size: 8 kB
Anonymous: 0 kB
3000-5000 r-xp 00002000 fe:00 1 /bin/setpoint
Anonymous:             0 kB
VmFlags: rd ex
5000-6000 r--p 00004000 fe:00 1 /bin/setpoint
Anonymous:             4 kB
6000-7000 rw-p 00005000 fe:00 1 /bin/setpoint
Anonymous:             0 kB
7000-8000 r--p 00000000 fe:00 1 /lib/libc.so
Anonymous:             0 kB
8000-9000 r--p 00000000 00:00 0
Anonymous:             0 kB
`
	got, err := cleanMappings(strings.NewReader(smaps), "/bin/setpoint")
	if want := []mapping{{0x1000, 0x3000}, {0x3000, 0x5000}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
