package disruption

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhichPodsAreSaidToGo(t *testing.T) {
	said := func(status corev1.ConditionStatus, reason string, edit func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: status, Reason: reason}}}}
		if edit != nil {
			edit(p)
		}
		return p
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"nothing is said":    {&corev1.Pod{}, false},
		"by an eviction":     {said(corev1.ConditionTrue, "EvictionByEvictionAPI", nil), true},
		"taken back":         {said(corev1.ConditionFalse, "EvictionByEvictionAPI", nil), false},
		"by its node":        {said(corev1.ConditionTrue, corev1.PodReasonTerminationByKubelet, nil), false},
		"it goes":            {said(corev1.ConditionTrue, "EvictionByEvictionAPI", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), false},
		"it ended by itself": {said(corev1.ConditionTrue, "EvictionByEvictionAPI", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := len(targets(nil, c.pod)) == 1; got != c.want {
				t.Errorf("it is looked at: %v", got)
			}
		})
	}
}
