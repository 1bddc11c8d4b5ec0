package eviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper"
)

// Observed is what a plan is made from.
type Observed struct {
	Pod *corev1.Pod
	// Taints of its node that drive pods out.
	Taints []corev1.Taint
	// Since is when the pod began to tolerate them; zero when it does not wait.
	Since, Now time.Time
}

// Plan is what becomes of a pod.
type Plan struct {
	Evict bool
	// Cancel says that the pod was to go and now is not.
	Cancel bool
	// Since is when the pod began to wait; zero when it does not.
	Since time.Time
	Again time.Duration
}

// plan says what becomes of a pod.
func plan(seen Observed) Plan {
	waited := !seen.Since.IsZero()
	if len(seen.Taints) == 0 {
		return Plan{Cancel: waited}
	}
	tolerates, by := helper.GetMatchingTolerations(klog.Background(), seen.Taints, seen.Pod.Spec.Tolerations)
	if !tolerates {
		return Plan{Evict: true}
	}
	patience, ends := least(by)
	if !ends {
		return Plan{Cancel: waited}
	}
	since := seen.Since
	if !waited {
		since = seen.Now
	}
	if left := since.Add(patience).Sub(seen.Now); left > 0 {
		return Plan{Since: since, Again: left}
	}
	return Plan{Evict: true}
}

// least is how long the least patient of some tolerations lasts; false when all
// last for ever.
func least(of []corev1.Toleration) (time.Duration, bool) {
	var shortest time.Duration
	ends := false
	for _, t := range of {
		if t.TolerationSeconds == nil {
			continue
		}
		d := time.Duration(max(0, *t.TolerationSeconds)) * time.Second
		if !ends || d < shortest {
			shortest, ends = d, true
		}
	}
	return shortest, ends
}
