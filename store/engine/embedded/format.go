package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The data folder:
//
//	FORMAT      "setpoint-store 1"; with a second line "new" until the database
//	            was created whole
//	LOCK        held while the store is open; the holder's process id
//	INVENTORY   files that the database cannot do without, see inventory.go
//	pebble/     the database
const (
	formatName    = "FORMAT"
	databaseName  = "pebble"
	tempSuffix    = ".tmp"
	formatWord    = "setpoint-store"
	formatVersion = "1"

	formatText    = formatWord + " " + formatVersion + "\n"
	formatTextNew = formatText + "new\n"
)

// prepareFolder reads FORMAT. It reports whether the database has yet to be
// created, and has then cleared away what an interrupted creation left and
// written FORMAT. It refuses a folder that holds anything else.
func prepareFolder(disk vfs.FS, dir string) (create bool, err error) {
	text, err := readFile(disk, disk.PathJoin(dir, formatName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		names, err := disk.List(dir)
		if err != nil {
			return false, err
		}
		for _, name := range names {
			if name != lockName && name != formatName+tempSuffix {
				return false, fmt.Errorf("%s holds %s but no %s: it is not a store, or the file was removed; %s",
					dir, name, formatName, restoreHint)
			}
		}
		return true, writeFile(disk, dir, formatName, []byte(formatTextNew))
	case err != nil:
		return false, err
	case string(text) == formatTextNew:
		// No transaction was ever acknowledged from here.
		if err := disk.RemoveAll(disk.PathJoin(dir, databaseName)); err != nil {
			return false, err
		}
		err := disk.Remove(disk.PathJoin(dir, inventoryName))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		return true, nil
	case string(text) == formatText:
		return false, nil
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if version, ok := strings.CutPrefix(line, formatWord+" "); ok && version != formatVersion {
		return false, fmt.Errorf("%s has format version %q, this program reads version %s; use the program that wrote it, or restore from a backup copy",
			dir, version, formatVersion)
	}
	return false, fmt.Errorf("%s is damaged: %s does not read %q; %s", dir, formatName, strings.TrimSpace(formatText), restoreHint)
}

// writeFile puts data under a name such that after a crash the file is there
// whole, or is what it was before.
func writeFile(disk vfs.FS, dir, name string, data []byte) (err error) {
	temp := disk.PathJoin(dir, name+tempSuffix)
	f, err := disk.Create(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// A vfs file may scribble on what it is given.
	_, err = f.Write(bytes.Clone(data))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := disk.Rename(temp, disk.PathJoin(dir, name)); err != nil {
		return err
	}
	return syncDir(disk, dir)
}

func syncDir(disk vfs.FS, dir string) error {
	d, err := disk.OpenDir(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

func readFile(disk vfs.FS, path string) ([]byte, error) {
	f, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return data, err
}
