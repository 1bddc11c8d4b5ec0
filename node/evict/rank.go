package evict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// systemCritical is the least priority of pods that a cluster cannot do without.
const systemCritical = 2000000000

// Critical reports whether a pod must not be evicted: those of the node's own
// folder are not started again, and some hold the cluster together.
func Critical(pod *corev1.Pod) bool {
	source, ok := pod.Annotations["kubernetes.io/config.source"]
	_, mirror := pod.Annotations["kubernetes.io/config.mirror"]
	return ok && source != "api" || mirror || scheduling.PodPriority(pod) >= systemCritical
}

// Rank sorts pods by who goes first when a signal is low: pods of which nothing
// is known, then those that use more than they ask for, then those of lower
// priority, then those that use most beyond what they ask for. Processes are
// not asked for, so they count by priority and number alone.
func Rank(signal Signal, pods []*corev1.Pod, stats Stats, ownImageDisk bool) []*corev1.Pod {
	use := func(pod *corev1.Pod) (used, asked int64, known bool) {
		s := stats[pod.UID]
		if s == nil {
			return 0, 0, false
		}
		requests := helper.PodRequests(pod, helper.PodResourcesOptions{})
		switch signal.Resource() {
		case corev1.ResourceMemory:
			if s.Memory != nil {
				used = number(s.Memory.WorkingSetBytes)
			}
			return used, requests.Memory().Value(), true
		case "pids":
			if s.ProcessStats != nil {
				used = number(s.ProcessStats.ProcessCount)
			}
			return used, used, true
		case "inodes":
			_, used = diskUse(pod, s, signal, ownImageDisk)
			return used, 0, true
		}
		used, _ = diskUse(pod, s, signal, ownImageDisk)
		return used, requests.StorageEphemeral().Value(), true
	}
	ranked := slices.Clone(pods)
	slices.SortStableFunc(ranked, func(a, b *corev1.Pod) int {
		usedA, askedA, knownA := use(a)
		usedB, askedB, knownB := use(b)
		priority := cmp.Compare(scheduling.PodPriority(a), scheduling.PodPriority(b))
		if signal == PIDs {
			return cmp.Or(priority, before(!knownA, !knownB), cmp.Compare(usedB, usedA))
		}
		return cmp.Or(before(!knownA, !knownB), before(usedA > askedA, usedB > askedB), priority, cmp.Compare(usedB-askedB, usedA-askedA))
	})
	return ranked
}

// before puts those for whom it is true first.
func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func number(n *uint64) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
}

// diskUse is what a pod has on the disk of a signal: images' own disk has the
// files of containers, the other one logs and volumes; one disk has all.
func diskUse(pod *corev1.Pod, s *statsapi.PodStats, signal Signal, ownImageDisk bool) (bytes, inodes int64) {
	add := func(f *statsapi.FsStats) {
		if f != nil {
			bytes += number(f.UsedBytes)
			inodes += number(f.InodesUsed)
		}
	}
	ofImages := signal == ImageDisk || signal == ImageInodes
	for i := range s.Containers {
		if !ownImageDisk || ofImages {
			add(s.Containers[i].Rootfs)
		}
		if !ownImageDisk || !ofImages {
			add(s.Containers[i].Logs)
		}
	}
	for i := range s.VolumeStats {
		if local(pod, s.VolumeStats[i].Name) && (!ownImageDisk || !ofImages) {
			add(&s.VolumeStats[i].FsStats)
		}
	}
	return bytes, inodes
}

// local reports whether a volume is on the node's own disk.
func local(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == name && (v.HostPath != nil || v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory ||
			v.ConfigMap != nil || v.GitRepo != nil)
	})
}

