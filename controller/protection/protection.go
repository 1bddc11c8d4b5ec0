// Package protection keeps claims, volumes and classes of volumes for as long as
// somebody uses them: a finalizer holds what is deleted until nobody does.
//
// In come persistent volume claims with the pods that use them, persistent
// volumes, and volume attributes classes with the claims and volumes that name
// them; out come finalizers: on everything, and off what is deleted and not used.
// A claim is let go only when the API itself says that no pod has it.
package protection

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"setpoint.dev/setpoint/controller/loop"
)

// Compat: the finalizers are upstream's.
const (
	claimFinalizer  = "kubernetes.io/pvc-protection"
	volumeFinalizer = "kubernetes.io/pv-protection"
	classFinalizer  = "kubernetes.io/vac-protection"
)

// verdict is what becomes of an object's finalizer.
type verdict string

const (
	leave  verdict = "leave"
	add    verdict = "add"
	remove verdict = "remove"
)

// plan says what becomes of an object's finalizer. used is asked of what is
// deleted and still held.
func plan(obj metav1.Object, finalizer string, used func() (bool, error)) (verdict, error) {
	held := slices.Contains(obj.GetFinalizers(), finalizer)
	switch {
	case obj.GetDeletionTimestamp() == nil && !held:
		return add, nil
	case obj.GetDeletionTimestamp() == nil, !held:
		return leave, nil
	}
	if is, err := used(); is || err != nil {
		return leave, err
	}
	return remove, nil
}

// carry sets an object's finalizers as a verdict says.
func carry(obj metav1.Object, finalizer string, v verdict) {
	switch v {
	case add:
		obj.SetFinalizers(append(obj.GetFinalizers(), finalizer))
	case remove:
		obj.SetFinalizers(slices.DeleteFunc(obj.GetFinalizers(), func(f string) bool { return f == finalizer }))
	}
}

// rest is how a round ends.
func rest(err error) (time.Duration, error) {
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	return 0, err
}

// NewClaims returns the controller that keeps claims.
func NewClaims(a *loop.Actor) loop.Runner {
	core := a.Informers.Core().V1()
	l := loop.New(a, "pvcprotection", 1, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		claim, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(key.Namespace).Get(key.Name)
		if err != nil {
			return 0, nil //nolint:nilerr // it is not there
		}
		v, err := plan(claim, claimFinalizer, func() (bool, error) {
			cached, _ := core.Pods().Lister().Pods(key.Namespace).List(labels.Everything()) // a cache has no errors
			if slices.ContainsFunc(cached, func(p *corev1.Pod) bool { return uses(p, claim) }) {
				return true, nil
			}
			now, err := a.Client.CoreV1().Pods(key.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			return slices.ContainsFunc(now.Items, func(p corev1.Pod) bool { return uses(&p, claim) }), nil
		})
		if v == leave || err != nil {
			return 0, err
		}
		claim = claim.DeepCopy()
		carry(claim, claimFinalizer, v)
		_, err = a.Client.CoreV1().PersistentVolumeClaims(key.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
		return rest(err)
	})
	loop.Watch(l, "persistentvolumeclaims", core.PersistentVolumeClaims().Informer(), loop.Self[*corev1.PersistentVolumeClaim])
	loop.Watch(l, "pods", core.Pods().Informer(), func(before, after *corev1.Pod) []loop.Key {
		if before == nil || after != nil && !shutDown(after) {
			return nil // nothing comes free
		}
		var keys []loop.Key
		for i := range before.Spec.Volumes {
			if name := claimOf(before, &before.Spec.Volumes[i]); name != "" {
				keys = append(keys, loop.Key{Namespace: before.Namespace, Name: name})
			}
		}
		return keys
	})
	return l
}

// claimOf is the name of the claim that a volume of a pod is, "" when it is none.
func claimOf(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	default:
		return ""
	}
}

// uses says whether a pod uses a claim. Compat: one that is on no node does not,
// since no node starts it with a claim that is being deleted; one that was made
// for a volume of the pod is used until the pod is shut down.
func uses(p *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if p.Spec.NodeName == "" {
		return false
	}
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		if claimOf(p, &v) != claim.Name {
			return false
		}
		return v.Ephemeral == nil || !shutDown(p) && metav1.IsControlledBy(claim, p)
	})
}

