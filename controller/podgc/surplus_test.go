package podgc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSurplus(t *testing.T) {
	noon := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	pod := func(name string, hour int, phase corev1.PodPhase, reason string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(hour) * time.Hour))},
			Status:     corev1.PodStatus{Phase: phase, Reason: reason},
		}
	}
	all := []*corev1.Pod{
		pod("running", 0, corev1.PodRunning, ""), pod("new", 5, corev1.PodSucceeded, ""), pod("old", 1, corev1.PodFailed, "Error"),
		pod("evicted", 4, corev1.PodFailed, "Evicted"), pod("b", 2, corev1.PodSucceeded, ""), pod("a", 2, corev1.PodSucceeded, ""),
	}
	for _, c := range []struct {
		keep int
		want []string
	}{
		{keep: 6}, {keep: 5}, {keep: 4, want: []string{"evicted"}}, {keep: 2, want: []string{"evicted", "old", "a"}}, {keep: 0, want: []string{"evicted", "old", "a", "b", "new"}},
	} {
		t.Run(fmt.Sprintf("keep %d", c.keep), func(t *testing.T) {
			var got []string
			for _, p := range surplus(all, c.keep) {
				got = append(got, p.Name)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v", got)
			}
		})
	}
}
