// Package cgroup says what containers and pods may use of a node, in the terms
// of the kernel, and keeps the groups that pods live in.
//
// In come pods; out come resources for the runtime, and on a node that runs as
// root the groups
//
//	kubepods/pod<uid>                pods that have all they ask for
//	kubepods/burstable/pod<uid>      pods that may use more than they ask for
//	kubepods/besteffort/pod<uid>     pods that ask for nothing
//
// on both versions of the kernel's interface. What always holds: what a pod is
// given depends on the pod and the node's size alone, and a group is removed only
// when no process is in it.
package cgroup

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Root is the group of all pods.
const Root = "kubepods"

// QOS returns the class of a pod: that of its status, or what its resources
// make it.
func QOS(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	guaranteed := true
	for _, r := range declared(pod) {
		add(requests, r.Requests)
		add(limits, r.Limits)
		// Compat: resources of a pod that have no limits at all do not speak
		// against it here; the comparison below does.
		if pod.Spec.Resources == nil || len(r.Limits) > 0 {
			guaranteed = guaranteed && r.Limits.Cpu().Sign() == 1 && r.Limits.Memory().Sign() == 1
		}
	}
	if len(requests) == 0 && len(limits) == 0 {
		return corev1.PodQOSBestEffort
	}
	for name, request := range requests {
		limit, ok := limits[name]
		guaranteed = guaranteed && ok && limit.Cmp(request) == 0
	}
	if guaranteed && len(requests) == len(limits) {
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// declared are the resources that make a pod's class: its own if it has any,
// else those of its containers.
func declared(pod *corev1.Pod) []corev1.ResourceRequirements {
	if pod.Spec.Resources != nil {
		return []corev1.ResourceRequirements{*pod.Spec.Resources}
	}
	var all []corev1.ResourceRequirements
	for _, c := range pod.Spec.Containers {
		all = append(all, c.Resources)
	}
	for _, c := range pod.Spec.InitContainers {
		all = append(all, c.Resources)
	}
	return all
}

// add sums up what counts for the class.
func add(sum, list corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := list[name]; ok && q.Sign() == 1 {
			total := sum[name]
			total.Add(q)
			sum[name] = total
		}
	}
}

// PodParent returns the group of a pod, which its containers' groups lie in.
func PodParent(pod *corev1.Pod) string { return "/" + named(QOS(pod), pod.UID) }

// SystemdParent returns the same where systemd keeps the groups.
func SystemdParent(pod *corev1.Pod) string {
	slice, parent := "", ""
	for part := range strings.SplitSeq(named(QOS(pod), pod.UID), "/") {
		// In names of slices, a hyphen stands for a step down.
		part = strings.ReplaceAll(part, "-", "_")
		if slice != "" {
			part = slice + "-" + part
		}
		slice = part
		parent = path.Join(parent, "/"+slice+".slice")
	}
	return parent
}

func named(class corev1.PodQOSClass, uid types.UID) string {
	return path.Join(ofClass(class), "pod"+string(uid))
}

func ofClass(class corev1.PodQOSClass) string {
	if class == corev1.PodQOSGuaranteed {
		return Root
	}
	return path.Join(Root, strings.ToLower(string(class)))
}