// Message says to a pod's owner why it went, and in annotations to programs.
func Message(pod *corev1.Pod, s *statsapi.PodStats, t Threshold, seen Observation) (string, map[string]string) {
	what := t.Signal.Resource()
	text := fmt.Sprintf("The node was low on resource: %v. Threshold quantity: %s, available: %s. ", what, amount(t.Signal, t.Of(seen.Capacity)), amount(t.Signal, seen.Available))
	if s == nil {
		return text, map[string]string{}
	}
	annotations := map[string]string{}
	if what == corev1.ResourceMemory && helper.IsPodLevelResourcesSet(pod) && s.Memory != nil {
		if request, ok := pod.Spec.Resources.Requests[what]; ok {
			used := binary(number(s.Memory.WorkingSetBytes))
			text += fmt.Sprintf("Pod %s was using %s, request is %s, has larger consumption of %v. ", pod.Name, used, request.String(), what)
			annotations["offending_pod"], annotations["offending_pod_usage"] = pod.Name, used
		}
	}
	var names, uses []string
	for i := range s.Containers {
		used, known := containerUse(&s.Containers[i], what)
		for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
			request := c.Resources.Requests[what]
			if c.Name != s.Containers[i].Name || !known || used <= request.Value() {
				continue
			}
			text += fmt.Sprintf("Container %s was using %s, request is %s, has larger consumption of %v. ", c.Name, binary(used), request.String(), what)
			names, uses = append(names, c.Name), append(uses, binary(used))
		}
	}
	annotations["offending_containers"], annotations["offending_containers_usage"] = strings.Join(names, ","), strings.Join(uses, ",")
	annotations["starved_resource"] = string(what)
	return text, annotations
}

func amount(s Signal, n int64) string {
	if s == Memory || s == Disk || s == ImageDisk {
		return binary(n)
	}
	return fmt.Sprint(n)
}

func containerUse(c *statsapi.ContainerStats, what corev1.ResourceName) (used int64, known bool) {
	switch {
	case what == corev1.ResourceMemory && c.Memory != nil && c.Memory.WorkingSetBytes != nil:
		return number(c.Memory.WorkingSetBytes), true
	case what == corev1.ResourceEphemeralStorage && c.Rootfs != nil && c.Logs != nil && c.Rootfs.UsedBytes != nil && c.Logs.UsedBytes != nil:
		return number(c.Rootfs.UsedBytes) + number(c.Logs.UsedBytes), true
	}
	return 0, false
}

// limited reports whether a pod has a limit of disk at all.
func limited(pod *corev1.Pod) bool {
	limits := helper.PodLimits(pod, helper.PodResourcesOptions{})
	_, ok := limits[corev1.ResourceEphemeralStorage]
	return ok || slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil })
}

// Exceeds says in which way a pod uses more disk than it may; "" is in none.
func Exceeds(pod *corev1.Pod, s *statsapi.PodStats, ownImageDisk bool) string {
	volumes := map[string]int64{}
	for i := range s.VolumeStats {
		volumes[s.VolumeStats[i].Name] = number(s.VolumeStats[i].UsedBytes)
	}
	all := int64(0)
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir == nil {
			continue
		}
		used := volumes[v.Name]
		if limit := v.EmptyDir.SizeLimit; limit != nil && limit.Sign() == 1 && used > limit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
		if v.EmptyDir.Medium != corev1.StorageMediumMemory {
			all += used
		}
	}
	limits := map[string]int64{}
	for _, c := range pod.Spec.Containers {
		limits[c.Name] = c.Resources.Limits.StorageEphemeral().Value()
	}
	over := ""
	for i := range s.Containers {
		used := int64(0)
		if f := s.Containers[i].Logs; f != nil {
			used += number(f.UsedBytes)
		}
		if f := s.Containers[i].Rootfs; f != nil && !ownImageDisk {
			used += number(f.UsedBytes)
		}
		all += used
		if limit := limits[s.Containers[i].Name]; limit > 0 && used > limit && over == "" {
			over = fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", s.Containers[i].Name, binary(limit))
		}
	}
	podLimits := helper.PodLimits(pod, helper.PodResourcesOptions{})
	if limit, ok := podLimits[corev1.ResourceEphemeralStorage]; ok && all > limit.Value() {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	return over
}
