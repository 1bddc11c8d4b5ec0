package filter

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"
	volume "k8s.io/component-helpers/storage/volume"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// volumeBinding is for volumes that are to be had from a node, and for claims
// that get theirs once the pod has one.
var volumeBinding = Filter{
	Name: "VolumeBinding",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		if !hasClaims(c.Pod.Object) {
			return nil, nil, nil
		}
		if err := usable(c); err != nil {
			return nil, final(err.Error()), nil
		}
		b, err := newBinding(c)
		if err != nil {
			return nil, nil, err
		}
		if b.stuck {
			return nil, final("pod has unbound immediate PersistentVolumeClaims"), nil
		}
		return b, nil, nil
	},
	Wakes: []Wake{
		{event.Class, event.Add | event.Update, nil},
		{event.Claim, event.Add | event.Update, ofClaim},
		{event.Volume, event.Add | event.Update, nil},
		{event.Node, event.Add | event.Labels, nil},
		{event.DriverNode, event.Add | event.Update, nil},
		{event.Driver, event.Update, nil},
		{event.Capacity, event.Add | event.Update, nil},
	},
}

// usable says what is wrong with the claims of a pod.
func usable(c *cycle.Cycle) error {
	pod := c.Pod.Object
	for i := range pod.Spec.Volumes {
		name, made := claimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		claim, err := c.Objects.Claim(pod.Namespace, name)
		switch {
		case err != nil && made:
			return fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		case err != nil:
			return err
		case claim.Status.Phase == corev1.ClaimLost:
			return fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName)
		case claim.DeletionTimestamp != nil:
			return fmt.Errorf("persistentvolumeclaim %q is being deleted", name)
		case made:
			if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
				return err
			}
		}
	}
	return nil
}

// binding knows the claims of a pod.
type binding struct {
	*cycle.Cycle
	bound []*corev1.PersistentVolumeClaim
	// waiting are those that get a volume once the pod has a node, by size.
	waiting []*corev1.PersistentVolumeClaim
	// stuck says that a claim has no volume, and does not wait for a node.
	stuck bool
}

// Bound says whether a claim has its volume.
func Bound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
}

func newBinding(c *cycle.Cycle) (*binding, error) {
	b, pod := &binding{Cycle: c}, c.Pod.Object
	for i := range pod.Spec.Volumes {
		name, _ := claimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		claim, err := c.Objects.Claim(pod.Namespace, name)
		if err != nil {
			return nil, err
		}
		if Bound(claim) {
			b.bound = append(b.bound, claim)
			continue
		}
		later, err := volume.IsDelayBindingMode(claim, c.Objects.Classes)
		if err != nil {
			return nil, err
		}
		if later && claim.Spec.VolumeName == "" {
			b.waiting = append(b.waiting, claim)
		} else {
			b.stuck = true
		}
	}
	b.waiting = sorted(b.waiting)
	return b, nil
}

// Reject implements Check.
func (b *binding) Reject(n *snapshot.Node) *Rejection {
	_, reasons := b.plan(n)
	if len(reasons) == 0 {
		return nil
	}
	return &Rejection{Reasons: reasons, Final: true}
}

// Volumes is what must be done about volumes before a pod can be on a node.
type Volumes struct {
	// Bind are volumes as they are to be: each with the claim it is for.
	Bind []*corev1.PersistentVolume
	// Provision are claims that a volume is to be made for near the node.
	Provision []*corev1.PersistentVolumeClaim
}

// Plan says what must be done about volumes before the pod can be on a node that
// has passed the filters; nil when nothing must.
func Plan(c *cycle.Cycle, n *snapshot.Node) (*Volumes, error) {
	if !hasClaims(c.Pod.Object) {
		return nil, nil
	}
	b, err := newBinding(c)
	if err != nil {
		return nil, err
	}
	v, _ := b.plan(n)
	if len(v.Bind)+len(v.Provision) == 0 {
		return nil, nil
	}
	return v, nil
}

// plan says what must be done, or why it cannot be.
func (b *binding) plan(n *snapshot.Node) (*Volumes, []string) {
	v, reasons := &Volumes{}, b.reach(n)
	provision, taken := []*corev1.PersistentVolumeClaim(nil), map[string]*corev1.PersistentVolume{}
	for _, claim := range b.waiting {
		if node, said := claim.Annotations[volume.AnnSelectedNode]; said {
			if node != n.Name() {
				return v, append(reasons, "node(s) didn't find available persistent volumes to bind")
			}
			provision = append(provision, claim)
			continue
		}
		found, err := volume.FindMatchingVolume(claim, b.Objects.VolumesOf(volume.GetPersistentVolumeClaimClass(claim)), n.Object, taken, true, true)
		if err != nil {
			return v, append(reasons, err.Error())
		}
		if found == nil {
			provision = append(provision, claim)
			continue
		}
		taken[found.Name] = found
		mine, _, err := volume.GetBindVolumeToClaim(found, claim)
		if err != nil {
			return v, append(reasons, err.Error())
		}
		v.Bind = append(v.Bind, mine)
	}
	for _, claim := range provision {
		if reason := b.provisionable(claim, n); reason != "" {
			return v, append(reasons, reason)
		}
	}
	v.Provision = provision
	return v, reasons
}

// reach says why volumes that claims have are not to be had from a node.
func (b *binding) reach(n *snapshot.Node) []string {
	for _, claim := range b.bound {
		v, err := b.Objects.Volume(claim.Spec.VolumeName)
		if err != nil {
			return []string{"node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"}
		}
		if volume.CheckNodeAffinity(v, n.Object.Labels) != nil {
			return []string{"node(s) didn't match PersistentVolume's node affinity"}
		}
	}
	return nil
}

// provisionable says why no volume can be made for a claim near a node, "" when
// it can.
func (b *binding) provisionable(claim *corev1.PersistentVolumeClaim, n *snapshot.Node) string {
	const nothing = "node(s) didn't find available persistent volumes to bind"
	class, err := b.Objects.Classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if err != nil || class.Provisioner == "" || class.Provisioner == volume.NotSupportedProvisioner ||
		!v1helper.MatchTopologySelectorTerms(class.AllowedTopologies, labels.Set(n.Object.Labels)) {
		return nothing
	}
	if !b.enough(claim, class, n) {
		return "node(s) did not have enough free storage"
	}
	return ""
}

// enough says whether there is room for a claim near a node. A driver that does
// not tell has room.
func (b *binding) enough(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, n *snapshot.Node) bool {
	size, asks := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	driver, err := b.Objects.Drivers.Get(class.Provisioner)
	if !asks || err != nil || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity {
		return true
	}
	all, _ := b.Objects.Capacities.List(labels.Everything()) // a lister does not fail
	for _, c := range all {
		limit := c.MaximumVolumeSize
		if limit == nil {
			limit = c.Capacity
		}
		if c.StorageClassName != class.Name || limit == nil || limit.Value() < size.Value() || c.NodeTopology == nil {
			continue
		}
		if near, err := metav1.LabelSelectorAsSelector(c.NodeTopology); err == nil && near.Matches(labels.Set(n.Object.Labels)) {
			return true
		}
	}
	return false
}
