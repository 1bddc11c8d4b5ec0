package score

import (
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// beginTaints prefers nodes with fewer taints that a pod had better stay away
// from.
func beginTaints(c *cycle.Cycle, _ []*snapshot.Node) (Scorer, error) {
	var tolerations []corev1.Toleration
	for _, t := range c.Pod.Object.Spec.Tolerations {
		if t.Effect == "" || t.Effect == corev1.TaintEffectPreferNoSchedule {
			tolerations = append(tolerations, t)
		}
	}
	return relative{reversed: true, of: func(n *snapshot.Node) int64 {
		var count int64
		for i := range n.Object.Spec.Taints {
			t := &n.Object.Spec.Taints[i]
			if t.Effect == corev1.TaintEffectPreferNoSchedule && !corev1helpers.TolerationsTolerateTaint(klog.Background(), tolerations, t, false) {
				count++
			}
		}
		return count
	}}, nil
}

// beginNodeAffinity prefers nodes that the pod, or its profile, prefers.
func beginNodeAffinity(c *cycle.Cycle, _ []*snapshot.Node) (Scorer, error) {
	var own *nodeaffinity.PreferredSchedulingTerms
	if a := c.Pod.Object.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution != nil {
		var err error
		if own, err = nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, err
		}
	}
	added := c.Settings.Preferred
	if own == nil && added == nil {
		return nil, nil
	}
	return relative{of: func(n *snapshot.Node) int64 {
		var sum int64
		if added != nil {
			sum += added.Score(n.Object)
		}
		if own != nil {
			sum += own.Score(n.Object)
		}
		return sum
	}}, nil
}

// The sizes between which images count.
const (
	smallest = 23 << 20
	largest  = 1000 << 20 // of one container
)

// beginImages prefers nodes that have the pod's images. An image that few nodes
// have counts less, so that not all pods go there.
func beginImages(c *cycle.Cycle, _ []*snapshot.Node) (Scorer, error) {
	spec := &c.Pod.Object.Spec
	if len(c.Images) == 0 {
		return nil, nil
	}
	var names []string
	for i := range spec.InitContainers {
		names = append(names, snapshot.ImageName(spec.InitContainers[i].Image))
	}
	for i := range spec.Containers {
		names = append(names, snapshot.ImageName(spec.Containers[i].Image))
	}
	most := int64(largest * len(names))
	for i := range spec.Volumes {
		if spec.Volumes[i].Image != nil {
			names = append(names, snapshot.ImageName(spec.Volumes[i].Image.Reference))
		}
	}
	return absolute(func(n *snapshot.Node) int64 {
		var sum int64
		for _, name := range names {
			if size, has := n.Images[name]; has {
				sum += int64(float64(size) * (float64(c.Images[name]) / float64(len(c.Nodes))))
			}
		}
		return Best * (min(max(sum, smallest), most) - smallest) / (most - smallest)
	}), nil
}
