package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

const (
	top         = "/sys/fs/cgroup"
	capResource = 24 // CAP_SYS_RESOURCE
)

// Unified reports whether the kernel's groups are of version 2.
var Unified = sync.OnceValue(func() bool {
	var s unix.Statfs_t
	return unix.Statfs(top, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
})

// pageSizes are the sizes of huge pages that the host has, as groups name them.
var pageSizes = sync.OnceValue(func() []string {
	var sizes []string
	dirs, _ := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	for _, dir := range dirs {
		kilo := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB")
		sizes = append(sizes, pageName(kilo+"Ki"))
	}
	return sizes
})

// swapLimited reports whether the kernel can limit swap.
var swapLimited = sync.OnceValue(func() bool {
	if !Unified() {
		return exists(filepath.Join(top, "memory", "memory.memsw.limit_in_bytes"))
	}
	// The top group has no limits, so this process' own is asked.
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(own)) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return exists(filepath.Join(top, group, "memory.swap.max"))
		}
	}
	return false
})

// mayLower reports whether this process may make others less likely to be
// killed than itself.
var mayLower = sync.OnceValue(func() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return err == nil && caps&(1<<capResource) != 0
		}
	}
	return false
})

// allowed is the score that this process can give.
func allowed(score int64) int64 {
	if score < 0 && !mayLower() {
		return 0
	}
	return score
}

// controllers are those that containers' groups use.
var controllers = []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "io", "pids", "hugetlb", "net_cls", "net_prio", "perf_event", "rdma", "misc"}

// writable finds the hierarchies where a group of this name can be made: all of
// those with limits or none; and those without limits.
func writable(name string) (mounts map[string]string, others []string) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	mounts = map[string]string{}
	if Unified() {
		have, err := os.ReadFile(filepath.Join(top, "cgroup.controllers"))
		if err != nil {
			return nil, nil
		}
		for c := range strings.FieldsSeq(string(have)) {
			mounts[c] = top
		}
	} else {
		infos, err := mount.ParseMountInfo("/proc/self/mountinfo")
		if err != nil {
			return nil, nil
		}
		for _, info := range infos {
			limits := slices.ContainsFunc(info.SuperOptions, func(o string) bool { return slices.Contains(controllers, o) })
			switch {
			case info.FsType == "cgroup2" || info.FsType == "cgroup" && !limits:
				others = append(others, info.MountPoint)
			case info.FsType == "cgroup":
				shortest(mounts, info)
			}
		}
	}
	for _, mount := range mounts {
		if makeGroup(mount, name, Unified()) != nil {
			return nil, nil
		}
	}
	return mounts, others
}

// shortest takes a hierarchy for its controllers, unless they have a shorter path.
func shortest(mounts map[string]string, info mount.MountInfo) {
	for _, c := range info.SuperOptions {
		if held := mounts[c]; slices.Contains(controllers, c) && (held == "" || len(info.MountPoint) < len(held)) {
			mounts[c] = info.MountPoint
		}
	}
}

// makeGroup makes a group and those above it, and lets each pass on what it has.
func makeGroup(mount, name string, unified bool) error {
	at := ""
	for part := range strings.SplitSeq(name, "/") {
		if unified {
			if err := passOn(filepath.Join(mount, at)); err != nil {
				return err
			}
		}
		above := at
		at = path.Join(at, part)
		dir := filepath.Join(mount, at)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := inherit(filepath.Join(mount, above), dir); err != nil {
			return err
		}
	}
	return nil
}

// passOn lets groups below dir use all controllers that dir has.
func passOn(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	on, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	given := strings.Fields(string(on))
	for c := range strings.FieldsSeq(string(have)) {
		if slices.Contains(given, c) {
			continue
		}
		if err := writeValue(filepath.Join(dir, "cgroup.subtree_control"), "+"+c); err != nil {
			return err
		}
	}
	return nil
}

// inherit copies the CPUs and memory nodes of the group above, without which no
// process can enter a group of version 1.
func inherit(above, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		held, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || strings.TrimSpace(string(held)) != "" || Unified() {
			continue
		}
		from, err := os.ReadFile(filepath.Join(above, file))
		if err != nil {
			continue
		}
		if err := writeValue(filepath.Join(dir, file), strings.TrimSpace(string(from))); err != nil {
			return err
		}
	}
	return nil
}

// writeValue writes to a file of the kernel. A limit that a group of this kernel
// does not have is passed over.
func writeValue(file, text string) error {
	err := os.WriteFile(file, []byte(text), 0o644)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) && !exists(file) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write %s to %s: %w", text, file, err)
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// removeEmpty removes a group in which there is nothing.
func removeEmpty(dir string) { _ = unix.Rmdir(dir) }

// removeGroup removes a group and those below it, the lowest first.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	// Only rmdir: the files of a group are the kernel's.
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove group %s: %w", dir, err)
	}
	return nil
}
