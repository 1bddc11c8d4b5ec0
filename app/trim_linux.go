package app

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// trim gives back the pages of the program's own file that have been touched:
// after the start most are of initializers that never run again. What is needed
// later is mapped anew from the page cache, a few microseconds at a time.
func trim() error {
	clean, err := ownPages()
	for _, m := range clean {
		err = errors.Join(err, unix.Madvise(m.bytes(), unix.MADV_DONTNEED))
	}
	return err
}

// ownPages are the clean mappings of the program's file.
func ownPages() ([]mapping, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	return cleanMappings(f, self)
}

type mapping struct{ from, to uintptr }

func (m mapping) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(nil, m.from)), m.to-m.from)
}

// cleanMappings finds in a process's smaps where a file is mapped and is the
// same in memory: it cannot be written, and no page has been. The linker's
// tables, which are written and then closed, are no such place.
func cleanMappings(smaps io.Reader, file string) ([]mapping, error) {
	var clean []mapping
	var here mapping
	ours := false
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		var m mapping
		var may string
		if n, _ := fmt.Sscanf(line, "%x-%x %4s", &m.from, &m.to, &may); n == 3 {
			here, ours = m, strings.HasSuffix(line, " "+file) && (may == "r--p" || may == "r-xp")
			continue
		}
		var changed int
		if n, _ := fmt.Sscanf(line, "Anonymous: %d kB", &changed); n == 1 && ours && changed == 0 {
			clean = append(clean, here)
		}
	}
	return clean, lines.Err()
}
