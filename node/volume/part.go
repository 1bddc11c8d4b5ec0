package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// part returns a path for a part of a volume that no container can lead
// elsewhere: the part is opened below the volume, never through a link out of
// it, and what was opened is bound to a path that only the node can change. A
// part that does not exist becomes a folder with the volume's own mode.
//
// Where nothing can be mounted, the path is that which was looked at. Containers
// are the node's own user there, so a link could show them no more than they can
// see without.
func (v *Volumes) part(pod *corev1.Pod, volume, part, name string) (string, error) {
	whole, err := filepath.EvalSymlinks(volume)
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(whole)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	if err := makePart(root, part); err != nil {
		return "", err
	}
	if !v.tmpfs {
		if _, err := root.Stat(part); err != nil {
			return "", err
		}
		return filepath.EvalSymlinks(filepath.Join(whole, part))
	}
	info, err := root.Stat(part)
	if err != nil {
		return "", err
	}
	target := filepath.Join(v.dir(pod.UID), "volume-subpaths", name)
	return target, bindPart(root, part, info, target)
}

// makePart makes what is missing of a part, with the modes of the volume.
func makePart(root *os.Root, part string) error {
	if _, err := root.Stat(part); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	path := ""
	for element := range strings.SplitSeq(filepath.ToSlash(filepath.Clean(part)), "/") {
		path = filepath.Join(path, element)
		err := root.Mkdir(path, info.Mode().Perm())
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		// The umask, and bits that mkdir does not take.
		if err := root.Chmod(path, info.Mode()&(fs.ModePerm|fs.ModeSetgid|fs.ModeSetuid|fs.ModeSticky)); err != nil {
			return err
		}
	}
	return nil
}
