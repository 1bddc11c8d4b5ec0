package status_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/node/status"
)

// TestTold tells what a writer has said of a pod from what others have.
func TestTold(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		told   bool
	}{
		"nothing":                  {func(*corev1.Pod) {}, true},
		"an address":               {func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }, true},
		"a condition of ours":      {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue }, true},
		"a condition of others":    {func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionTrue }, false},
		"a phase":                  {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"a label":                  {func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, false},
		"an image":                 {func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" }, false},
		"that it is to go":         {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, false},
		"that it is to go at once": {func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = new(int64) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", ResourceVersion: "1"},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
				Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
					{Type: corev1.PodReady, Status: corev1.ConditionFalse}, {Type: "example.org/gate", Status: corev1.ConditionFalse},
				}},
			}
			now := before.DeepCopy()
			now.ResourceVersion = "2"
			c.change(now)
			if told := status.Told(before, now); told != c.told {
				t.Errorf("told: %v", told)
			}
		})
	}
}
