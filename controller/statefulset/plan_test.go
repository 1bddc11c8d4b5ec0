package statefulset

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
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/controller/plantest"
	"setpoint.dev/setpoint/controller/revision"
)

var began = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type edit = func(*appsv1.StatefulSet)

func setOf(replicas int32, edits ...edit) *appsv1.StatefulSet {
	labels := map[string]string{"app": "db"}
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default", UID: "s", Generation: 1},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: labels}, RevisionHistoryLimit: new(int32(10)),
			Template:       corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "new"}}}},
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32)}},
		},
	}
	for _, e := range edits {
		e(s)
	}
	return s
}

func parallel(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }
func onDelete(s *appsv1.StatefulSet) {
	s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
}
func gone(s *appsv1.StatefulSet) { s.DeletionTimestamp = new(metav1.NewTime(began)) }
func from(n int32) edit {
	return func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: n} }
}

func partition(n int32) edit {
	return func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = &n }
}

func patient(seconds int32) edit {
	return func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = seconds }
}

func at(r *appsv1.ControllerRevision) edit {
	return func(s *appsv1.StatefulSet) { s.Status.CurrentRevision = r.Name }
}

func claims(deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType) edit {
	return func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: deleted, WhenScaled: scaled}
	}
}

// revisionOf is the revision of the set with another image.
func revisionOf(image string, number int64) *appsv1.ControllerRevision {
	s := setOf(1)
	s.Spec.Template.Spec.Containers[0].Image = image
	r, err := revision.Choose(revision.Owner{Object: s, Kind: kind, Template: &s.Spec.Template}, nil)
	if err != nil {
		panic(err)
	}
	r.Revision = number
	return r.ControllerRevision
}

// podOf is "ordinal image phase[ flag...]".
func podOf(set *appsv1.StatefulSet, text string) *corev1.Pod {
	fields := strings.Fields(text)
	n, _ := strconv.Atoi(fields[0])
	s := &scope{Observed: Observed{Set: set}, set: set, templates: map[string]*corev1.PodTemplateSpec{"": &set.Spec.Template}}
	p := s.pod(n)
	p.UID, p.Status.Phase = types.UID("uid-"+fields[0]), corev1.PodPhase(fields[2])
	p.Labels[appsv1.StatefulSetRevisionLabel] = revisionOf(fields[1], 1).Name
	for _, f := range fields[3:] {
		switch f {
		case "ready":
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(began.Add(-5 * time.Second))}}
		case "deleted":
			p.DeletionTimestamp = new(metav1.NewTime(began))
		case "bare":
			p.Spec.Volumes = nil
			delete(p.Labels, appsv1.StatefulSetPodNameLabel)
		}
	}
	return p
}

