package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// checkHostPath looks at a path of the host, and makes it where its type says
// so. Links are followed: whoever may name a path of the host may name any.
func checkHostPath(s *corev1.HostPathVolumeSource) error {
	if slices.Contains(strings.Split(filepath.ToSlash(s.Path), "/"), "..") {
		return fmt.Errorf("invalid HostPath `%s`: must not contain '..'", s.Path)
	}
	if s.Type == nil || *s.Type == corev1.HostPathUnset {
		return nil
	}
	info, err := os.Stat(s.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	mode := fs.ModeIrregular
	if info != nil {
		mode = info.Mode() & fs.ModeType
	}
	is := func(want fs.FileMode, what string) error {
		if mode != want {
			return fmt.Errorf("hostPath type check failed: %s is not a %s", s.Path, what)
		}
		return nil
	}
	switch *s.Type {
	case corev1.HostPathDirectoryOrCreate:
		if info == nil {
			return os.MkdirAll(s.Path, 0o755)
		}
		return is(fs.ModeDir, "directory")
	case corev1.HostPathDirectory:
		return is(fs.ModeDir, "directory")
	case corev1.HostPathFileOrCreate:
		if info == nil {
			return makeFile(s.Path)
		}
		return is(0, "file")
	case corev1.HostPathFile:
		return is(0, "file")
	case corev1.HostPathSocket:
		return is(fs.ModeSocket, "socket file")
	case corev1.HostPathCharDev:
		return is(fs.ModeDevice|fs.ModeCharDevice, "character device")
	case corev1.HostPathBlockDev:
		return is(fs.ModeDevice, "block device")
	}
	return fmt.Errorf("%s is an invalid volume type", *s.Type)
}

func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