// shutDown says that a node is done with a pod.
func shutDown(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}

// NewVolumes returns the controller that keeps volumes. One that is bound is
// used.
func NewVolumes(a *loop.Actor) loop.Runner {
	volumes := a.Informers.Core().V1().PersistentVolumes()
	l := loop.New(a, "pvprotection", 1, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		volume, err := volumes.Lister().Get(key.Name)
		if err != nil {
			return 0, nil //nolint:nilerr // it is not there
		}
		v, err := plan(volume, volumeFinalizer, func() (bool, error) { return volume.Status.Phase == corev1.VolumeBound, nil })
		if v == leave || err != nil {
			return 0, err
		}
		volume = volume.DeepCopy()
		carry(volume, volumeFinalizer, v)
		_, err = a.Client.CoreV1().PersistentVolumes().Update(ctx, volume, metav1.UpdateOptions{})
		return rest(err)
	})
	loop.Watch(l, "persistentvolumes", volumes.Informer(), loop.Self[*corev1.PersistentVolume])
	return l
}

// NewClasses returns the controller that keeps classes of volumes.
func NewClasses(a *loop.Actor) loop.Runner {
	core, classes := a.Informers.Core().V1(), a.Informers.Storage().V1().VolumeAttributesClasses()
	l := loop.New(a, "vacprotection", 1, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		class, err := classes.Lister().Get(key.Name)
		if err != nil {
			return 0, nil //nolint:nilerr // it is not there
		}
		v, err := plan(class, classFinalizer, func() (bool, error) {
			claims, _ := core.PersistentVolumeClaims().Lister().List(labels.Everything()) // a cache has no errors
			volumes, _ := core.PersistentVolumes().Lister().List(labels.Everything())
			return slices.ContainsFunc(claims, func(c *corev1.PersistentVolumeClaim) bool { return slices.Contains(classesOf(c), key.Name) }) ||
				slices.ContainsFunc(volumes, func(v *corev1.PersistentVolume) bool { return classOf(v) == key.Name }), nil
		})
		if v == leave || err != nil {
			return 0, err
		}
		class = class.DeepCopy()
		carry(class, classFinalizer, v)
		_, err = a.Client.StorageV1().VolumeAttributesClasses().Update(ctx, class, metav1.UpdateOptions{})
		return rest(err)
	})
	loop.Watch(l, "volumeattributesclasses.storage.k8s.io", classes.Informer(), loop.Self[*storagev1.VolumeAttributesClass])
	loop.Watch(l, "persistentvolumeclaims", core.PersistentVolumeClaims().Informer(), func(before, after *corev1.PersistentVolumeClaim) []loop.Key {
		if before == nil {
			return nil
		}
		var keys []loop.Key
		for _, name := range classesOf(before) {
			if after == nil || !slices.Contains(classesOf(after), name) {
				keys = append(keys, loop.Key{Name: name})
			}
		}
		return keys
	})
	loop.Watch(l, "persistentvolumes", core.PersistentVolumes().Informer(), func(before, after *corev1.PersistentVolume) []loop.Key {
		if before == nil || classOf(before) == "" || after != nil && classOf(after) == classOf(before) {
			return nil
		}
		return []loop.Key{{Name: classOf(before)}}
	})
	return l
}

// classesOf are the classes that a claim names: the one that it wants, has, and
// is on its way to.
func classesOf(c *corev1.PersistentVolumeClaim) []string {
	var names []string
	for _, name := range []*string{c.Spec.VolumeAttributesClassName, c.Status.CurrentVolumeAttributesClassName} {
		if name != nil && *name != "" {
			names = append(names, *name)
		}
	}
	if m := c.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		names = append(names, m.TargetVolumeAttributesClassName)
	}
	return names
}

func classOf(v *corev1.PersistentVolume) string {
	if v.Spec.VolumeAttributesClassName == nil {
		return ""
	}
	return *v.Spec.VolumeAttributesClassName
}
