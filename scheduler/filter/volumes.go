package filter

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/storage/ephemeral"
	volume "k8s.io/component-helpers/storage/volume"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

var (
	diskTaken  = passing("node(s) had no available disk")
	claimTaken = passing("node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")
	otherZone  = final("node(s) had no available volume zone")
)

// claimName is the claim that a volume of a pod is, "" for none, and whether it
// is made for the pod.
func claimName(pod *corev1.Pod, v *corev1.Volume) (name string, made bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, false
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v), true
	default:
		return "", false
	}
}

// hasClaims says whether any volume of a pod is a claim.
func hasClaims(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
	})
}

// ofClaim says whether a change is of a claim of the pod.
func ofClaim(c *cycle.Cycle, e *event.Event) bool {
	_, after := sides[*corev1.PersistentVolumeClaim](e)
	pod := c.Pod.Object
	return after != nil && after.Namespace == pod.Namespace && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		name, _ := claimName(pod, &v)
		return name == after.Name
	})
}

// missingIs turns what is not found into a rejection.
func missingIs(err error) (*Rejection, error) {
	if apierrors.IsNotFound(err) {
		return final(err.Error()), nil
	}
	return nil, err
}

// volumeRestrictions is for volumes that one pod at a time may use.
var volumeRestrictions = Filter{
	Name:  "VolumeRestrictions",
	Begin: beginRestrictions,
	Wakes: []Wake{
		{event.Pod, event.Delete, func(c *cycle.Cycle, e *event.Event) bool {
			gone, _ := sides[*corev1.Pod](e)
			return gone.Namespace == c.Pod.Object.Namespace && (sharesDisk(c.Pod.Object, gone) || sharesClaim(c.Pod.Object, gone))
		}},
		{event.Node, event.Add, nil},
		{event.Claim, event.Add, ofClaim},
	},
}

func beginRestrictions(c *cycle.Cycle) (Check, *Rejection, error) {
	pod := c.Pod.Object
	once := restricted{pod: pod, claims: sets.New[string](), disks: slices.ContainsFunc(pod.Spec.Volumes, isDisk)}
	for _, name := range c.Pod.Claims {
		claim, err := c.Objects.Claim(pod.Namespace, name)
		if err != nil {
			rejection, err := missingIs(err)
			return nil, rejection, err
		}
		if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			once.claims.Insert(name)
			if c.Claims[pod.Namespace+"/"+name] > 0 {
				once.taken++
			}
		}
	}
	if !once.disks && once.taken == 0 {
		return nil, nil, nil
	}
	return &once, nil, nil
}

// restricted knows the claims and disks that a pod must have alone.
type restricted struct {
	pod    *corev1.Pod
	claims sets.Set[string]
	disks  bool
	taken  int
}

// Reject implements Check.
func (r *restricted) Reject(n *snapshot.Node) *Rejection {
	if r.disks {
		for _, p := range n.Pods {
			if sharesDisk(r.pod, p.Object) {
				return diskTaken
			}
		}
	}
	if r.taken > 0 {
		return claimTaken
	}
	return nil
}

// Clone implements Mover.
func (r *restricted) Clone() Mover {
	clone := *r
	return &clone
}

// Move implements Mover.
func (r *restricted) Move(p *snapshot.Pod, _ *snapshot.Node, by int) {
	for _, name := range p.Claims {
		if p.Object.Namespace == r.pod.Namespace && r.claims.Has(name) {
			r.taken += by
		}
	}
}

func sharesClaim(a, b *corev1.Pod) bool {
	return slices.ContainsFunc(a.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && slices.ContainsFunc(b.Spec.Volumes, func(w corev1.Volume) bool {
			return w.PersistentVolumeClaim != nil && w.PersistentVolumeClaim.ClaimName == v.PersistentVolumeClaim.ClaimName
		})
	})
}

