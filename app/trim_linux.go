package app

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// trim gives back the pages of the program's own file that the start has
// touched: most are of initializers that never run again. What is needed later
// is mapped anew from the page cache, a few microseconds at a time. Only pages
// that cannot be written are given up, so nothing is lost.
func trim() error {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close() //nolint:errcheck // only read
	var errs []error
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var from, to uintptr
		var may string
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x %4s", &from, &to, &may); n != 3 {
			continue
		}
		if !strings.HasSuffix(lines.Text(), " "+self) || may != "r--p" && may != "r-xp" {
			continue
		}
		pages := unsafe.Slice((*byte)(unsafe.Add(nil, from)), to-from)
		errs = append(errs, unix.Madvise(pages, unix.MADV_DONTNEED))
	}
	return errors.Join(append(errs, lines.Err())...)
}
