package cgroup

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Compat: a CPU has 1024 shares, and its time is given out every 100 ms.
const (
	minShares = 2
	maxShares = 262144
	perCPU    = 1024
	period    = 100_000
	minQuota  = 1000
)

func shares(milli int64) int64 { return min(max(milli*perCPU/1000, minShares), maxShares) }

// quota is the time of each period; 0 is as much as there is.
func quota(milli int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*period/1000, minQuota)
}

// Linux returns what a container may use. The node's size counts for who is
// killed first when memory is short.
func Linux(pod *corev1.Pod, c *corev1.Container, node corev1.ResourceList) *runtimeapi.LinuxContainerResources {
	limit := func(name corev1.ResourceName) resource.Quantity {
		q := c.Resources.Limits[name]
		if q.IsZero() && helper.IsPodLevelResourcesSet(pod) {
			q = pod.Spec.Resources.Limits[name]
		}
		return q
	}
	cpu, memory := limit(corev1.ResourceCPU), limit(corev1.ResourceMemory)
	request, asked := c.Resources.Requests[corev1.ResourceCPU]
	if !asked {
		request = cpu
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares: shares(request.MilliValue()), CpuQuota: quota(cpu.MilliValue()), CpuPeriod: period,
		MemoryLimitInBytes: memory.Value(), OomScoreAdj: allowed(OOMScore(pod, c, node.Memory().Value())),
		HugepageLimits: hugePages(pageSizes(), c.Resources.Limits),
	}
	if Unified() {
		// The processes of a container depend on each other, so they go together.
		out.Unified = map[string]string{"memory.oom.group": "1"}
	}
	if swapLimited() {
		withoutSwap(out, Unified())
	}
	return out
}

// withoutSwap keeps a container from being swapped out, so that its limit of
// memory means what it says.
func withoutSwap(r *runtimeapi.LinuxContainerResources, unified bool) {
	if unified {
		r.Unified["memory.swap.max"] = "0"
		return
	}
	// Memory and swap together: as much as memory alone.
	r.MemorySwapLimitInBytes = r.MemoryLimitInBytes
}

// hugePages limits pages of every size that the host has; a container gets none
// of those that it does not name.
func hugePages(sizes []string, limits corev1.ResourceList) []*runtimeapi.HugepageLimit {
	named := map[string]uint64{}
	for name, q := range limits {
		if size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix); ok {
			named[pageName(size)] += uint64(max(q.Value(), 0))
		}
	}
	var out []*runtimeapi.HugepageLimit
	for _, size := range sizes {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: size, Limit: named[size]})
	}
	return out
}

// pageName writes a size of pages as the kernel does: 2Mi is 2MB.
func pageName(size string) string {
	q, err := resource.ParseQuantity(size)
	if err != nil {
		return size
	}
	n, units := q.Value(), []string{"B", "KB", "MB", "GB"}
	for i, unit := range units {
		if n < 1024 || i == len(units)-1 {
			return strconv.FormatInt(n, 10) + unit
		}
		n /= 1024
	}
	return size
}

// Pod returns what a pod as a whole may use: the sum of its containers or what
// it says itself. Nothing limits a pod with a container that nothing limits.
func Pod(pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	cpuLimited, memoryLimited := true, true
	requests := helper.PodRequests(pod, helper.PodResourcesOptions{})
	limits := helper.PodLimits(pod, helper.PodResourcesOptions{
		ContainerFn: func(r corev1.ResourceList, _ helper.ContainerType) {
			cpuLimited = cpuLimited && !r.Cpu().IsZero()
			memoryLimited = memoryLimited && !r.Memory().IsZero()
		},
	})
	if helper.IsPodLevelResourcesSet(pod) {
		cpuLimited = cpuLimited || !pod.Spec.Resources.Limits.Cpu().IsZero()
		memoryLimited = memoryLimited || !pod.Spec.Resources.Limits.Memory().IsZero()
	}
	out := &runtimeapi.LinuxContainerResources{CpuShares: minShares, HugepageLimits: hugePages(pageSizes(), requests)}
	if QOS(pod) == corev1.PodQOSBestEffort {
		return out
	}
	out.CpuShares = shares(requests.Cpu().MilliValue())
	if cpuLimited {
		out.CpuQuota, out.CpuPeriod = quota(limits.Cpu().MilliValue()), period
	}
	if memoryLimited {
		out.MemoryLimitInBytes = limits.Memory().Value()
	}
	return out
}

// MemoryLimit returns how much memory a pod may use; 0 is as much as there is.
func MemoryLimit(pod *corev1.Pod) int64 { return Pod(pod).MemoryLimitInBytes }
