package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

const table = "/proc/self/mountinfo"

// mayMount tries to mount a file system in memory, which says more than who one
// is: root in a container often may not.
func mayMount() bool {
	if os.Geteuid() != 0 {
		return false
	}
	dir, err := os.MkdirTemp("", "mount")
	if err != nil {
		return false
	}
	defer func() { _ = os.Remove(dir) }()
	if unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4096") != nil {
		return false
	}
	return unix.Unmount(dir, 0) == nil
}

// mountTmpfs mounts memory of at most size bytes, that is not swapped out where
// the kernel can promise that.
func mountTmpfs(dir string, size int64) error {
	options := ""
	if size > 0 {
		options = fmt.Sprintf("size=%d", size)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, strings.TrimPrefix(options+",noswap", ",")); err == nil {
		return nil
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	return nil
}

func mountHugePages(dir, size string) error {
	// The kernel reads 2M where quantities say 2Mi.
	if err := unix.Mount("nodev", dir, "hugetlbfs", 0, "pagesize="+strings.TrimSuffix(size, "i")); err != nil {
		return fmt.Errorf("mount hugetlbfs: %w", err)
	}
	return nil
}

// isMount reports whether something is mounted on a folder that is not a link.
func isMount(dir string) (bool, error) {
	var here, above unix.Stat_t
	err := unix.Lstat(dir, &here)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = unix.Lstat(filepath.Dir(dir), &above)
	}
	return here.Dev != above.Dev, err
}

// bindPart binds what part is below root to target, unless it is already.
func bindPart(root *os.Root, part string, info fs.FileInfo, target string) error {
	held, err := os.Lstat(target)
	if err == nil && os.SameFile(held, info) {
		return nil
	}
	if err == nil {
		if err := unmountBelow(target); err != nil {
			return err
		}
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if info.IsDir() {
		err = os.Mkdir(target, 0o750)
	} else {
		err = os.WriteFile(target, nil, 0o640)
	}
	if err != nil {
		return err
	}
	f, err := openPart(root, part, info)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", target, err)
	}
	return nil
}

// openPart opens part without acting on it: devices are not woken, pipes not
// waited for. The kernel keeps the way below root; one that cannot is asked step
// by step.
func openPart(root *os.Root, part string, info fs.FileInfo) (*os.File, error) {
	base, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = base.Close() }()
	fd, err := unix.Openat2(int(base.Fd()), part, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err == nil {
		return os.NewFile(uintptr(fd), part), nil
	}
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return nil, err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is neither a file nor a directory", part)
	}
	return root.OpenFile(part, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// unmountBelow unmounts dir and all that is mounted below it, the last first,
// and fails while anything is left.
func unmountBelow(dir string) error {
	whole, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	points, err := mountsBelow(whole)
	if err != nil {
		return err
	}
	var failed []error
	for _, point := range points {
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			failed = append(failed, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	if points, err = mountsBelow(whole); err == nil && len(points) > 0 {
		err = fmt.Errorf("%s is still mounted", points[0])
	}
	return err
}

// mountsBelow returns mount points at or below dir, the latest mount first.
func mountsBelow(dir string) ([]string, error) {
	infos, err := mount.ParseMountInfo(table)
	if err != nil {
		return nil, err
	}
	var points []string
	for _, info := range infos {
		if info.MountPoint == dir || strings.HasPrefix(info.MountPoint, dir+"/") {
			points = append(points, info.MountPoint)
		}
	}
	slices.Reverse(points)
	return points, nil
}
