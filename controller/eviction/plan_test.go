package eviction

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/controller/plantest"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func tolerates(key string, seconds ...int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}

func taints(keys ...string) []corev1.Taint {
	var all []corev1.Taint
	for _, k := range keys {
		all = append(all, corev1.Taint{Key: k, Effect: corev1.TaintEffectNoExecute})
	}
	return all
}

func TestPlan(t *testing.T) {
	cases := []struct {
		name        string
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		waited      time.Duration // 0 is not at all
	}{
		{"no taints", nil, nil, 0},
		{"no taints any more", nil, []corev1.Toleration{tolerates("a", 300)}, time.Minute},
		{"not tolerated", taints("a"), nil, 0},
		{"another tolerated", taints("a"), []corev1.Toleration{tolerates("b")}, 0},
		{"one of two tolerated", taints("a", "b"), []corev1.Toleration{tolerates("b")}, 0},
		{"tolerated for ever", taints("a"), []corev1.Toleration{tolerates("a")}, 0},
		{"tolerated for ever now", taints("a"), []corev1.Toleration{tolerates("a")}, time.Minute},
		{"tolerated for a while", taints("a"), []corev1.Toleration{tolerates("a", 300)}, 0},
		{"tolerated for some time", taints("a"), []corev1.Toleration{tolerates("a", 300)}, time.Minute},
		{"tolerated for long enough", taints("a"), []corev1.Toleration{tolerates("a", 300)}, 300 * time.Second},
		{"tolerated, but not for any time", taints("a"), []corev1.Toleration{tolerates("a", 0)}, 0},
		{"tolerated for less than nothing", taints("a"), []corev1.Toleration{tolerates("a", -5)}, 0},
		{"two tolerated for different times", taints("a", "b"), []corev1.Toleration{tolerates("a", 300), tolerates("b", 100)}, 0},
		{"two tolerated, one for ever", taints("a", "b"), []corev1.Toleration{tolerates("a"), tolerates("b", 100)}, 0},
	}
	var b strings.Builder
	for _, c := range cases {
		seen := Observed{Pod: &corev1.Pod{Spec: corev1.PodSpec{Tolerations: c.tolerations}}, Taints: c.taints, Now: noon}
		if c.waited > 0 {
			seen.Since = noon.Add(-c.waited)
		}
		fmt.Fprintf(&b, "# %s\n%s\n", c.name, describe(plan(seen)))
	}
	plantest.Golden(t, "plan.txt", b.String())
}

// describe writes a plan down for people.
func describe(p Plan) string {
	var b strings.Builder
	if p.Cancel {
		b.WriteString("cancel\n")
	}
	if p.Evict {
		b.WriteString("evict\n")
	}
	if !p.Since.IsZero() {
		fmt.Fprintf(&b, "has waited for %v\n", noon.Sub(p.Since))
	}
	if p.Again > 0 {
		fmt.Fprintf(&b, "again in %v\n", p.Again)
	}
	return b.String()
}
