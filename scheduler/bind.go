package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	volumes "k8s.io/component-helpers/storage/volume"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/filter"
	"setpoint.dev/setpoint/scheduler/place"
	"setpoint.dev/setpoint/scheduler/queue"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// How long volumes may take until they are bound, and how often they are looked
// at. Compat: these are upstream's.
const (
	volumesWithin = 10 * time.Minute
	volumesEvery  = time.Second
)

// because has what is written for a pod say so.
func because(ctx context.Context, pod *corev1.Pod) context.Context {
	rev, _ := strconv.ParseInt(pod.ResourceVersion, 10, 64) // a stored object has one
	return client.Because(ctx, rev)
}

// bind writes a placement. One that cannot be written is taken back.
func (l *life) bind(ctx context.Context, item *queue.Item, pod *snapshot.Pod, d *place.Decision) {
	ctx, node := because(ctx, pod.Object), d.Node.Name()
	err := l.prepare(ctx, d.Volumes, d.Node)
	if err == nil {
		err = l.client.CoreV1().Pods(pod.Object.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Object.Namespace, Name: pod.Object.Name, UID: pod.Object.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
		if err != nil {
			err = fmt.Errorf("running Bind plugin %q: %w", "DefaultBinder", err)
		}
	}
	if err == nil {
		l.recorders[pod.Object.Spec.SchedulerName].Eventf(pod.Object, nil, corev1.EventTypeNormal, "Scheduled", "Binding", "Successfully assigned %v/%v to %v", pod.Object.Namespace, pod.Object.Name, node)
		return
	}
	l.cache.Forget(pod.Object.UID)
	l.revert(d.Volumes)
	freed := pod.Object.DeepCopy()
	freed.Spec.NodeName = node
	l.queue.Wake(event.Event{Resource: event.Pod, Action: event.Delete, Before: freed})
	switch {
	case ctx.Err() != nil:
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// The pod is gone, or somebody else has bound it: informers tell which. If
		// neither is so, the pod is tried again.
		l.queue.Failed(item)
		l.forgetGone(ctx, pod.Object)
	default:
		l.fail(ctx, item, err)
	}
}

// forgetGone takes a pod out of the queue that is there no more, or has a node.
// An informer may have said so before the pod was put back.
func (l *life) forgetGone(ctx context.Context, pod *corev1.Pod) {
	now, err := l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (now.UID != pod.UID || now.Spec.NodeName != "") {
		l.queue.Remove(pod.UID)
	}
}

// prepare does what must be done about volumes, and waits until it has been.
func (l *life) prepare(ctx context.Context, v *filter.Volumes, n *snapshot.Node) error {
	if v == nil {
		return nil
	}
	for i, volume := range v.Bind {
		bound, err := l.client.CoreV1().PersistentVolumes().Update(ctx, volume, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		v.Bind[i] = bound
	}
	for i, claim := range v.Provision {
		told, err := l.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		v.Provision[i] = told
	}
	err := wait.PollUntilContextTimeout(ctx, volumesEvery, volumesWithin, true, func(ctx context.Context) (bool, error) { return l.bound(ctx, v, n) })
	if err != nil {
		return fmt.Errorf("binding volumes: %w", err)
	}
	return nil
}

// bound says whether the claims of a placement have their volumes, or what has
// become of them instead.
func (l *life) bound(ctx context.Context, v *filter.Volumes, n *snapshot.Node) (bool, error) {
	claims := v.Provision
	for _, volume := range v.Bind {
		ref := volume.Spec.ClaimRef
		claims = append(slices.Clip(claims), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}})
	}
	all := true
	for i, asked := range claims {
		claim, err := l.client.CoreV1().PersistentVolumeClaims(asked.Namespace).Get(ctx, asked.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if i < len(v.Provision) && claim.Annotations[volumes.AnnSelectedNode] != n.Name() {
			return false, fmt.Errorf("provisioning failed for PVC %q", claim.Name)
		}
		all = all && filter.Bound(claim)
	}
	return all, nil
}

// revert takes back what was assumed about volumes.
func (l *life) revert(v *filter.Volumes) {
	if v == nil {
		return
	}
	for _, volume := range v.Bind {
		l.objects.Forget(volume)
	}
	for _, claim := range v.Provision {
		l.objects.Forget(claim)
	}
}

// near is a claim that wants its volume near a node.
func near(claim *corev1.PersistentVolumeClaim, node string) *corev1.PersistentVolumeClaim {
	claim = claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volumes.AnnSelectedNode, node)
	return claim
}