func TestPlan(t *testing.T) {
	old, now := revisionOf("old", 1), revisionOf("new", 2)
	const keep, drop = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	owned := func(name string, uid types.UID, owner string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		switch owner {
		case "set":
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: uid, Controller: new(true)}}
		case "pod":
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: strings.TrimPrefix(name, "data-"), UID: uid, Controller: new(true)}}
		}
		return c
	}
	cases := []struct {
		name      string
		set       *appsv1.StatefulSet
		pods      string // one on each line
		revisions []*appsv1.ControllerRevision
		claims    []*corev1.PersistentVolumeClaim
	}{
		{name: "first pod", set: setOf(3)},
		{name: "first pods, all at once", set: setOf(3, parallel)},
		{name: "the second waits for the first", set: setOf(3), pods: "0 new Running", revisions: []*appsv1.ControllerRevision{now}},
		{name: "the second follows", set: setOf(3), pods: "0 new Running ready", revisions: []*appsv1.ControllerRevision{now}},
		{name: "ready is not yet available", set: setOf(3, patient(8)), pods: "0 new Running ready", revisions: []*appsv1.ControllerRevision{now}},
		{name: "all there", set: setOf(2), pods: "0 new Running ready\n1 new Running ready", revisions: []*appsv1.ControllerRevision{now}},
		{name: "ordinals that begin later", set: setOf(2, from(5)), pods: "5 new Running ready\n0 new Running ready", revisions: []*appsv1.ControllerRevision{now}},
		{name: "one has ended", set: setOf(2), pods: "0 new Succeeded\n1 new Running ready", revisions: []*appsv1.ControllerRevision{now}},
		{name: "one that ended is going", set: setOf(2), pods: "0 new Failed deleted\n1 new Running ready", revisions: []*appsv1.ControllerRevision{now}},
		{name: "smaller: the last goes", set: setOf(1), pods: "0 new Running ready\n1 new Running ready\n2 new Running ready", revisions: []*appsv1.ControllerRevision{now}},
		{name: "smaller: waits for one that is going", set: setOf(1), pods: "0 new Running ready\n1 new Running ready\n2 new Running ready deleted", revisions: []*appsv1.ControllerRevision{now}},
		{name: "smaller: the last is ready, another is not", set: setOf(1), pods: "0 new Running ready\n1 new Running\n2 new Running ready", revisions: []*appsv1.ControllerRevision{now}},
		{name: "smaller: waits for one before that is not ready", set: setOf(1), pods: "0 new Running ready\n1 new Running\n2 new Running", revisions: []*appsv1.ControllerRevision{now}},
		{name: "smaller: the one that is not ready is the last", set: setOf(1), pods: "0 new Running ready\n1 new Running ready\n2 new Running", revisions: []*appsv1.ControllerRevision{now}},
		{name: "smaller, all at once", set: setOf(1, parallel), pods: "0 new Running\n1 new Running\n2 new Running ready", revisions: []*appsv1.ControllerRevision{now}},
		{name: "rolling: the highest first", set: setOf(3, at(old)), pods: "0 old Running ready\n1 old Running ready\n2 old Running ready", revisions: []*appsv1.ControllerRevision{old}},
		{name: "rolling: waits", set: setOf(3, at(old)), pods: "0 old Running ready\n1 old Running ready\n2 new Running", revisions: []*appsv1.ControllerRevision{old, now}},
		{name: "rolling: the next", set: setOf(3, at(old)), pods: "0 old Running ready\n1 old Running ready\n2 new Running ready", revisions: []*appsv1.ControllerRevision{old, now}},
		{name: "rolling: the one that went comes back new", set: setOf(3, at(old)), pods: "0 old Running ready\n1 old Running ready", revisions: []*appsv1.ControllerRevision{old, now}},
		{name: "rolling: done", set: setOf(2, at(old)), pods: "0 new Running ready\n1 new Running ready", revisions: []*appsv1.ControllerRevision{old, now}},
		{name: "partition: below it stays", set: setOf(3, at(old), partition(2)), pods: "0 old Running ready\n1 old Running ready\n2 new Running ready", revisions: []*appsv1.ControllerRevision{old, now}},
		{name: "partition: below it comes back old", set: setOf(3, at(old), partition(2)), pods: "1 old Running ready\n2 new Running ready", revisions: []*appsv1.ControllerRevision{old, now}},
		{name: "on delete: nothing goes by itself", set: setOf(2, at(old), onDelete), pods: "0 old Running ready\n1 old Running ready", revisions: []*appsv1.ControllerRevision{old, now}},
		{name: "on delete: what went comes back new", set: setOf(2, at(old), onDelete), pods: "0 old Running ready", revisions: []*appsv1.ControllerRevision{old, now}},
		{name: "an earlier template is back", set: setOf(1, at(old)), pods: "0 old Running ready", revisions: []*appsv1.ControllerRevision{revisionOf("new", 1), revisionOf("old", 2)}},
		{name: "history beyond its limit", set: setOf(1, at(now), func(s *appsv1.StatefulSet) { s.Spec.RevisionHistoryLimit = new(int32(1)) }), pods: "0 new Running ready", revisions: []*appsv1.ControllerRevision{revisionOf("a", 1), revisionOf("b", 2), revisionOf("c", 3), revisionOf("new", 4)}},
		{name: "on its way out", set: setOf(3, gone), pods: "0 new Running ready", revisions: []*appsv1.ControllerRevision{now}},
		{name: "claims come with the pod", set: setOf(1, claims(keep, keep))},
		{name: "claims that go with the set", set: setOf(1, claims(drop, keep))},
		{name: "claims are given to the set", set: setOf(1, claims(drop, drop)), pods: "0 new Running ready", revisions: []*appsv1.ControllerRevision{now}, claims: []*corev1.PersistentVolumeClaim{owned("data-db-0", "", "")}},
		{name: "claims are taken from the set", set: setOf(1, claims(keep, keep)), pods: "0 new Running ready", revisions: []*appsv1.ControllerRevision{now}, claims: []*corev1.PersistentVolumeClaim{owned("data-db-0", "s", "set")}},
		{name: "claims of a set of that name that is gone", set: setOf(1, claims(drop, drop)), pods: "0 new Running ready", revisions: []*appsv1.ControllerRevision{now}, claims: []*corev1.PersistentVolumeClaim{owned("data-db-0", "other", "set")}},
		{name: "claims go with a pod beyond the last", set: setOf(1, claims(drop, drop)), pods: "0 new Running ready\n1 new Running ready", revisions: []*appsv1.ControllerRevision{now}, claims: []*corev1.PersistentVolumeClaim{owned("data-db-0", "s", "set"), owned("data-db-1", "s", "set")}},
		{name: "claim of an earlier pod is waited for", set: setOf(1, claims(keep, drop)), revisions: []*appsv1.ControllerRevision{now}, claims: []*corev1.PersistentVolumeClaim{owned("data-db-0", "before", "pod")}},
		{name: "a pending pod lacks its claim", set: setOf(1, claims(keep, keep)), pods: "0 new Pending", revisions: []*appsv1.ControllerRevision{now}},
		{name: "a pod has lost identity and storage", set: setOf(1, claims(keep, keep)), pods: "0 new Running ready bare", revisions: []*appsv1.ControllerRevision{now}, claims: []*corev1.PersistentVolumeClaim{owned("data-db-0", "", "")}},
	}
	var b strings.Builder
	for _, c := range cases {
		seen := Observed{Set: c.set, Revisions: c.revisions, Claims: map[string]*corev1.PersistentVolumeClaim{}, Now: began}
		for _, claim := range c.claims {
			seen.Claims[claim.Name] = claim
		}
		for line := range strings.Lines(c.pods) {
			seen.Pods = append(seen.Pods, podOf(c.set, line))
		}
		p, err := plan(seen)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer(old.Name, "OLD", now.Name, "NEW").Replace(describe(p))
		fmt.Fprintf(&b, "# %s\n%s\n", c.name, text)
	}
	plantest.Golden(t, "plan.txt", b.String())
}