func isDisk(v corev1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// sharesDisk says whether two pods want one disk, and not both only to read.
func sharesDisk(a, b *corev1.Pod) bool {
	for i := range a.Spec.Volumes {
		for j := range b.Spec.Volumes {
			if sameDisk(&a.Spec.Volumes[i], &b.Spec.Volumes[j]) {
				return true
			}
		}
	}
	return false
}

func sameDisk(v, w *corev1.Volume) bool {
	switch {
	case v.GCEPersistentDisk != nil && w.GCEPersistentDisk != nil:
		return v.GCEPersistentDisk.PDName == w.GCEPersistentDisk.PDName && (!v.GCEPersistentDisk.ReadOnly || !w.GCEPersistentDisk.ReadOnly)
	case v.AWSElasticBlockStore != nil && w.AWSElasticBlockStore != nil:
		return v.AWSElasticBlockStore.VolumeID == w.AWSElasticBlockStore.VolumeID
	case v.ISCSI != nil && w.ISCSI != nil:
		return v.ISCSI.IQN == w.ISCSI.IQN && (!v.ISCSI.ReadOnly || !w.ISCSI.ReadOnly)
	case v.RBD != nil && w.RBD != nil:
		return v.RBD.RBDPool == w.RBD.RBDPool && v.RBD.RBDImage == w.RBD.RBDImage && (!v.RBD.ReadOnly || !w.RBD.ReadOnly) &&
			slices.ContainsFunc(v.RBD.CephMonitors, func(m string) bool { return slices.Contains(w.RBD.CephMonitors, m) })
	default:
		return false
	}
}

// volumeZone is for volumes that are in a zone.
var volumeZone = Filter{
	Name:  "VolumeZone",
	Begin: beginZone,
	Wakes: []Wake{
		{event.Class, event.Add, func(_ *cycle.Cycle, e *event.Event) bool {
			_, class := sides[*storagev1.StorageClass](e)
			return waits(class)
		}},
		{event.Node, event.Add | event.Labels, nil},
		{event.Claim, event.Add | event.Update, ofClaim},
		{event.Volume, event.Add | event.Update, nil},
	},
}

// zoneLabels are the labels that tell of zones, with those that they were
// before.
var zoneLabels = []string{corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyZone, corev1.LabelTopologyRegion}

// zoneSeparator is between the zones of a volume that is in several.
const zoneSeparator = "__"

// newLabels are what old labels are called today.
var newLabels = map[string]string{
	corev1.LabelFailureDomainBetaZone: corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
}

// zoned is what a volume asks of a node's labels.
type zoned struct {
	label string
	in    sets.Set[string]
}

func beginZone(c *cycle.Cycle) (Check, *Rejection, error) {
	var zones []zoned
	for _, name := range c.Pod.Claims {
		claim, err := c.Objects.Claim(c.Pod.Object.Namespace, name)
		if err != nil {
			rejection, err := missingIs(err)
			return nil, rejection, err
		}
		if claim.Spec.VolumeName == "" {
			if rejection, err := mayComeLater(c, claim); rejection != nil || err != nil {
				return nil, rejection, err
			}
			continue
		}
		v, err := c.Objects.Volume(claim.Spec.VolumeName)
		if err != nil {
			rejection, err := missingIs(err)
			return nil, rejection, err
		}
		for _, label := range zoneLabels {
			if value, has := v.Labels[label]; has {
				if in := sets.New(strings.Split(value, zoneSeparator)...); !in.Has("") {
					zones = append(zones, zoned{label, in})
				}
			}
		}
	}
	if len(zones) == 0 {
		return nil, nil, nil
	}
	return checkFunc(func(n *snapshot.Node) *Rejection {
		if !slices.ContainsFunc(zoneLabels, func(l string) bool { _, has := n.Object.Labels[l]; return has }) {
			return nil
		}
		for _, z := range zones {
			value, has := n.Object.Labels[z.label]
			if !has {
				value, has = n.Object.Labels[newLabels[z.label]]
			}
			if !has || !z.in.Has(value) {
				return otherZone
			}
		}
		return nil
	}), nil, nil
}

// mayComeLater says why a claim without a volume is not one that gets it once
// its pod has a node.
func mayComeLater(c *cycle.Cycle, claim *corev1.PersistentVolumeClaim) (*Rejection, error) {
	name := volume.GetPersistentVolumeClaimClass(claim)
	if name == "" {
		return final("PersistentVolumeClaim had no pv name and storageClass name"), nil
	}
	class, err := c.Objects.Classes.Get(name)
	if err != nil {
		return missingIs(err)
	}
	if !waits(class) {
		return final("PersistentVolume had no name"), nil
	}
	return nil, nil
}

// waits says whether claims of a class get their volume when a pod has a node.
func waits(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}
