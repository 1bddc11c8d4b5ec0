package cgroup

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	helper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Config says where groups are kept.
type Config struct {
	// Systemd says that the runtime leaves groups to systemd. Nothing is made
	// here then: systemd makes slices when it needs them.
	Systemd bool
	// Under is a group that all pods' groups lie in; "" is the top.
	Under string
}

// Tree is the groups of a node's pods.
type Tree struct {
	cfg Config
	// mounts are the places of hierarchies by controller: one for each on
	// version 1, all the same on version 2. There are none where no group can
	// be made.
	mounts map[string]string
	// others are hierarchies without limits, where runtimes put containers all
	// the same.
	others  []string
	unified bool
}

// Open finds the node's groups. A node that may not make any has a tree that
// makes none.
func Open(cfg Config) *Tree {
	t := &Tree{cfg: cfg, unified: Unified()}
	if !cfg.Systemd {
		t.mounts, t.others = writable(path.Join(cfg.Under, Root))
	}
	return t
}

// Parent returns the group that a pod's containers belong in, for the runtime;
// "" is for the runtime to decide.
func (t *Tree) Parent(pod *corev1.Pod) string {
	switch {
	case t.cfg.Systemd:
		return SystemdParent(pod)
	case len(t.mounts) == 0:
		return ""
	}
	return path.Join("/", t.cfg.Under, PodParent(pod))
}

// Ensure makes the group of a pod with the pod's limits, again if it is there.
func (t *Tree) Ensure(pod *corev1.Pod) error {
	return t.set(named(QOS(pod), pod.UID), Pod(pod))
}

// Balance gives the classes of pods their part of the CPU, by what their pods
// ask for, and all pods together what the node has for them.
func (t *Tree) Balance(pods []*corev1.Pod, allocatable corev1.ResourceList) error {
	burstable := int64(0)
	for _, pod := range pods {
		if QOS(pod) == corev1.PodQOSBurstable {
			requests := helper.PodRequests(pod, helper.PodResourcesOptions{})
			burstable += requests.Cpu().MilliValue()
		}
	}
	all := &runtimeapi.LinuxContainerResources{CpuShares: shares(allocatable.Cpu().MilliValue()), MemoryLimitInBytes: allocatable.Memory().Value()}
	if err := t.set(Root, all); err != nil {
		return err
	}
	if err := t.set(ofClass(corev1.PodQOSBurstable), &runtimeapi.LinuxContainerResources{CpuShares: shares(burstable)}); err != nil {
		return err
	}
	return t.set(ofClass(corev1.PodQOSBestEffort), &runtimeapi.LinuxContainerResources{CpuShares: minShares})
}

// set makes a group in every hierarchy and writes what it may use.
func (t *Tree) set(name string, r *runtimeapi.LinuxContainerResources) error {
	values := version1(r)
	if t.unified {
		values = version2(r)
	}
	for _, mount := range slices.Compact(slices.Sorted(maps.Values(t.mounts))) {
		err := makeGroup(mount, path.Join(t.cfg.Under, name), t.unified)
		for try := 0; errors.Is(err, fs.ErrNotExist) && try < 10; try++ { // another node has just cleared the group above
			err = makeGroup(mount, path.Join(t.cfg.Under, name), t.unified)
		}
		if err != nil {
			return err
		}
	}
	for controller, files := range values {
		mount, ok := t.mounts[controller]
		if !ok {
			continue
		}
		dir := filepath.Join(mount, t.cfg.Under, name)
		for _, v := range files {
			if err := writeValue(filepath.Join(dir, v.file), v.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// Remove removes the group of a pod, whichever class it is in. It fails while
// processes are in it, and does nothing when there is none.
func (t *Tree) Remove(uid types.UID) error {
	for _, class := range classes {
		for _, mount := range t.places() {
			if err := removeGroup(filepath.Join(mount, t.cfg.Under, named(class, uid))); err != nil {
				return err
			}
		}
	}
	return nil
}

// Clear removes the groups of classes and of all pods, where they are empty, for
// a node that ends and leaves no pods. It does not wait for those that are not.
func (t *Tree) Clear() {
	for _, mount := range t.places() {
		for _, name := range []string{ofClass(corev1.PodQOSBestEffort), ofClass(corev1.PodQOSBurstable), Root, "."} {
			if group := path.Join(t.cfg.Under, name); group != "." {
				removeEmpty(filepath.Join(mount, group))
			}
		}
	}
}

// Known returns the pods that have groups.
func (t *Tree) Known() []types.UID {
	seen := map[types.UID]bool{}
	var uids []types.UID
	for _, mount := range t.places() {
		for _, class := range classes {
			found, _ := filepath.Glob(filepath.Join(mount, t.cfg.Under, ofClass(class), "pod*"))
			for _, dir := range found {
				uid := types.UID(strings.TrimPrefix(filepath.Base(dir), "pod"))
				if !seen[uid] {
					seen[uid] = true
					uids = append(uids, uid)
				}
			}
		}
	}
	return uids
}

// places are all hierarchies, each once.
func (t *Tree) places() []string {
	all := slices.Concat(slices.Collect(maps.Values(t.mounts)), t.others)
	slices.Sort(all)
	return slices.Compact(all)
}

var classes = []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}

// value is a file of a group and what is written to it.
type value struct{ file, value string }

func number(n int64) string { return strconv.FormatInt(n, 10) }

// version1 are the files of each hierarchy, in the order they are written.
func version1(r *runtimeapi.LinuxContainerResources) map[string][]value {
	values := map[string][]value{"cpu": {{"cpu.shares", number(r.CpuShares)}}}
	quota := int64(-1)
	if r.CpuQuota > 0 {
		quota = r.CpuQuota
	}
	values["cpu"] = append(values["cpu"], value{"cpu.cfs_period_us", number(period)}, value{"cpu.cfs_quota_us", number(quota)})
	memory := int64(-1)
	if r.MemoryLimitInBytes > 0 {
		memory = r.MemoryLimitInBytes
	}
	values["memory"] = []value{{"memory.limit_in_bytes", number(memory)}}
	for _, h := range r.HugepageLimits {
		values["hugetlb"] = append(values["hugetlb"], value{"hugetlb." + h.PageSize + ".limit_in_bytes", strconv.FormatUint(h.Limit, 10)})
	}
	return values
}

// version2 are the files of the one hierarchy.
func version2(r *runtimeapi.LinuxContainerResources) map[string][]value {
	quota := "max"
	if r.CpuQuota > 0 {
		quota = number(r.CpuQuota)
	}
	memory := "max"
	if r.MemoryLimitInBytes > 0 {
		memory = number(r.MemoryLimitInBytes)
	}
	values := map[string][]value{
		"cpu":    {{"cpu.weight", number(weight(r.CpuShares))}, {"cpu.max", quota + " " + number(period)}},
		"memory": {{"memory.max", memory}},
	}
	for _, h := range r.HugepageLimits {
		values["hugetlb"] = append(values["hugetlb"], value{"hugetlb." + h.PageSize + ".max", strconv.FormatUint(h.Limit, 10)})
	}
	return values
}

// weight turns shares (2 to 262144) into weights (1 to 10000). Compat: runtimes
// do it by the same line.
func weight(shares int64) int64 { return 1 + (shares-minShares)*9999/(maxShares-minShares) }
