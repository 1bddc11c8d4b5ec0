package daemonset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"setpoint.dev/setpoint/controller/plantest"
	"setpoint.dev/setpoint/controller/revision"
	"setpoint.dev/setpoint/controller/template"
)

var began = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type edit = func(*appsv1.DaemonSet)

func setOf(edits ...edit) *appsv1.DaemonSet {
	labels := map[string]string{"app": "log"}
	s := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "log", Namespace: "default", UID: "s", Generation: 1},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, RevisionHistoryLimit: new(int32(10)),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "new"}}}},
		},
	}
	rolling(1, 0)(s)
	for _, e := range edits {
		e(s)
	}
	return s
}

func rolling(unavailable, surge int32) edit {
	return func(s *appsv1.DaemonSet) {
		s.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{
			MaxUnavailable: new(intstr.FromInt32(unavailable)), MaxSurge: new(intstr.FromInt32(surge)),
		}}
	}
}

func onDelete(s *appsv1.DaemonSet) {
	s.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
}

func selects(s *appsv1.DaemonSet) {
	s.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
}
func patient(s *appsv1.DaemonSet) { s.Spec.MinReadySeconds = 8 }

// nodeOfText is "name[ flag...]".
func nodeOfText(text string) *corev1.Node {
	fields := strings.Fields(text)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fields[0], Labels: map[string]string{}}}
	for _, f := range fields[1:] {
		switch f {
		case "ssd":
			n.Labels["disk"] = "ssd"
		case "cordoned":
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
		case "tainted":
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "own", Effect: corev1.TaintEffectNoSchedule})
		case "evicting":
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "own", Effect: corev1.TaintEffectNoExecute})
		}
	}
	return n
}

func hashOf(image string) string {
	t := setOf().Spec.Template
	t.Spec.Containers[0].Image = image
	return template.Hash(&t, nil)
}

// podOf is "name node image phase[ flag...]".
func podOf(text string) *corev1.Pod {
	fields := strings.Fields(text)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fields[0], Namespace: "default", CreationTimestamp: metav1.NewTime(began)}}
	p.Labels = map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: hashOf(fields[2])}
	p.Spec.NodeName, p.Status.Phase = fields[1], corev1.PodPhase(fields[3])
	for _, f := range fields[4:] {
		switch f {
		case "ready":
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(began.Add(-5 * time.Second))}}
		case "deleted":
			p.DeletionTimestamp = new(metav1.NewTime(began))
		case "unscheduled":
			s := &scope{set: setOf()}
			s.make(&place{name: fields[1]})
			p.Spec = s.plan.Create[0].Spec
		}
	}
	return p
}

func revisionOf(image string, number int64) *appsv1.ControllerRevision {
	s := setOf()
	s.Spec.Template.Spec.Containers[0].Image = image
	r, err := revision.Choose(revision.Owner{Object: s, Kind: kind, Template: &s.Spec.Template, Hash: func() string { return hashOf(image) }}, nil)
	if err != nil {
		panic(err)
	}
	r.Revision = number
	return r.ControllerRevision
}

