package disruption

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"setpoint.dev/setpoint/controller/plantest"
)

var now = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func budget(edits ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "default", Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}
	for _, edit := range edits {
		edit(b)
	}
	return b
}

func atLeast(value string) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = new(intstr.Parse(value)) }
}

func atMost(value string) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MaxUnavailable = new(intstr.Parse(value)) }
}

// evicted says of a pod that it was evicted some time ago.
func evicted(name string, ago time.Duration) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) {
		b.Status.DisruptedPods = map[string]metav1.Time{name: metav1.NewTime(now.Add(-ago))}
	}
}

// podsOf makes pods from lines with their name, their controller, "ready" and
// "going".
func podsOf(text string) []*corev1.Pod {
	var all []*corev1.Pod
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: words[0], Namespace: "default"}}
		for _, word := range words[1:] {
			switch word {
			case "ready":
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			case "going":
				p.DeletionTimestamp = &metav1.Time{Time: now}
			default:
				p.OwnerReferences = []metav1.OwnerReference{{Kind: "Set", Name: word, UID: types.UID(word), Controller: new(true)}}
			}
		}
		all = append(all, p)
	}
	return all
}

func TestPlan(t *testing.T) {
	scales := map[types.UID]Scale{"x": {"x", 3}, "y": {"y", 2}, "z1": {"z", 4}, "z2": {"z", 4}}
	three := "a x ready\nb x ready\nc x ready"
	settled := func(b *policyv1.PodDisruptionBudget, text string) *policyv1.PodDisruptionBudget {
		p, err := plan(Observed{Budget: b, Pods: podsOf(text), Scales: scales, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return p.Status
	}
	type seen struct {
		budget *policyv1.PodDisruptionBudget
		pods   string
	}
	plantest.Cases(t, "plan.txt", map[string]seen{
		"no pods":                             {budget: budget(atLeast("1"))},
		"all healthy, a number":               {budget(atLeast("2")), three},
		"not enough":                          {budget(atLeast("4")), three},
		"one is not ready":                    {budget(atLeast("2")), "a x ready\nb x\nc x ready"},
		"one is going":                        {budget(atLeast("2")), "a x ready\nb x ready going\nc x ready"},
		"a share, rounded up":                 {budget(atLeast("50%")), three},
		"a share of two controllers":          {budget(atLeast("50%")), "a x ready\nb y ready"},
		"two sets of one deployment":          {budget(atMost("1")), "a z1 ready\nb z2 ready\nc z2 ready\nd z2 ready"},
		"how many may be missing":             {budget(atMost("1")), three},
		"how many may be missing, a share":    {budget(atMost("30%")), three},
		"more may be missing than there are":  {budget(atMost("9")), three},
		"pods that nobody controls, a number": {budget(atLeast("1")), "a ready\nb ready"},
		"pods that nobody controls, a share":  {budget(atMost("1")), "a ready\nb x ready"},
		"a controller that is gone":           {budget(atMost("1")), "a gone ready"},
		"no rule":                             {budget(), three},
		"one was evicted":                     {budget(atLeast("1"), evicted("a", time.Minute)), three},
		"one was evicted and goes":            {budget(atLeast("1"), evicted("a", time.Minute)), "a x ready going\nb x ready\nc x ready"},
		"one was evicted, long ago":           {budget(atLeast("1"), evicted("a", 3*time.Minute)), three},
		"nothing to do":                       {settled(budget(atLeast("1")), three), three},
		"two are gone":                        {settled(budget(atLeast("1")), three), "a x ready"},
	}, func(s seen) string {
		p, err := plan(Observed{Budget: s.budget, Pods: podsOf(s.pods), Scales: scales, Now: now})
		if err != nil {
			return fmt.Sprintln("error:", err)
		}
		return describe(p)
	})
}

func describe(p Plan) string {
	var b strings.Builder
	if p.Status != nil {
		s := p.Status.Status
		fmt.Fprintf(&b, "status healthy=%d desired=%d expected=%d allowed=%d disrupted=%v observed=%d\n", s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods, s.DisruptionsAllowed, len(s.DisruptedPods), s.ObservedGeneration)
		for _, c := range s.Conditions {
			fmt.Fprintf(&b, "  %s=%s %s %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for _, e := range p.Events {
		fmt.Fprintf(&b, "tell %s %s: %s\n", e.Type, e.Reason, e.Message)
	}
	for pod := range slices.Values(p.Kept) {
		fmt.Fprintf(&b, "kept %s\n", pod.Name)
	}
	if p.Again > 0 {
		fmt.Fprintf(&b, "again in %v\n", p.Again)
	}
	return b.String()
}

func TestWhatCannotBeToldAllowsNothing(t *testing.T) {
	b := budget(atMost("1"))
	b.Status.DisruptionsAllowed = 3
	next := failed(b, errors.New("nobody knows"))
	if next == nil || next.Status.DisruptionsAllowed != 0 || next.Status.Conditions[0].Reason != policyv1.SyncFailedReason || next.Status.Conditions[0].Message != "nobody knows" {
		t.Fatalf("the status is %+v", next)
	}
	if again := failed(next, errors.New("nobody knows")); again != nil {
		t.Errorf("it is written again as %+v", again.Status)
	}
}
