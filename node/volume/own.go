package volume

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

// fsGroup is the group that a pod's volumes belong to, if it has one.
func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// fsUser is the user of all containers of pod, nil when they differ or one does
// not say.
func fsUser(pod *corev1.Pod) *int64 {
	var user *int64
	for c := range containers(pod) {
		var as *int64
		if pod.Spec.SecurityContext != nil {
			as = pod.Spec.SecurityContext.RunAsUser
		}
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			as = c.SecurityContext.RunAsUser
		}
		if as == nil || user != nil && *user != *as {
			return nil
		}
		user = as
	}
	return user
}

// onMismatch reports whether pod wants volumes that look right left alone.
func onMismatch(pod *corev1.Pod) bool {
	return pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.FSGroupChangePolicy != nil &&
		*pod.Spec.SecurityContext.FSGroupChangePolicy == corev1.FSGroupChangeOnRootMismatch
}

const (
	readWrite = fs.FileMode(0o660)
	readOnly  = fs.FileMode(0o440)
	search    = fs.FileMode(0o110)
)

// own gives everything below dir to a group, which may read and, unless
// readonly, write it; folders pass the group on. The root is done last, so that
// a root that looks right says that the rest was done. With onlyMismatch such a
// volume is left alone.
func own(dir string, group *int64, readonly, onlyMismatch bool) error {
	if group == nil || onlyMismatch && owned(dir, *group, readonly) {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			err = own(path, group, readonly, false)
		} else {
			err = give(path, int(*group), readonly)
		}
		if err != nil {
			return err
		}
	}
	return give(dir, int(*group), readonly)
}

func give(path string, group int, readonly bool) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if err := chown(path, -1, group); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil // its own mode means nothing, and chmod would change another file
	}
	mode := readWrite
	if readonly {
		mode = readOnly
	}
	if info.IsDir() {
		mode |= search | fs.ModeSetgid
	}
	return os.Chmod(path, info.Mode()|mode)
}

func owned(dir string, group int64, readonly bool) bool {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	mode := readWrite | search
	if readonly {
		mode = readOnly | search
	}
	return ok && int64(stat.Gid) == group && info.Mode().Perm()&mode == mode && info.Mode()&fs.ModeSetgid != 0
}

// chown changes who owns a file or link. Who is not root cannot, and runs
// containers as itself, so nothing is lost when it does not.
func chown(path string, user, group int) error {
	err := os.Lchown(path, user, group)
	if os.Geteuid() != 0 && os.IsPermission(err) {
		return nil
	}
	return err
}
