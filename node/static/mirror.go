package static

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Plan is what makes the mirrors in the API those of the static pods.
type Plan struct {
	// Delete are mirrors of what is not there any more, or is otherwise, or
	// which somebody has begun to delete.
	Delete []*corev1.Pod
	// Create are static pods that have no mirror.
	Create []*corev1.Pod
}

// MakePlan compares the static pods of a node with the pods that the API has of
// it. A mirror that must go first is made anew when the next plan is made.
func MakePlan(static, seen []*corev1.Pod) Plan {
	wanted := map[string]*corev1.Pod{}
	for _, pod := range static {
		wanted[pod.Namespace+"/"+pod.Name] = pod
	}
	var plan Plan
	for _, pod := range seen {
		key := pod.Namespace + "/" + pod.Name
		own := wanted[key]
		delete(wanted, key) // also where a pod of somebody else's has the name
		if IsMirror(pod) && (own == nil || pod.Annotations[Mirror] != own.Annotations[Hash] || pod.DeletionTimestamp != nil) {
			plan.Delete = append(plan.Delete, pod)
		}
	}
	for _, pod := range static {
		if wanted[pod.Namespace+"/"+pod.Name] == pod {
			plan.Create = append(plan.Create, pod)
		}
	}
	return plan
}

// Act carries a plan out for a node. What cannot be done is tried with the next
// plan.
func (p Plan) Act(ctx context.Context, client kubernetes.Interface, node *corev1.Node) error {
	var failed []error
	for _, pod := range p.Delete {
		now := int64(0)
		err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = append(failed, fmt.Errorf("delete mirror pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	for _, pod := range p.Create {
		_, err := client.CoreV1().Pods(pod.Namespace).Create(ctx, mirrorOf(pod, node), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			failed = append(failed, fmt.Errorf("create mirror pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	return errors.Join(failed...)
}

// mirrorOf is a static pod as the API shows it, owned by its node.
func mirrorOf(pod *corev1.Pod, node *corev1.Node) *corev1.Pod {
	mirror := pod.DeepCopy()
	mirror.Annotations = maps.Clone(pod.Annotations)
	mirror.Annotations[Mirror] = pod.Annotations[Hash]
	yes := true
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &yes}}
	mirror.UID, mirror.ResourceVersion = "", ""
	return mirror
}
