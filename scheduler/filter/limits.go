package filter

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	volume "k8s.io/component-helpers/storage/volume"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

var tooManyVolumes = passing("node(s) exceed max volume count")

// volumeLimits is for how many volumes of a driver a node can have.
var volumeLimits = Filter{
	Name: "NodeVolumeLimits",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		if !hasClaims(c.Pod.Object) {
			return nil, nil, nil
		}
		wanted := map[handle]bool{}
		if err := handles(c, c.Pod.Object, true, wanted); err != nil {
			// Who looks at claims later says it better, and this is said of nodes.
			missing := final(err.Error())
			return checkFunc(func(*snapshot.Node) *Rejection { return missing }), nil, nil
		}
		if len(wanted) == 0 {
			return nil, nil, nil
		}
		return attaching{c, wanted}, nil, nil
	},
	Wakes: []Wake{
		{event.DriverNode, event.Add, nil},
		{event.DriverNode, event.Update, func(_ *cycle.Cycle, e *event.Event) bool {
			before, after := sides[*storagev1.CSINode](e)
			were := limits(before)
			for driver, limit := range limits(after) {
				if limit > were[driver] {
					return true
				}
			}
			return false
		}},
		{event.Pod, event.Delete, func(_ *cycle.Cycle, e *event.Event) bool {
			gone, _ := sides[*corev1.Pod](e)
			return held(gone) && hasClaims(gone)
		}},
		{event.Claim, event.Add, ofClaim},
		{event.Attachment, event.Delete, func(c *cycle.Cycle, _ *event.Event) bool { return hasClaims(c.Pod.Object) }},
	},
}

// handle is a volume of a driver.
type handle struct{ driver, volume string }

// handles adds the volumes of a pod. What is missing of a pod that is there is
// left out; fresh ones are to have all.
func handles(c *cycle.Cycle, pod *corev1.Pod, fresh bool, to map[handle]bool) error {
	for i := range pod.Spec.Volumes {
		name, made := claimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			if pod.Spec.Volumes[i].PersistentVolumeClaim != nil {
				return errors.New("PersistentVolumeClaim had no name")
			}
			continue
		}
		claim, err := c.Objects.Claim(pod.Namespace, name)
		if err != nil {
			if fresh {
				return fmt.Errorf("looking up PVC %s/%s: %w", pod.Namespace, name, err)
			}
			continue
		}
		if made {
			if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
				return err
			}
		}
		if h, is := handleOf(c, claim); is {
			to[h] = true
		}
	}
	return nil
}

// handleOf is the volume of a claim. One that has none yet, or whose volume is
// not known, will have one of its class's driver.
func handleOf(c *cycle.Cycle, claim *corev1.PersistentVolumeClaim) (handle, bool) {
	if name := claim.Spec.VolumeName; name != "" {
		if v, err := c.Objects.Volume(name); err == nil {
			if v.Spec.CSI == nil {
				return handle{}, false
			}
			return handle{v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle}, v.Spec.CSI.Driver != "" && v.Spec.CSI.VolumeHandle != ""
		}
	}
	class, err := c.Objects.Classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if err != nil {
		return handle{}, false
	}
	// No driver has handles that begin so.
	return handle{class.Provisioner, "\x00" + claim.Namespace + "/" + claim.Name}, true
}

// limits are how many volumes of each driver a node can have.
func limits(n *storagev1.CSINode) map[string]int {
	all := map[string]int{}
	if n == nil {
		return all
	}
	for _, d := range n.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			all[d.Name] = int(*d.Allocatable.Count)
		}
	}
	return all
}

// attaching wants volumes on a node.
type attaching struct {
	*cycle.Cycle
	wanted map[handle]bool
}

// Reject implements Check.
func (a attaching) Reject(n *snapshot.Node) *Rejection {
	driverNode, _ := a.Objects.DriverNodes.Get(n.Name()) // one that is not there has no limits
	most := limits(driverNode)
	if len(most) == 0 {
		return nil
	}
	there := map[handle]bool{}
	for _, p := range n.Pods {
		if err := handles(a.Cycle, p.Object, false, there); err != nil {
			return final(err.Error())
		}
	}
	used, more := map[string]int{}, map[string]int{}
	for h := range a.wanted {
		if !there[h] {
			more[h.driver]++
		}
	}
	// Compat: a volume that is attached although no pod uses it counts, also
	// against the pod that wants it.
	for _, at := range a.Objects.Attachments(n.Name()) {
		if at.Spec.Source.PersistentVolumeName == nil || at.Spec.Attacher == "" {
			continue
		}
		if v, err := a.Objects.Volume(*at.Spec.Source.PersistentVolumeName); err == nil && v.Spec.CSI != nil {
			there[handle{at.Spec.Attacher, v.Spec.CSI.VolumeHandle}] = true
		}
	}
	for h := range there {
		used[h.driver]++
	}
	for driver, count := range more {
		if limit, has := most[driver]; has && used[driver]+count > limit {
			return tooManyVolumes
		}
	}
	return nil
}

// sorted is for claims, the smallest first.
func sorted(claims []*corev1.PersistentVolumeClaim) []*corev1.PersistentVolumeClaim {
	return slices.SortedStableFunc(slices.Values(claims), func(a, b *corev1.PersistentVolumeClaim) int {
		sizeA, sizeB := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
		return sizeA.Cmp(sizeB)
	})
}