// describe writes a plan down for people.
func describe(p Plan) string {
	var b strings.Builder
	if p.Revision.New {
		fmt.Fprintf(&b, "create revision %d %s\n", p.Revision.Revision, p.Revision.Name)
	}
	if p.Revision.Renumbered {
		fmt.Fprintf(&b, "renumber revision %d %s\n", p.Revision.Revision, p.Revision.Name)
	}
	for _, s := range p.Steps {
		for _, c := range s.Claims {
			fmt.Fprintf(&b, "create claim %s %v%s\n", c.Name, c.Labels, describeOwners(c))
		}
		for _, c := range s.Owned {
			fmt.Fprintf(&b, "update claim %s%s\n", c.Name, describeOwners(c))
		}
		for verb, pod := range map[string]*corev1.Pod{"create": s.Create, "update": s.Update} {
			if pod != nil {
				fmt.Fprintf(&b, "%s %s image=%s volumes=%d host=%s.%s %v\n", verb, pod.Name, pod.Spec.Containers[0].Image, len(pod.Spec.Volumes), pod.Spec.Hostname, pod.Spec.Subdomain, pod.Labels)
			}
		}
		if s.Delete != nil {
			fmt.Fprintf(&b, "delete %s\n", s.Delete.Name)
		}
	}
	for _, r := range p.Trim {
		fmt.Fprintf(&b, "delete revision %d\n", r.Revision)
	}
	if p.Status != nil {
		s := p.Status.Status
		fmt.Fprintf(&b, "status replicas=%d ready=%d available=%d current=%d of %s, updated=%d of %s\n", s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.CurrentReplicas, s.CurrentRevision, s.UpdatedReplicas, s.UpdateRevision)
	}
	if p.Again > 0 {
		fmt.Fprintf(&b, "again in %s\n", p.Again)
	}
	return b.String()
}