func TestPlan(t *testing.T) {
	cases := []struct {
		name  string
		set   *appsv1.DaemonSet
		nodes string
		pods  string
		wait  map[string]time.Duration
		more  []*appsv1.ControllerRevision
	}{
		{name: "a pod for each node", set: setOf(), nodes: "a\nb"},
		{name: "all there", set: setOf(), nodes: "a\nb", pods: "p a new Running ready\nq b new Running ready"},
		{name: "nodes that do not fit", set: setOf(selects), nodes: "a\nb ssd"},
		{name: "nodes in trouble keep theirs", set: setOf(), nodes: "a cordoned"},
		{name: "a taint keeps new ones away, not those that run", set: setOf(), nodes: "a tainted\nb tainted", pods: "p a new Running ready"},
		{name: "a taint that evicts", set: setOf(), nodes: "a evicting", pods: "p a new Running ready"},
		{name: "no longer wanted there", set: setOf(selects), nodes: "a", pods: "p a new Running ready"},
		{name: "two on one node", set: setOf(), nodes: "a", pods: "p a new Running ready\nq a new Running"},
		{name: "waits for a node that is gone", set: setOf(), nodes: "a", pods: "p gone new Pending unscheduled\nq a new Running ready"},
		{name: "failed", set: setOf(), nodes: "a", pods: "p a new Failed"},
		{name: "failed again", set: setOf(), nodes: "a", pods: "p a new Failed", wait: map[string]time.Duration{"a": 4 * time.Second}},
		{name: "ended", set: setOf(), nodes: "a", pods: "p a new Succeeded"},
		{name: "is going", set: setOf(), nodes: "a", pods: "p a new Running deleted"},
		{name: "ready, not yet available", set: setOf(patient), nodes: "a", pods: "p a new Running ready"},
		{name: "rolling: one at a time", set: setOf(), nodes: "a\nb\nc", pods: "p a old Running ready\nq b old Running ready\nr c old Running ready", more: []*appsv1.ControllerRevision{revisionOf("old", 1)}},
		{name: "rolling: waits", set: setOf(), nodes: "a\nb\nc", pods: "p a new Running\nq b old Running ready\nr c old Running ready"},
		{name: "rolling: those that do not work go first", set: setOf(), nodes: "a\nb\nc", pods: "p a old Running ready\nq b old Running\nr c old Running ready"},
		{name: "rolling: several", set: setOf(rolling(2, 0)), nodes: "a\nb\nc", pods: "p a old Running ready\nq b old Running ready\nr c old Running ready"},
		{name: "surge: beside the old one", set: setOf(rolling(0, 1)), nodes: "a\nb", pods: "p a old Running ready\nq b old Running ready"},
		{name: "surge: waits", set: setOf(rolling(0, 1)), nodes: "a\nb", pods: "p a old Running ready\nr a new Running\nq b old Running ready"},
		{name: "surge: takes over", set: setOf(rolling(0, 1)), nodes: "a\nb", pods: "p a old Running ready\nr a new Running ready\nq b old Running ready"},
		{name: "surge: where the old does not work at once", set: setOf(rolling(0, 1)), nodes: "a\nb", pods: "p a old Running\nq b old Running"},
		{name: "on delete: nothing goes by itself", set: setOf(onDelete), nodes: "a\nb", pods: "p a old Running ready\nq b old Running ready"},
		{name: "an earlier template is back", set: setOf(), nodes: "a", pods: "p a old Running ready", more: []*appsv1.ControllerRevision{revisionOf("new", 1), revisionOf("old", 2)}},
		{name: "history beyond its limit", set: setOf(func(s *appsv1.DaemonSet) { s.Spec.RevisionHistoryLimit = new(int32(1)) }), nodes: "a", pods: "p a new Running ready", more: []*appsv1.ControllerRevision{revisionOf("x", 1), revisionOf("y", 2), revisionOf("new", 3)}},
		{name: "selects everything", set: setOf(func(s *appsv1.DaemonSet) { s.Spec.Selector = &metav1.LabelSelector{} }), nodes: "a"},
		{name: "on its way out", set: setOf(func(s *appsv1.DaemonSet) { s.DeletionTimestamp = new(metav1.NewTime(began)) }), nodes: "a"},
	}
	var b strings.Builder
	for _, c := range cases {
		seen := Observed{Set: c.set, Revisions: c.more, Wait: c.wait, Now: began}
		if c.more == nil {
			seen.Revisions = []*appsv1.ControllerRevision{revisionOf("new", 1)}
		}
		for line := range strings.Lines(c.nodes) {
			seen.Nodes = append(seen.Nodes, nodeOfText(line))
		}
		for line := range strings.Lines(c.pods) {
			seen.Pods = append(seen.Pods, podOf(line))
		}
		p, err := plan(seen)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "# %s\n%s\n", c.name, describe(p))
	}
	plantest.Golden(t, "plan.txt", b.String())
}

