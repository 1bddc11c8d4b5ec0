package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Compat: programs watch these names to learn of a change.
//
//	<dir>/..data       -> ..2026_01_02_03_04_05.123    the files there are now
//	<dir>/<first part> -> ..data/<first part>          how users see them
const (
	current = "..data"
	next    = "..data_tmp"
	stamp   = "..2006_01_02_15_04_05."
)

const (
	maxPath = 4096
	maxName = 255
)

// write makes dir hold want: all of it at once, and only when it differs. Before
// files become visible, settle is called to set their owners.
func write(dir string, want files, settle func() error) error {
	for path := range want {
		if err := checkPath(path); err != nil {
			return err
		}
	}
	link := filepath.Join(dir, current)
	old, err := os.Readlink(link)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	same, err := holds(filepath.Join(dir, old), want)
	if err != nil {
		return err
	}
	if old == "" || !same {
		if err := replace(dir, link, want, settle); err != nil {
			return err
		}
	}
	if err := show(dir, want); err != nil {
		return err
	}
	return sweep(dir)
}

// replace writes want into a new folder and then makes that the current one.
func replace(dir, link string, want files, settle func() error) error {
	made, err := os.MkdirTemp(dir, time.Now().UTC().Format(stamp))
	if err != nil {
		return err
	}
	if err = fill(made, want); err == nil {
		err = settle()
	}
	if err == nil {
		tmp := filepath.Join(dir, next)
		_ = os.Remove(tmp) // one that a killed agent left
		if err = os.Symlink(filepath.Base(made), tmp); err == nil {
			err = os.Rename(tmp, link)
		}
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(made))
	}
	return nil
}

func fill(dir string, want files) error {
	// A umask must not keep a container's user out.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for path, f := range want {
		full := filepath.Join(dir, path)
		if err := makeParents(dir, path); err != nil {
			return err
		}
		if err := os.WriteFile(full, f.data, f.mode); err != nil {
			return err
		}
		if err := os.Chmod(full, f.mode); err != nil {
			return err
		}
		if f.user == nil {
			continue
		}
		if err := chown(full, int(*f.user), -1); err != nil {
			return err
		}
	}
	return nil
}

func makeParents(dir, path string) error {
	for i, c := range path {
		if c != filepath.Separator {
			continue
		}
		err := os.Mkdir(filepath.Join(dir, path[:i]), 0o755)
		if err == nil {
			err = os.Chmod(filepath.Join(dir, path[:i]), 0o755)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// holds reports whether a folder has the data of want and nothing else.
func holds(dir string, want files) (bool, error) {
	seen, same := 0, true
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, wanted := want[rel]
		if !wanted {
			same = false
			return fs.SkipAll
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if seen++; !bytes.Equal(data, f.data) {
			same = false
			return fs.SkipAll
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return same && seen == len(want), err
}

// show makes the links that users see.
func show(dir string, want files) error {
	for path, f := range want {
		name, _, _ := strings.Cut(path, string(filepath.Separator))
		visible := filepath.Join(dir, name)
		if _, err := os.Lstat(visible); err == nil {
			continue
		}
		if err := os.Symlink(filepath.Join(current, name), visible); err != nil {
			return err
		}
		if f.user == nil {
			continue
		}
		if err := chown(visible, int(*f.user), -1); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes links that lead nowhere now, and folders that are not current:
// the one before, and those that a killed agent left.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	keep, err := os.Readlink(filepath.Join(dir, current))
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && strings.HasPrefix(e.Name(), "..") && e.Name() != keep:
			failed = append(failed, os.RemoveAll(path))
		case e.Type()&fs.ModeSymlink != 0 && e.Name() != current:
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				failed = append(failed, os.Remove(path))
			}
		}
	}
	return errors.Join(failed...)
}

func checkPath(path string) error {
	parts := strings.Split(path, string(filepath.Separator))
	switch {
	case path == "":
		return fmt.Errorf("invalid path: must not be empty: %q", path)
	case filepath.IsAbs(path):
		return fmt.Errorf("invalid path: must be relative path: %s", path)
	case len(path) > maxPath:
		return fmt.Errorf("invalid path: must be less than or equal to %d characters", maxPath)
	case slices.Contains(parts, ".."):
		return fmt.Errorf("invalid path: must not contain '..': %s", path)
	case slices.ContainsFunc(parts, func(part string) bool { return len(part) > maxName }):
		return fmt.Errorf("invalid path: filenames must be less than or equal to %d characters", maxName)
	case strings.HasPrefix(parts[0], ".."):
		return fmt.Errorf("invalid path: must not start with '..': %s", path)
	}
	return nil
}

// makeNested makes the folders that other volumes are mounted on inside this
// one, which the runtime could not make: it mounts this one for reading only.
func makeNested(pod *corev1.Pod, name, dir string) error {
	for c := range containers(pod) {
		for _, m := range c.VolumeMounts {
			if m.Name != name || m.SubPath != "" || m.SubPathExpr != "" {
				continue
			}
			for _, other := range c.VolumeMounts {
				rel, err := filepath.Rel(m.MountPath, other.MountPath)
				if err != nil || rel == "." || rel == ".." || strings.HasPrefix(rel, "../") {
					continue
				}
				if strings.HasPrefix(rel, "..") {
					return fmt.Errorf("invalid container path contains '..': %s", other.MountPath)
				}
				if err := os.MkdirAll(filepath.Join(dir, rel), 0o755); err != nil {
					return fmt.Errorf("unable to create nested volume mountpoints: %w", err)
				}
			}
		}
	}
	return nil
}
