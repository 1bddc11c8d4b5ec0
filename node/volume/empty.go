package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"setpoint.dev/setpoint/node/cgroup"
)

// empty makes a folder for a pod's own files, once: what lies in it stays, and
// so does what the pod makes of its modes and owners. A mark says that it was
// made to the end.
func (v *Volumes) empty(pod *corev1.Pod, volume *corev1.Volume) error {
	dir, medium := v.place(pod, volume), volume.EmptyDir.Medium
	mark := filepath.Join(v.dir(pod.UID), "plugins", kindOf(volume), volume.Name, "ready")
	if done, err := v.made(dir, mark, medium); err != nil || done {
		return err
	}
	var err error
	switch {
	case medium == corev1.StorageMediumMemory && v.tmpfs:
		err = v.memory(pod, dir, v.memorySize(pod, volume.EmptyDir.SizeLimit))
	case medium == corev1.StorageMediumDefault || medium == corev1.StorageMediumMemory:
		err = makeDir(dir)
	case strings.HasPrefix(string(medium), string(corev1.StorageMediumHugePages)):
		err = v.hugePages(pod, dir, medium)
	default:
		err = fmt.Errorf("unknown storage medium %q", medium)
	}
	if err != nil {
		return err
	}
	if err := own(dir, fsGroup(pod), false, false); err != nil {
		return err
	}
	if medium == corev1.StorageMediumMemory && !v.tmpfs {
		v.cfg.Event(pod, corev1.EventTypeWarning, "VolumeNotInMemory",
			fmt.Sprintf("volume %q is a folder on disk: this node may not mount file systems in memory", volume.Name))
	}
	if err := os.MkdirAll(filepath.Dir(mark), 0o750); err != nil {
		return err
	}
	return os.WriteFile(mark, nil, 0o640)
}

// made reports whether a volume was made to the end, and is still there: what
// lies in memory is not after a restart of the machine.
func (v *Volumes) made(dir, mark string, medium corev1.StorageMedium) (bool, error) {
	for _, path := range []string{mark, dir} {
		if _, err := os.Lstat(path); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return false, nil
			}
			return false, err
		}
	}
	if medium == corev1.StorageMediumDefault || !v.tmpfs {
		return true, nil
	}
	return isMount(dir)
}

// makeDir makes a folder that every user of a container may use. What is above
// it is closed to others.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil || info.Mode()&fs.ModeSetgid != 0 || info.Mode().Perm() == 0o777 {
		return err
	}
	return os.Chmod(dir, 0o777)
}

// memory makes a folder that lies in memory, of at most size bytes; 0 is as
// much as pods of this node can have.
func (v *Volumes) memory(pod *corev1.Pod, dir string, size int64) error {
	if mounted, err := isMount(dir); err != nil || mounted {
		return err
	}
	if err := makeDir(dir); err != nil {
		return err
	}
	if size == 0 {
		size = v.memorySize(pod, nil)
	}
	return mountTmpfs(dir, size)
}

// memorySize is the least of what the node can give, the pod may have and the
// volume may grow to.
func (v *Volumes) memorySize(pod *corev1.Pod, limit *resource.Quantity) int64 {
	allocatable := v.cfg.NodeAllocatable()
	size := allocatable.Memory().Value()
	least := func(of int64) {
		if of > 0 && (size == 0 || of <= size) {
			size = of
		}
	}
	least(cgroup.MemoryLimit(pod))
	if limit != nil {
		least(limit.Value())
	}
	return size
}

// hugePages makes a folder on pages of the size that the pod requests.
func (v *Volumes) hugePages(pod *corev1.Pod, dir string, medium corev1.StorageMedium) error {
	size, err := pageSize(pod, medium)
	if err != nil {
		return err
	}
	if mounted, err := isMount(dir); err != nil || mounted {
		return err
	}
	if err := makeDir(dir); err != nil {
		return err
	}
	return mountHugePages(dir, size)
}

// pageSize finds the size of pages for a medium among those that pod requests.
func pageSize(pod *corev1.Pod, medium corev1.StorageMedium) (string, error) {
	wanted, named := strings.CutPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix))
	found := ""
	visit := func(requests corev1.ResourceList) error {
		for name := range requests {
			size, huge := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
			switch {
			case !huge || named && size != wanted:
			case found != "" && found != size:
				return fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes", medium)
			default:
				found = size
			}
		}
		return nil
	}
	if pod.Spec.Resources != nil {
		if err := visit(pod.Spec.Resources.Requests); err != nil {
			return "", err
		}
	}
	for c := range containers(pod) {
		if err := visit(c.Resources.Requests); err != nil {
			return "", err
		}
	}
	if found == "" {
		return "", fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages", medium)
	}
	return found, nil
}
