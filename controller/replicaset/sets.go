package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/own"
)

// sets reads and writes the sets of one kind. A ReplicationController is read as
// the ReplicaSet that it stands for.
type sets interface {
	kind() schema.GroupVersionKind
	queue() string
	watch(*loop.Loop[loop.Key])
	// get returns nil when there is none.
	get(loop.Key) *appsv1.ReplicaSet
	list(namespace string) []*appsv1.ReplicaSet
	// siblings are the sets with the same controller, set included; none when it
	// has no controller.
	siblings(set *appsv1.ReplicaSet) []*appsv1.ReplicaSet
	fresh(ctx context.Context, namespace, name string) (metav1.Object, error)
	// tellsTerminating says that the status has a number of pods that are going.
	tellsTerminating() bool
	// object is what events are about.
	object(set *appsv1.ReplicaSet) runtime.Object
	updateStatus(ctx context.Context, set *appsv1.ReplicaSet) error
}

type replicaSets struct{ *loop.Actor }

func (replicaSets) kind() schema.GroupVersionKind {
	return appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
}

func (replicaSets) queue() string { return "replicaset" }

func (r replicaSets) watch(l *loop.Loop[loop.Key]) {
	informer := r.Informers.Apps().V1().ReplicaSets().Informer()
	own.Index(informer)
	loop.Watch(l, "replicasets.apps", informer, loop.Self[*appsv1.ReplicaSet])
}

func (r replicaSets) get(key loop.Key) *appsv1.ReplicaSet {
	set, err := r.Informers.Apps().V1().ReplicaSets().Lister().ReplicaSets(key.Namespace).Get(key.Name)
	if err != nil {
		return nil // a cache knows no other error than that it is not there
	}
	return set
}

func (r replicaSets) list(namespace string) []*appsv1.ReplicaSet {
	all, _ := r.Informers.Apps().V1().ReplicaSets().Lister().ReplicaSets(namespace).List(labels.Everything()) // a cache has no errors
	return all
}

func (r replicaSets) siblings(set *appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	ref := metav1.GetControllerOfNoCopy(set)
	if ref == nil {
		return nil
	}
	return own.By[*appsv1.ReplicaSet](own.Index(r.Informers.Apps().V1().ReplicaSets().Informer()), ref.UID)
}

func (r replicaSets) fresh(ctx context.Context, namespace, name string) (metav1.Object, error) {
	return r.Client.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (replicaSets) tellsTerminating() bool { return true }

func (replicaSets) object(set *appsv1.ReplicaSet) runtime.Object { return set }

func (r replicaSets) updateStatus(ctx context.Context, set *appsv1.ReplicaSet) error {
	_, err := r.Client.AppsV1().ReplicaSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	return err
}

type replicationControllers struct{ *loop.Actor }

func (replicationControllers) kind() schema.GroupVersionKind {
	return corev1.SchemeGroupVersion.WithKind("ReplicationController")
}

func (replicationControllers) queue() string { return "replicationmanager" }

func (r replicationControllers) watch(l *loop.Loop[loop.Key]) {
	informer := r.Informers.Core().V1().ReplicationControllers().Informer()
	loop.Watch(l, "replicationcontrollers", informer, loop.Self[*corev1.ReplicationController])
}

func (r replicationControllers) get(key loop.Key) *appsv1.ReplicaSet {
	rc, err := r.Informers.Core().V1().ReplicationControllers().Lister().ReplicationControllers(key.Namespace).Get(key.Name)
	if err != nil {
		return nil // a cache knows no other error than that it is not there
	}
	return asSet(rc)
}

func (r replicationControllers) list(namespace string) []*appsv1.ReplicaSet {
	all, _ := r.Informers.Core().V1().ReplicationControllers().Lister().ReplicationControllers(namespace).List(labels.Everything()) // a cache has no errors
	sets := make([]*appsv1.ReplicaSet, len(all))
	for i, rc := range all {
		sets[i] = asSet(rc)
	}
	return sets
}

func (replicationControllers) siblings(*appsv1.ReplicaSet) []*appsv1.ReplicaSet { return nil }

func (r replicationControllers) fresh(ctx context.Context, namespace, name string) (metav1.Object, error) {
	return r.Client.CoreV1().ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (replicationControllers) tellsTerminating() bool { return false }

func (replicationControllers) object(set *appsv1.ReplicaSet) runtime.Object {
	return &corev1.ReplicationController{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ReplicationController"},
		ObjectMeta: set.ObjectMeta,
	}
}

// updateStatus writes all of the controller: what a set does not have, such as
// its selector's form, comes from the cache again.
func (r replicationControllers) updateStatus(ctx context.Context, set *appsv1.ReplicaSet) error {
	have, err := r.Informers.Core().V1().ReplicationControllers().Lister().ReplicationControllers(set.Namespace).Get(set.Name)
	if err != nil {
		return err
	}
	rc := have.DeepCopy()
	rc.ObjectMeta = set.ObjectMeta // the revision that the status was made for
	rc.Status = corev1.ReplicationControllerStatus{
		Replicas: set.Status.Replicas, FullyLabeledReplicas: set.Status.FullyLabeledReplicas,
		ReadyReplicas: set.Status.ReadyReplicas, AvailableReplicas: set.Status.AvailableReplicas,
		ObservedGeneration: set.Status.ObservedGeneration,
	}
	for _, c := range set.Status.Conditions {
		rc.Status.Conditions = append(rc.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	_, err = r.Client.CoreV1().ReplicationControllers(rc.Namespace).UpdateStatus(ctx, rc, metav1.UpdateOptions{})
	return err
}

// asSet is the ReplicaSet that a ReplicationController stands for.
func asSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	set := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas: rc.Status.ReadyReplicas, AvailableReplicas: rc.Status.AvailableReplicas,
			ObservedGeneration: rc.Status.ObservedGeneration,
		},
	}
	if rc.Spec.Template != nil {
		set.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		set.Status.Conditions = append(set.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return set
}
