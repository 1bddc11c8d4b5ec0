package nodelife

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/plantest"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type edit = func(*Observed)

// seenOf is a node that said a moment ago that it is as ready says.
func seenOf(ready corev1.ConditionStatus, edits ...edit) Observed {
	seen := Observed{
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour)), Labels: map[string]string{}}},
		Now:  noon, Settings: usual, Heard: heard{last: noon.Add(-10 * time.Second)}, MayGiveUp: true,
	}
	if ready != "" {
		seen.Node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Reason: "Said", LastHeartbeatTime: metav1.NewTime(noon.Add(-10 * time.Second))}}
	}
	for _, e := range edits {
		e(&seen)
	}
	return seen
}

func silentFor(d time.Duration) edit { return func(s *Observed) { s.Heard.last = noon.Add(-d) } }

func tainted(taints ...string) edit {
	return func(s *Observed) {
		for _, t := range taints {
			key, effect, _ := strings.Cut(t, ":")
			s.Node.Spec.Taints = append(s.Node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffect(effect)})
		}
	}
}

func also(kind corev1.NodeConditionType, status corev1.ConditionStatus) edit {
	return func(s *Observed) {
		s.Node.Status.Conditions = append(s.Node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: "Said"})
	}
}

func podReady(name string, ready corev1.ConditionStatus) edit {
	return func(s *Observed) {
		s.Pods = append(s.Pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}})
	}
}

func wait(s *Observed)      { s.MayGiveUp, s.Wait = false, 3*time.Second }
func allSilent(s *Observed) { s.AllSilent, s.MayGiveUp = true, false }

func TestPlan(t *testing.T) {
	const (
		notReady    = "node.kubernetes.io/not-ready"
		unreachable = "node.kubernetes.io/unreachable"
	)
	cases := []struct {
		name string
		seen Observed
	}{
		{"well", seenOf("True")},
		{"well, with taints of others", seenOf("True", tainted("mine:NoExecute", "mine:NoSchedule"))},
		{"well again", seenOf("True", tainted("mine:NoExecute", unreachable+":NoSchedule", unreachable+":NoExecute"))},
		{"not ready", seenOf("False")},
		{"not ready, and others first", seenOf("False", wait)},
		{"not ready, as nobody is", seenOf("False", allSilent)},
		{"not ready, as nobody is any more", seenOf("False", allSilent, tainted(notReady+":NoSchedule", notReady+":NoExecute"))},
		{"given up already", seenOf("False", wait, tainted(notReady+":NoSchedule", notReady+":NoExecute"))},
		{"silent", seenOf("True", silentFor(time.Minute), also(corev1.NodeMemoryPressure, "False"), also(corev1.NodeNetworkUnavailable, "False"))},
		{"silent for not long enough", seenOf("True", silentFor(50*time.Second))},
		{"silent, and known to be", seenOf("Unknown", silentFor(time.Hour), tainted(unreachable+":NoSchedule", unreachable+":NoExecute"))},
		{"silent, and given up as not ready", seenOf("False", silentFor(time.Minute), wait, tainted(notReady+":NoSchedule", notReady+":NoExecute"))},
		{"silent, with pods", seenOf("Unknown", silentFor(time.Hour), podReady("a", "True"), podReady("b", "False"))},
		{"not ready, with pods", seenOf("False", podReady("a", "True"))},
		{"new, and has said nothing", seenOf("", silentFor(55*time.Second), tainted(notReady+":NoSchedule"))},
		{"never heard", seenOf("", silentFor(time.Hour))},
		{"under pressure", seenOf("True", also(corev1.NodeMemoryPressure, "True"), also(corev1.NodeDiskPressure, "True"), also(corev1.NodePIDPressure, "True"), also(corev1.NodeNetworkUnavailable, "True"))},
		{"cordoned", seenOf("True", func(s *Observed) { s.Node.Spec.Unschedulable = true })},
		{"no longer cordoned", seenOf("True", tainted("node.kubernetes.io/unschedulable:NoSchedule"))},
		{"labels of old", seenOf("True", func(s *Observed) {
			s.Node.Labels = map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64", "beta.kubernetes.io/arch": "amd64"}
		})},
	}
	var b strings.Builder
	for _, c := range cases {
		fmt.Fprintf(&b, "# %s\n%s\n", c.name, describe(plan(c.seen)))
	}
	plantest.Golden(t, "plan.txt", b.String())
}

