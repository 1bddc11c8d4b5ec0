package scheduler

import (
	"context"
	"maps"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// unended selects pods that have not ended: those that have take no room.
var unended = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
).String()

// observe has informers tell the cache and the queue what changes. It returns
// what waits until all that is there has been told.
func (l *life) observe() (seen func(context.Context) bool, err error) {
	pods := l.informers.InformerFor(&corev1.Pod{}, func(k kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewFilteredPodInformer(k, metav1.NamespaceAll, resync, cache.Indexers{}, func(o *metav1.ListOptions) { o.FieldSelector = unended })
	})
	core, apps, storage := l.informers.Core().V1(), l.informers.Apps().V1(), l.informers.Storage().V1()
	var told []cache.DoneChecker
	follow := func(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) {
		handle, e := informer.AddEventHandler(handler)
		if e != nil {
			err = e
			return
		}
		told = append(told, handle.HasSyncedChecker())
	}
	wake := func(informer cache.SharedIndexInformer, resource event.Resource) {
		follow(informer, changes(func(before, after any) {
			l.queue.Wake(event.Event{Resource: resource, Action: action(before, after), Before: before, After: after})
		}))
	}
	follow(core.Nodes().Informer(), changes(func(before, after any) {
		b, _ := before.(*corev1.Node)
		a, _ := after.(*corev1.Node)
		l.seeNode(b, a)
	}))
	follow(pods, changes(func(before, after any) {
		b, _ := before.(*corev1.Pod)
		a, _ := after.(*corev1.Pod)
		l.seePod(b, a)
	}))
	wake(core.Namespaces().Informer(), event.Namespace)
	wake(core.PersistentVolumeClaims().Informer(), event.Claim)
	wake(core.PersistentVolumes().Informer(), event.Volume)
	wake(storage.StorageClasses().Informer(), event.Class)
	wake(storage.CSINodes().Informer(), event.DriverNode)
	wake(storage.CSIDrivers().Informer(), event.Driver)
	wake(storage.CSIStorageCapacities().Informer(), event.Capacity)
	wake(storage.VolumeAttachments().Informer(), event.Attachment)
	// Those are only looked up.
	for _, informer := range []cache.SharedIndexInformer{
		core.Services().Informer(), core.ReplicationControllers().Informer(), apps.ReplicaSets().Informer(),
		apps.StatefulSets().Informer(), l.informers.Policy().V1().PodDisruptionBudgets().Informer(),
	} {
		told = append(told, informer.HasSyncedChecker())
	}
	return func(ctx context.Context) bool { return cache.WaitFor(ctx, "", told...) }, err
}

// changes has a function told of changes: what was before, and what is after.
func changes(tell func(before, after any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { tell(nil, obj) },
		UpdateFunc: func(old, obj any) { tell(old, obj) },
		DeleteFunc: func(obj any) {
			if t, is := obj.(cache.DeletedFinalStateUnknown); is {
				obj = t.Obj
			}
			tell(obj, nil)
		},
	}
}

// action is how something has changed of which no more is known.
func action(before, after any) event.Action {
	switch {
	case before == nil:
		return event.Add
	case after == nil:
		return event.Delete
	default:
		return event.Update
	}
}

// seeNode is told of nodes.
func (l *life) seeNode(before, after *corev1.Node) {
	if after == nil {
		l.cache.RemoveNode(before.Name)
		l.queue.Wake(event.Event{Resource: event.Node, Action: event.Delete, Before: before})
		return
	}
	l.cache.SetNode(after)
	if before == nil {
		l.queue.Wake(event.Event{Resource: event.Node, Action: event.Add, After: after})
		return
	}
	var how event.Action
	if !maps.Equal(before.Labels, after.Labels) {
		how |= event.Labels
	}
	if before.Spec.Unschedulable != after.Spec.Unschedulable || !reflect.DeepEqual(before.Spec.Taints, after.Spec.Taints) {
		how |= event.Taints
	}
	if !reflect.DeepEqual(before.Status.Allocatable, after.Status.Allocatable) {
		how |= event.Allocatable
	}
	if how != 0 {
		l.queue.Wake(event.Event{Resource: event.Node, Action: how, Before: before, After: after})
	}
}

// seePod is told of pods. One that was deleted and made again between two tellings
// is another pod.
func (l *life) seePod(before, after *corev1.Pod) {
	if before != nil && after != nil && before.UID != after.UID {
		l.seePod(before, nil)
		before = nil
	}
	switch {
	case after == nil:
		l.seeGone(before)
	case after.Spec.NodeName != "":
		l.seePlaced(before, after)
	default:
		l.seeUnplaced(before, after)
	}
}

func (l *life) seeGone(pod *corev1.Pod) {
	node, _ := l.cache.Placed(pod.UID)
	l.cache.RemovePod(pod.UID)
	l.queue.Remove(pod.UID)
	if pod.Spec.NodeName == "" && node != "" {
		pod = pod.DeepCopy()
		pod.Spec.NodeName = node // it was about to be there
	}
	l.queue.Wake(event.Event{Resource: event.Pod, Action: event.Delete, Before: pod})
}

func (l *life) seePlaced(before, after *corev1.Pod) {
	if p := l.parse(after); p != nil {
		l.cache.SetPod(p, after.Spec.NodeName)
	}
	if before == nil || before.Spec.NodeName == "" {
		l.queue.Remove(after.UID)
		l.queue.Wake(event.Event{Resource: event.Pod, Action: event.Add, After: after})
		return
	}
	if how := changed(before, after); how != 0 {
		l.queue.Wake(event.Event{Resource: event.Pod, Action: how, Before: before, After: after})
	}
}

func (l *life) seeUnplaced(before, after *corev1.Pod) {
	if l.profiles[after.Spec.SchedulerName] == nil {
		return
	}
	if _, assumed := l.cache.Placed(after.UID); assumed {
		return
	}
	p := l.parse(after)
	if after.DeletionTimestamp != nil || p == nil {
		l.queue.Remove(after.UID)
		l.cache.Nominate(&snapshot.Pod{Object: after}, "")
		return
	}
	l.queue.Add(p)
	if before == nil || before.Status.NominatedNodeName != after.Status.NominatedNodeName {
		l.cache.Nominate(p, after.Status.NominatedNodeName)
	}
	if before == nil {
		return
	}
	if how := changed(before, after); how != 0 {
		l.queue.Wake(event.Event{Resource: event.Pod, Action: how, Before: before, After: after})
	}
}

// parse reads a pod; nil when it cannot be read, which the API does not let happen.
func (l *life) parse(pod *corev1.Pod) *snapshot.Pod {
	p, err := snapshot.NewPod(pod)
	if err != nil {
		l.cfg.Logger.Error("a pod cannot be read", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		return nil
	}
	return p
}

// changed is how a pod has changed.
func changed(before, after *corev1.Pod) event.Action {
	var how event.Action
	if !maps.Equal(before.Labels, after.Labels) {
		how |= event.Labels
	}
	if !reflect.DeepEqual(before.Spec.Tolerations, after.Spec.Tolerations) {
		how |= event.Tolerations
	}
	if resized(before, after) {
		how |= event.ScaledDown
	}
	return how
}

// resized says whether what a pod asks for may have changed.
func resized(before, after *corev1.Pod) bool {
	if before.Generation == after.Generation && len(after.Status.ContainerStatuses) == 0 {
		return false
	}
	was, err := snapshot.NewPod(before)
	if err != nil {
		return true
	}
	is, err := snapshot.NewPod(after)
	return err != nil || !reflect.DeepEqual(was.Requests, is.Requests)
}
