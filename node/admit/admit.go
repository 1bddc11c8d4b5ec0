// Package admit says whether a node takes a pod that was assigned to it.
//
// In come a pod, the node and the pods that it has taken; out comes nothing, or
// the reason and the message that the pod fails with. Nothing is read and nothing
// is kept. Who assigned the pod may not have known all of it, so everything that
// matters to the node is looked at again.
package admit

import (
	"fmt"
	"runtime"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corehelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Refusal is why a pod is not taken.
type Refusal struct{ Reason, Message string }

// Pod says why a pod is not taken by a node that has others, nil when it is.
func Pod(pod *corev1.Pod, node *corev1.Node, others []*corev1.Pod) *Refusal {
	if r := system(pod); r != nil {
		return r
	}
	if r := sysctls(pod); r != nil {
		return r
	}
	if r := Resources(pod, node, others); r != nil {
		return r
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return predicate("NodeName", "node(s) didn't match the requested node name")
	}
	if conflict(pod, others) {
		return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	return taints(pod, node)
}

func predicate(name, reason string) *Refusal {
	return &Refusal{name, fmt.Sprintf("Predicate %s failed: %s", name, reason)}
}

// system refuses pods for another operating system.
func system(pod *corev1.Pod) *Refusal {
	if label, ok := pod.Labels[corev1.LabelOSStable]; ok && label != runtime.GOOS {
		return &Refusal{"PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if pod.Spec.OS != nil && string(pod.Spec.OS.Name) != runtime.GOOS {
		return &Refusal{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// Resources refuses a pod that asks for more than is left.
func Resources(pod *corev1.Pod, node *corev1.Node, others []*corev1.Pod) *Refusal {
	room := node.Status.Allocatable
	if most, ok := room[corev1.ResourcePods]; ok && int64(len(others))+1 > most.Value() {
		return short(corev1.ResourcePods, 1, int64(len(others)), most.Value())
	}
	wanted := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	used := corev1.ResourceList{}
	for _, o := range others {
		for name, q := range resourcehelper.PodRequests(o, resourcehelper.PodResourcesOptions{}) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	names := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	for name := range wanted {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names[3:])
	for i, name := range names {
		has, known := room[name]
		if q := wanted[name]; q.IsZero() || i >= 3 && !known { // what only the cluster knows is not ours to count
			continue
		}
		if w, u, h := amount(name, wanted), amount(name, used), amount(name, corev1.ResourceList{name: has}); w > h-u {
			return short(name, w, u, h)
		}
	}
	return nil
}

func amount(name corev1.ResourceName, list corev1.ResourceList) int64 {
	q := list[name]
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

func short(name corev1.ResourceName, wanted, used, has int64) *Refusal {
	return &Refusal{"OutOf" + string(name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, wanted, used, has)}
}

// conflict says whether a pod wants a port of the node that another has.
func conflict(pod *corev1.Pod, others []*corev1.Pod) bool {
	wanted := ports(pod)
	for _, o := range others {
		for _, has := range ports(o) {
			if slices.ContainsFunc(wanted, func(w corev1.ContainerPort) bool {
				return w.HostPort == has.HostPort && protocol(w) == protocol(has) && (w.HostIP == has.HostIP || everywhere(w) || everywhere(has))
			}) {
				return true
			}
		}
	}
	return false
}

func everywhere(p corev1.ContainerPort) bool { return p.HostIP == "" || p.HostIP == "0.0.0.0" }

func protocol(p corev1.ContainerPort) corev1.Protocol {
	if p.Protocol == "" {
		return corev1.ProtocolTCP
	}
	return p.Protocol
}

// ports are those that a pod has on its node.
func ports(pod *corev1.Pod) []corev1.ContainerPort {
	var all []corev1.ContainerPort
	for _, c := range pod.Spec.Containers {
		all = append(all, c.Ports...)
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c.Ports...)
		}
	}
	return slices.DeleteFunc(all, func(p corev1.ContainerPort) bool { return p.HostPort <= 0 })
}

// taints refuses pods that do not tolerate what drives pods out. Those that the
// node's own files declare stay.
func taints(pod *corev1.Pod, node *corev1.Node) *Refusal {
	if pod.Annotations["kubernetes.io/config.source"] != "" && pod.Annotations["kubernetes.io/config.source"] != "api" {
		return nil
	}
	driven := func(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }
	if _, found := corehelper.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, driven, false); found {
		return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
	}
	return nil
}