func describeOwners(c *corev1.PersistentVolumeClaim) string {
	text := ""
	for _, r := range c.OwnerReferences {
		text += fmt.Sprintf(" of %s %s", r.Kind, r.Name)
	}
	return text
}

// A set that is scaled and updated at random keeps its order, and ends as declared.
func TestSetsKeepTheirOrder(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { simulate(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

type world struct {
	random *rand.Rand
	seen   Observed
	made   int
}

func simulate(t *testing.T, random *rand.Rand) {
	w := &world{random: random, seen: Observed{Set: setOf(random.Int32N(6), claims("Delete", "Delete")), Now: began, Claims: map[string]*corev1.PersistentVolumeClaim{}}}
	if random.IntN(3) == 0 {
		parallel(w.seen.Set)
	}
	for i := range 4 {
		w.seen.Set.Generation++
		w.seen.Set.Spec.Replicas = new(random.Int32N(6))
		w.seen.Set.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("v%d", random.IntN(3))
		for range 20 + 400*(i/3) {
			w.step(t)
		}
	}
	st, n := w.seen.Set.Status, *w.seen.Set.Spec.Replicas
	if st.Replicas != n || st.AvailableReplicas != n || st.UpdatedReplicas != n || st.CurrentRevision != st.UpdateRevision {
		t.Fatalf("%d replicas are wanted: %+v", n, st)
	}
	for i := range n {
		if c := w.seen.Claims[fmt.Sprintf("data-db-%d", i)]; c == nil || len(c.OwnerReferences) != 1 || c.OwnerReferences[0].Kind != "StatefulSet" {
			t.Errorf("claim %d: %+v", i, c)
		}
	}
	// One whose pod was gone already when the set became smaller goes with the set.
	for name, c := range w.seen.Claims {
		if len(c.OwnerReferences) != 1 || c.OwnerReferences[0].Kind != "StatefulSet" {
			t.Errorf("claim %s is left behind: %+v", name, c)
		}
	}
}

func (w *world) step(t *testing.T) {
	t.Helper()
	w.seen.Now = w.seen.Now.Add(time.Second)
	if n := len(w.seen.Pods); n > 0 && w.random.IntN(2) == 0 {
		w.turn(w.seen.Pods[w.random.IntN(n)])
		return
	}
	p, err := plan(w.seen)
	if err != nil {
		t.Fatal(err)
	}
	if w.seen.Set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
		acts := 0
		for _, s := range p.Steps {
			if s.Create != nil || s.Delete != nil {
				acts++
			}
		}
		if acts > 1 {
			t.Fatalf("%d pods at once: %s", acts, describe(p))
		}
	}
	w.carryOut(p)
}

func (w *world) carryOut(p Plan) {
	if p.Revision.New {
		w.seen.Revisions = append(w.seen.Revisions, p.Revision.ControllerRevision)
	}
	for i, r := range w.seen.Revisions {
		if p.Revision.Renumbered && r.Name == p.Revision.Name {
			w.seen.Revisions[i] = p.Revision.ControllerRevision
		}
	}
	for _, s := range p.Steps {
		for _, c := range slices.Concat(s.Claims, s.Owned) {
			w.seen.Claims[c.Name] = c
		}
		if s.Create != nil {
			w.made++
			s.Create.UID, s.Create.Status.Phase = types.UID(fmt.Sprintf("%s-%d", s.Create.Name, w.made)), corev1.PodPending
			w.seen.Pods = append(w.seen.Pods, s.Create)
		}
		if s.Delete != nil {
			s.Delete.DeletionTimestamp = new(metav1.NewTime(w.seen.Now))
		}
	}
	if p.Status != nil {
		w.seen.Set = p.Status
	}
}

// turn lets a pod come up, or go, and what it owns with it.
func (w *world) turn(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		w.seen.Pods = slices.DeleteFunc(w.seen.Pods, func(o *corev1.Pod) bool { return o == p })
		for name, c := range w.seen.Claims {
			if slices.ContainsFunc(c.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == p.UID }) {
				delete(w.seen.Claims, name)
			}
		}
		return
	}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.seen.Now)}}
}