// describe writes a plan down for people.
func describe(p Plan) string {
	var b strings.Builder
	for _, c := range p.Conditions {
		fmt.Fprintf(&b, "condition %s %s %s %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	if p.Lost {
		b.WriteString("lost\n")
	}
	if p.Taints != nil {
		b.WriteString("taints")
		for _, t := range *p.Taints {
			fmt.Fprintf(&b, " %s:%s", t.Key, t.Effect)
			if t.TimeAdded != nil {
				b.WriteString("(new)")
			}
		}
		b.WriteByte('\n')
	}
	if p.GaveUp {
		b.WriteString("gave up\n")
	}
	for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
		fmt.Fprintf(&b, "label %s=%s\n", key, p.Labels[key])
	}
	for _, pod := range p.Unready {
		fmt.Fprintf(&b, "pod %s %s\n", pod.Name, pod.Status.Conditions[0].Status)
	}
	if p.Again > 0 {
		fmt.Fprintf(&b, "again in %v\n", p.Again)
	}
	return b.String()
}

func TestRate(t *testing.T) {
	for _, c := range []struct {
		name string
		of   census
		want float64
	}{
		{"all well", census{well: 10}, 0.1},
		{"one is not", census{9, 1}, 0.1},
		{"two of three are not", census{1, 2}, 0.1},
		{"most of a small zone are not", census{4, 6}, 0},
		{"just not most", census{5, 6}, 0.1},
		{"most of a large zone are not", census{40, 60}, 0.01},
		{"nobody is", census{0, 10}, 0.1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := usual.rate(c.of); got != c.want {
				t.Errorf("%v a second, not %v", got, c.want)
			}
		})
	}
}

func TestCount(t *testing.T) {
	node := func(ready corev1.ConditionStatus, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	east := map[string]string{corev1.LabelTopologyZone: "east"}
	got := count([]*corev1.Node{node("True", nil), node("Unknown", nil), node("False", nil), node("False", east), node("False", map[string]string{excluded: ""})}, wrong)
	if len(got) != 2 || got[""] != (census{1, 2}) || allUnwell(got) {
		t.Errorf("counted %v", got)
	}
	if !allUnwell(count([]*corev1.Node{node("False", east)}, wrong)) || allUnwell(nil) {
		t.Error("who is all")
	}
}

func TestListen(t *testing.T) {
	at := func(ready corev1.ConditionStatus, beat time.Duration) *corev1.Node {
		n := seenOf(ready).Node
		if ready != "" {
			n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(noon.Add(beat))
		}
		return n
	}
	h := listen(heard{}, at("", 0), noon)
	if !h.last.Equal(noon.Add(-time.Hour)) {
		t.Errorf("one that has said nothing was heard %v", h.last)
	}
	h = listen(h, at("True", 0), noon)
	if !h.last.Equal(noon) {
		t.Errorf("one that speaks first was heard %v", h.last)
	}
	if again := listen(h, at("True", 0), noon.Add(time.Minute)); !again.last.Equal(noon) {
		t.Errorf("one that says the same was heard %v", again.last)
	}
	if again := listen(h, at("True", time.Second), noon.Add(time.Minute)); !again.last.Equal(noon.Add(time.Minute)) {
		t.Errorf("one that says it again was heard %v", again.last)
	}
	if again := listen(h, at("", 0), noon.Add(time.Minute)); !again.last.Equal(noon.Add(time.Minute)) || again.spoke {
		t.Errorf("one that is made anew was heard %v", again.last)
	}
}
