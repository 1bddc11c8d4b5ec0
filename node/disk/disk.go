// Package disk says how much room files take up.
//
// In comes a folder; out come bytes and files below it. A file with several names
// counts once, and what goes away meanwhile does not count.
package disk

import (
	"io/fs"
	"path/filepath"
	"syscall"
)

// block is the unit that file systems count in.
const block = 512

// Used is what a folder and all below it take up; nothing when it is not there.
func Used(dir string) (bytes, files uint64) {
	counted := map[uint64]bool{} // files with several names
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it is gone
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // it is gone
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if stat.Nlink > 1 && !d.IsDir() {
			if counted[stat.Ino] {
				return nil
			}
			counted[stat.Ino] = true
		}
		bytes += uint64(stat.Blocks) * block
		files++
		return nil
	})
	return bytes, files
}
