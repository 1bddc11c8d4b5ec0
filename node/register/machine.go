//go:build linux || darwin

package register

import (
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// common is what is asked for in the same way everywhere. The size of the disk
// is that of the nearest folder there is.
func common(dir string) Machine {
	m := Machine{CPUs: int64(runtime.NumCPU()), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if dir == "" {
		dir = "/"
	}
	for {
		var s unix.Statfs_t
		if unix.Statfs(dir, &s) == nil {
			m.Storage = int64(s.Blocks) * int64(s.Bsize) //nolint:unconvert // it is another type on macOS
			return m
		}
		above := filepath.Dir(dir)
		if above == dir {
			return m
		}
		dir = above
	}
}