// describe writes a plan down for people.
func describe(p Plan) string {
	var b strings.Builder
	if p.Revision.New {
		fmt.Fprintf(&b, "create revision %d\n", p.Revision.Revision)
	}
	if p.Revision.Renumbered {
		fmt.Fprintf(&b, "renumber revision %d\n", p.Revision.Revision)
	}
	for _, made := range p.Create {
		fmt.Fprintf(&b, "create %s on %s, tolerates %d, %v\n", made.GenerateName, nodeOf(made), len(made.Spec.Tolerations), made.Labels)
	}
	for _, gone := range p.Delete {
		fmt.Fprintf(&b, "delete %s\n", gone.Name)
	}
	for _, r := range p.Trim {
		fmt.Fprintf(&b, "delete revision %d\n", r.Revision)
	}
	if p.Status != nil {
		s := p.Status.Status
		fmt.Fprintf(&b, "status desired=%d current=%d misscheduled=%d ready=%d available=%d unavailable=%d updated=%d\n", s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberMisscheduled, s.NumberReady, s.NumberAvailable, s.NumberUnavailable, s.UpdatedNumberScheduled)
	}
	for _, e := range p.Events {
		fmt.Fprintf(&b, "tell %s %s: %s\n", e.Type, e.Reason, e.Message)
	}
	if p.Again > 0 {
		fmt.Fprintf(&b, "again in %s\n", p.Again)
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

// A rollout never has more nodes without an available pod than it may, nor more
// with two, and ends.
func TestRolloutsStayInTheirFence(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { simulate(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func simulate(t *testing.T, random *rand.Rand) {
	unavailable, surge := 1+random.Int32N(3), int32(0)
	if random.IntN(2) == 0 {
		unavailable, surge = 0, 1+random.Int32N(3)
	}
	w := &world{random: random, seen: Observed{Set: setOf(rolling(unavailable, surge)), Now: began}}
	for i := range 3 + random.IntN(6) {
		w.seen.Nodes = append(w.seen.Nodes, nodeOfText(fmt.Sprintf("n%d", i)))
	}
	w.run(t, 600, 100, 100)
	for i := range 3 {
		w.seen.Set.Generation++
		w.seen.Set.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("v%d", i%2)
		w.run(t, 30+600*(i/2), int(unavailable), int(surge))
	}
	if st := w.seen.Set.Status; int(st.UpdatedNumberScheduled) != len(w.seen.Nodes) || st.NumberUnavailable != 0 {
		t.Fatalf("the rollout did not end: %+v", st)
	}
}

type world struct {
	random *rand.Rand
	seen   Observed
	made   int
}

func (w *world) run(t *testing.T, steps, unavailable, surge int) {
	t.Helper()
	for range steps {
		w.seen.Now = w.seen.Now.Add(time.Second)
		if n := len(w.seen.Pods); n > 0 && w.random.IntN(2) == 0 {
			w.turn(w.seen.Pods[w.random.IntN(n)])
		} else {
			w.reconcile(t)
		}
		without, twice := 0, 0
		for _, n := range w.seen.Nodes {
			live, available := 0, false
			for _, p := range w.seen.Pods {
				if nodeOf(p) == n.Name && p.DeletionTimestamp == nil {
					live++
					available = available || len(p.Status.Conditions) > 0
				}
			}
			if !available {
				without++
			}
			if live > 1 {
				twice++
			}
		}
		if without > unavailable || twice > surge {
			t.Fatalf("%d nodes have no pod, of at most %d; %d have two, of at most %d", without, unavailable, twice, surge)
		}
	}
}

func (w *world) reconcile(t *testing.T) {
	t.Helper()
	p, err := plan(w.seen)
	if err != nil {
		t.Fatal(err)
	}
	if p.Revision.New {
		w.seen.Revisions = append(w.seen.Revisions, p.Revision.ControllerRevision)
	}
	for i, r := range w.seen.Revisions {
		if p.Revision.Renumbered && r.Name == p.Revision.Name {
			w.seen.Revisions[i] = p.Revision.ControllerRevision
		}
	}
	for _, made := range p.Create {
		w.made++
		made.Name, made.Status.Phase, made.CreationTimestamp = fmt.Sprintf("p%d", w.made), corev1.PodPending, metav1.NewTime(w.seen.Now)
		w.seen.Pods = append(w.seen.Pods, made)
	}
	for _, gone := range p.Delete {
		gone.DeletionTimestamp = new(metav1.NewTime(w.seen.Now))
	}
	if p.Status != nil {
		w.seen.Set = p.Status
	}
}

// turn lets a pod come up, or go.
func (w *world) turn(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		w.seen.Pods = slices.DeleteFunc(w.seen.Pods, func(o *corev1.Pod) bool { return o == p })
		return
	}
	p.Spec.NodeName, p.Status.Phase = nodeOf(p), corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.seen.Now)}}
}
