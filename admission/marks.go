package admission

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
)

// A mark is as much of an object as a plugin may change, made so that it
// differs when the plugin has. Plugins only add, or fill in what is empty, so
// that counting does for most of them; comparing whole objects would cost more
// than the plugins do.

func markResources(obj runtime.Object) any {
	var requests, limits int
	if pod, ok := obj.(*core.Pod); ok {
		podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *core.Container, _ podutil.ContainerType) bool {
			requests, limits = requests+len(c.Resources.Requests), limits+len(c.Resources.Limits)
			return true
		})
	}
	return [2]int{requests, limits}
}

func markServiceAccount(obj runtime.Object) any {
	pod, ok := obj.(*core.Pod)
	if !ok {
		return nil
	}
	return [3]any{pod.Spec.ServiceAccountName, len(pod.Spec.Volumes), len(pod.Spec.ImagePullSecrets)}
}

func markTaints(obj runtime.Object) any {
	node, ok := obj.(*core.Node)
	return ok && len(node.Spec.Taints) > 0 && node.Spec.Taints[len(node.Spec.Taints)-1].Key == corev1.TaintNodeNotReady
}

func markPullPolicies(obj runtime.Object) any {
	always := 0
	if pod, ok := obj.(*core.Pod); ok {
		podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *core.Container, _ podutil.ContainerType) bool {
			if c.ImagePullPolicy == core.PullAlways {
				always++
			}
			return true
		})
	}
	return always
}

// markPlacement is what says where a pod may run, and what it costs there.
func markPlacement(obj runtime.Object) any {
	pod, ok := obj.(*core.Pod)
	if !ok {
		return nil
	}
	return [3]int{len(pod.Spec.Tolerations), len(pod.Spec.NodeSelector), len(pod.Spec.Overhead)}
}

func markPriority(obj runtime.Object) any {
	pod, ok := obj.(*core.Pod)
	return ok && pod.Spec.Priority != nil
}

func markStorageClass(obj runtime.Object) any {
	claim, ok := obj.(*core.PersistentVolumeClaim)
	return ok && claim.Spec.StorageClassName != nil
}

func markFinalizers(obj runtime.Object) any {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil
	}
	return len(m.GetFinalizers())
}

func markIngressClass(obj runtime.Object) any {
	ingress, ok := obj.(*networking.Ingress)
	return ok && ingress.Spec.IngressClassName != nil
}

func markTopology(obj runtime.Object) any {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil
	}
	of := m.GetLabels()
	return [2]string{of[corev1.LabelTopologyZone], of[corev1.LabelTopologyRegion]}
}
