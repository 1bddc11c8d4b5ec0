package disruption

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apipod "k8s.io/kubernetes/pkg/api/v1/pod"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/pods"
)

// targeted is since when a pod has been said to be taken away, if somebody says
// so. It may yet take long when the node says it, of a pod that it ends.
func targeted(p *corev1.Pod) (since time.Time, is bool) {
	c := pods.Condition(p, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason == corev1.PodReasonTerminationByKubelet || !pods.Active(p) {
		return time.Time{}, false
	}
	return c.LastTransitionTime.Time, true
}

// targets is a pod that is said to be taken away.
func targets(_, after *corev1.Pod) []loop.Key {
	if after == nil {
		return nil
	}
	if _, is := targeted(after); !is {
		return nil
	}
	return []loop.Key{loop.KeyOf(after)}
}

// forget takes back what was said of a pod that is there all the same.
func (c *Controller) forget(ctx context.Context, key loop.Key) (time.Duration, error) {
	p, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if err != nil {
		return 0, nil //nolint:nilerr // it is not there: a cache has no other error
	}
	since, is := targeted(p)
	if !is {
		return 0, nil
	}
	if left := patience - time.Since(since); left > 0 {
		return left, nil
	}
	p = p.DeepCopy()
	apipod.UpdatePodCondition(&p.Status, &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse,
		ObservedGeneration: apipod.CalculatePodConditionObservedGeneration(&p.Status, p.Generation, corev1.DisruptionTarget),
	})
	_, err = c.actor.Client.CoreV1().Pods(key.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return 0, err
}
