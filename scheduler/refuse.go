package scheduler

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	podapi "k8s.io/kubernetes/pkg/api/v1/pod"

	"setpoint.dev/setpoint/scheduler/queue"
)

// refusal is why a pod has no node, for its status.
type refusal struct {
	reason, message string
	by              []string
	// nominated is the node that the pod waits for; nil leaves it as it is.
	nominated *string
}

// refuse has a pod wait for a change that helps, and says why.
func (l *life) refuse(ctx context.Context, item *queue.Item, r refusal) {
	pod := item.Pod
	l.queue.Refused(item, r.by)
	if r.nominated != nil {
		l.cache.Nominate(pod, *r.nominated)
	}
	l.tell(ctx, pod.Object, r)
}

// fail has a pod tried again after a while, and says why.
func (l *life) fail(ctx context.Context, item *queue.Item, err error) {
	pod := item.Pod.Object
	l.cfg.Logger.Warn("a pod was not placed and is tried again", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	l.queue.Failed(item)
	l.tell(ctx, pod, refusal{reason: corev1.PodReasonSchedulerError, message: err.Error()})
}

// noteLimit is how long the text of an event may be.
const noteLimit = 1024

// tell writes why a pod has no node into an event and its status.
func (l *life) tell(ctx context.Context, pod *corev1.Pod, r refusal) {
	note := r.message
	if suffix := " ..."; len(note) > noteLimit {
		note = note[:noteLimit-len(suffix)] + suffix
	}
	l.recorders[pod.Spec.SchedulerName].Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", note)
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: r.reason, Message: r.message,
		ObservedGeneration: podapi.CalculatePodConditionObservedGeneration(&pod.Status, pod.Generation, corev1.PodScheduled),
	}
	err := l.patch(because(ctx, pod), pod, &condition, r.nominated)
	if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		l.cfg.Logger.Warn("a pod is not told why it has no node", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
}

// patch writes a condition and the node that a pod waits for into its status;
// what is nil, or is so already, is left as it is.
func (l *life) patch(ctx context.Context, pod *corev1.Pod, condition *corev1.PodCondition, nominated *string) error {
	status := map[string]any{}
	if condition != nil && settle(&pod.Status, condition, time.Now()) {
		status["conditions"] = []*corev1.PodCondition{condition}
	}
	if nominated != nil && pod.Status.NominatedNodeName != *nominated {
		if status["nominatedNodeName"] = *nominated; *nominated == "" {
			status["nominatedNodeName"] = nil
		}
	}
	if len(status) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	again := func(err error) bool { return apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) }
	return retry.OnError(retry.DefaultBackoff, again, func() error {
		_, err := l.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
		return err
	})
}

// settle fills in when a condition became what it is, and says whether a status
// has it otherwise.
func settle(status *corev1.PodStatus, condition *corev1.PodCondition, now time.Time) bool {
	condition.LastTransitionTime = metav1.NewTime(now)
	i := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == condition.Type })
	if i < 0 {
		return true
	}
	was := status.Conditions[i]
	if was.Status == condition.Status {
		condition.LastTransitionTime = was.LastTransitionTime
	}
	condition.LastProbeTime = was.LastProbeTime
	return was != *condition
}
