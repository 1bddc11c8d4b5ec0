package deployment

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
	"k8s.io/apimachinery/pkg/util/intstr"

	"setpoint.dev/setpoint/controller/plantest"
)

var began = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func deploymentOf(image string, replicas int32, edits ...func(*appsv1.Deployment)) *appsv1.Deployment {
	quarter := intstr.FromString("25%")
	labels := map[string]string{"app": "web"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "d", Generation: 1, CreationTimestamp: metav1.NewTime(began)},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, ProgressDeadlineSeconds: new(int32(600)), RevisionHistoryLimit: new(int32(10)),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &quarter, MaxUnavailable: &quarter}},
		},
	}
	for _, edit := range edits {
		edit(d)
	}
	return d
}

func annotated(key, value string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { metav1.SetMetaDataAnnotation(&d.ObjectMeta, key, value) }
}

func recreates(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
}

func progressing(status corev1.ConditionStatus, reason string, ago time.Duration) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		at := metav1.NewTime(began.Add(-ago))
		d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: status, Reason: reason, LastUpdateTime: at, LastTransitionTime: at})
	}
}

// setOf is a replica set of d with another image, made as the controller makes it.
func setOf(d *appsv1.Deployment, image string, revision int, size, available int32) *appsv1.ReplicaSet {
	d = d.DeepCopy()
	d.Spec.Template.Spec.Containers[0].Image = image
	s := &scope{Observed: Observed{Deployment: d, Now: began}, deployment: d, changed: map[string]Change{}}
	s.makeCurrent()
	set := s.current
	set.UID, set.Generation = types.UID(image), 1
	set.CreationTimestamp = metav1.NewTime(began.Add(time.Duration(revision) * time.Minute))
	set.Annotations[revisionAnnotation] = strconv.Itoa(revision)
	set.Spec.Replicas = &size
	set.Status = appsv1.ReplicaSetStatus{Replicas: size, ReadyReplicas: available, AvailableReplicas: available, ObservedGeneration: 1, TerminatingReplicas: new(int32)}
	return set
}

func sized(set *appsv1.ReplicaSet, desired, most string) *appsv1.ReplicaSet {
	set.Annotations[desiredAnnotation], set.Annotations[maxAnnotation] = desired, most
	return set
}

// settle makes the status what the sets say, as if a plan had been carried out.
func settle(d *appsv1.Deployment, sets ...*appsv1.ReplicaSet) *appsv1.Deployment {
	if p := plan(Observed{Deployment: d, Sets: sets, Now: began}); p.Status != nil {
		d = p.Status
	}
	return d
}

// since makes the deployment's last progress that long ago.
func since(d *appsv1.Deployment, ago time.Duration) *appsv1.Deployment {
	for i, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing {
			d.Status.Conditions[i].LastUpdateTime = metav1.NewTime(began.Add(-ago))
		}
	}
	return d
}

func TestPlan(t *testing.T) {
	ten := deploymentOf("new", 10)
	done := func(replicas int32, edits ...func(*appsv1.Deployment)) *appsv1.Deployment {
		return deploymentOf("new", replicas, append([]func(*appsv1.Deployment){progressing(corev1.ConditionTrue, reasonDone, time.Hour)}, edits...)...)
	}
	failed := setOf(ten, "new", 1, 10, 0)
	failed.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "quota"}}
	running := func(set *appsv1.ReplicaSet, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}},
			Status:     corev1.PodStatus{Phase: phase},
		}
	}
	empty := setOf(ten, "old", 1, 0, 0)
	history := []*appsv1.ReplicaSet{}
	for i := range 4 {
		history = append(history, setOf(ten, fmt.Sprintf("old%d", i), i+1, 0, 0))
	}
	cases := map[string]Observed{
		"first set":          {Deployment: ten},
		"first set of none":  {Deployment: deploymentOf("new", 0)},
		"pods come":          {Deployment: settle(ten, setOf(ten, "new", 1, 10, 0)), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 10, 4)}},
		"all pods are there": {Deployment: settle(ten, setOf(ten, "new", 1, 10, 9)), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 10, 10)}},
		"nothing to do":      {Deployment: settle(settle(done(10), setOf(ten, "new", 1, 10, 10)), setOf(ten, "new", 1, 10, 10)), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 10, 10)}},
		"new template: surge and the first old ones":       {Deployment: done(10), Sets: []*appsv1.ReplicaSet{setOf(ten, "old", 1, 10, 10)}},
		"new pods are ready: room for fewer old ones":      {Deployment: ten, Sets: []*appsv1.ReplicaSet{setOf(ten, "old", 1, 8, 8), setOf(ten, "new", 2, 5, 2)}},
		"old pods are gone: room for more new ones":        {Deployment: ten, Sets: []*appsv1.ReplicaSet{setOf(ten, "old", 1, 6, 6), setOf(ten, "new", 2, 5, 2)}},
		"status from before the set was made smaller":      {Deployment: ten, Sets: []*appsv1.ReplicaSet{setOf(ten, "old", 1, 8, 10), setOf(ten, "new", 2, 5, 2)}},
		"old pods that do not work go first":               {Deployment: ten, Sets: []*appsv1.ReplicaSet{setOf(ten, "older", 1, 4, 0), setOf(ten, "old", 2, 9, 8), setOf(ten, "new", 3, 0, 0)}},
		"new pods that do not work: nothing moves":         {Deployment: ten, Sets: []*appsv1.ReplicaSet{setOf(ten, "old", 1, 8, 8), setOf(ten, "new", 2, 5, 0)}},
		"the last old ones":                                {Deployment: ten, Sets: []*appsv1.ReplicaSet{setOf(ten, "old", 1, 3, 3), setOf(ten, "new", 2, 10, 10)}},
		"back to an earlier template":                      {Deployment: ten, Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 0, 0), setOf(ten, "old", 2, 10, 10)}},
		"revision that is no number":                       {Deployment: deploymentOf("new", 1, annotated(revisionAnnotation, "x")), Sets: []*appsv1.ReplicaSet{revised(setOf(ten, "new", 1, 1, 1), "many")}},
		"annotations are shared":                           {Deployment: deploymentOf("new", 1, annotated("kubernetes.io/change-cause", "why"), annotated(corev1.LastAppliedConfigAnnotation, "{}")), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "new", 1, 1, 1), "1", "2")}},
		"two sets of one template":                         {Deployment: ten, Sets: []*appsv1.ReplicaSet{renamed(setOf(ten, "new", 2, 2, 2), "twin"), setOf(ten, "new", 1, 10, 10)}},
		"scaled up in the middle of a rollout":             {Deployment: deploymentOf("new", 20), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "old", 1, 8, 8), "10", "13"), sized(setOf(ten, "new", 2, 5, 5), "10", "13")}},
		"scaled down in the middle of a rollout":           {Deployment: deploymentOf("new", 4), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "old", 1, 8, 8), "10", "13"), sized(setOf(ten, "new", 2, 5, 5), "10", "13")}},
		"scaled to none in the middle of a rollout":        {Deployment: deploymentOf("new", 0), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "old", 1, 8, 8), "10", "13"), sized(setOf(ten, "new", 2, 5, 5), "10", "13")}},
		"scaled: sets of one size, the newer first":        {Deployment: deploymentOf("new", 11), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "old", 1, 5, 5), "10", "13"), sized(setOf(ten, "new", 2, 5, 5), "10", "13")}},
		"scaled: nobody says from where":                   {Deployment: deploymentOf("new", 20, func(d *appsv1.Deployment) { d.Status.Replicas = 13 }), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "old", 1, 8, 8), "10", "x"), sized(setOf(ten, "new", 2, 5, 5), "10", "0")}},
		"scaled with one set":                              {Deployment: deploymentOf("new", 3), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "new", 1, 10, 10), "10", "13")}},
		"a set that was sized by somebody else":            {Deployment: deploymentOf("new", 3), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "new", 1, 3, 3), "10", "13")}},
		"paused: no step":                                  {Deployment: deploymentOf("new", 10, pauses), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "old", 1, 10, 10), "10", "13")}},
		"paused: scaled":                                   {Deployment: deploymentOf("new", 12, pauses, progressing(corev1.ConditionUnknown, reasonPaused, time.Minute)), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "old", 1, 10, 10), "10", "13")}},
		"paused: without pods the latest set is scaled":    {Deployment: deploymentOf("new", 2, pauses), Sets: []*appsv1.ReplicaSet{setOf(ten, "old", 1, 0, 0), setOf(ten, "younger", 2, 0, 0)}},
		"paused while late stays late":                     {Deployment: deploymentOf("new", 10, pauses, progressing(corev1.ConditionFalse, reasonLate, time.Minute)), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 10, 0)}},
		"resumed":                                          {Deployment: deploymentOf("new", 10, progressing(corev1.ConditionUnknown, reasonPaused, time.Hour)), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 10, 10)}},
		"late":                                             {Deployment: since(settle(ten, setOf(ten, "new", 1, 10, 4)), 601*time.Second), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 10, 4)}},
		"not late yet":                                     {Deployment: since(settle(ten, setOf(ten, "new", 1, 10, 4)), 500*time.Second), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 10, 4)}},
		"progress after being late":                        {Deployment: deploymentOf("new", 10, progressing(corev1.ConditionFalse, reasonLate, time.Hour)), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 10, 4)}},
		"no deadline":                                      {Deployment: deploymentOf("new", 10, progressing(corev1.ConditionTrue, reasonUpdated, time.Hour), func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil }), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 10, 4)}},
		"pods cannot be made":                              {Deployment: ten, Sets: []*appsv1.ReplicaSet{failed}},
		"recreate: first the old ones go":                  {Deployment: deploymentOf("new", 3, recreates), Sets: []*appsv1.ReplicaSet{setOf(ten, "old", 1, 3, 3)}},
		"recreate: scaled and another template":            {Deployment: deploymentOf("new", 5, recreates), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "old", 1, 3, 3), "3", "3")}},
		"recreate: old pods still run":                     {Deployment: deploymentOf("new", 3, recreates), Sets: []*appsv1.ReplicaSet{empty}, Pods: []*corev1.Pod{running(empty, corev1.PodRunning)}},
		"recreate: old pods have ended":                    {Deployment: deploymentOf("new", 3, recreates), Sets: []*appsv1.ReplicaSet{empty}, Pods: []*corev1.Pod{running(empty, corev1.PodSucceeded)}},
		"roll back to the last":                            {Deployment: deploymentOf("new", 3, annotated(appsv1.DeprecatedRollbackTo, "0"), annotated("kubernetes.io/change-cause", "new")), Sets: []*appsv1.ReplicaSet{causedBy(setOf(ten, "old", 1, 0, 0), "old"), setOf(ten, "new", 2, 3, 3)}},
		"roll back to a revision that is not there":        {Deployment: deploymentOf("new", 3, annotated(appsv1.DeprecatedRollbackTo, "7")), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 2, 3, 3)}},
		"roll back without a last one":                     {Deployment: deploymentOf("new", 3, annotated(appsv1.DeprecatedRollbackTo, "0")), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 1, 3, 3)}},
		"roll back to what there is":                       {Deployment: deploymentOf("new", 3, annotated(appsv1.DeprecatedRollbackTo, "2")), Sets: []*appsv1.ReplicaSet{setOf(ten, "new", 2, 3, 3)}},
		"history beyond its limit":                         {Deployment: settle(settle(done(1, limited(1)), setOf(ten, "new", 9, 1, 1)), setOf(ten, "new", 9, 1, 1)), Sets: append(slices.Clone(history), sized(setOf(ten, "new", 9, 1, 1), "1", "2"))},
		"history waits for the rollout":                    {Deployment: deploymentOf("new", 1, limited(1)), Sets: append(slices.Clone(history), sized(setOf(ten, "new", 9, 1, 0), "1", "2"))},
		"selects everything":                               {Deployment: deploymentOf("new", 1, func(d *appsv1.Deployment) { d.Spec.Selector = &metav1.LabelSelector{} })},
		"on its way out":                                   {Deployment: deploymentOf("new", 3, func(d *appsv1.Deployment) { d.DeletionTimestamp = new(metav1.NewTime(began)) }), Sets: []*appsv1.ReplicaSet{setOf(ten, "old", 1, 10, 10)}},
		"a name that is too long for the hash":             {Deployment: deploymentOf("new", 1, func(d *appsv1.Deployment) { d.Name = strings.Repeat("long", 62) })},
		"another name for the same template":               {Deployment: deploymentOf("new", 1, func(d *appsv1.Deployment) { d.Status.CollisionCount = new(int32(1)) })},
		"percentages that round to nothing let one pod go": {Deployment: deploymentOf("new", 2, fenced("0", "10%")), Sets: []*appsv1.ReplicaSet{sized(setOf(ten, "old", 1, 2, 2), "2", "2")}},
	}
	plantest.Cases(t, "plan.txt", cases, func(seen Observed) string {
		seen.Now = began
		return describe(plan(seen))
	})
}

func pauses(d *appsv1.Deployment) { d.Spec.Paused = true }

func limited(n int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = &n }
}

func fenced(surge, unavailable string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		s, u := intstr.Parse(surge), intstr.Parse(unavailable)
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}
	}
}

func revised(set *appsv1.ReplicaSet, revision string) *appsv1.ReplicaSet {
	set.Annotations[revisionAnnotation] = revision
	return sized(set, "1", "2")
}

func renamed(set *appsv1.ReplicaSet, name string) *appsv1.ReplicaSet {
	set.Name, set.UID = name, types.UID(name)
	return set
}

func causedBy(set *appsv1.ReplicaSet, cause string) *appsv1.ReplicaSet {
	set.Annotations["kubernetes.io/change-cause"] = cause
	return set
}

// describe writes a plan down for people.
func describe(p Plan) string {
	var b strings.Builder
	if set := p.Create; set != nil {
		fmt.Fprintf(&b, "create %s\n", describeSet(set))
	}
	for _, c := range p.Update {
		fmt.Fprintf(&b, "update %s\n", describeSet(c.Set))
		if c.Event != nil {
			fmt.Fprintf(&b, "  tell %s %s: %s\n", c.Event.Type, c.Event.Reason, c.Event.Message)
		}
	}
	for _, set := range p.Delete {
		fmt.Fprintf(&b, "delete %s\n", set.Name)
	}
	if p.Spec != nil {
		fmt.Fprintf(&b, "write image=%s %v\n", p.Spec.Spec.Template.Spec.Containers[0].Image, p.Spec.Annotations)
	}
	if p.Status != nil {
		s := p.Status.Status
		fmt.Fprintf(&b, "status revision=%s replicas=%d updated=%d ready=%d available=%d unavailable=%d observed=%d\n",
			p.Status.Annotations[revisionAnnotation], s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas, s.ObservedGeneration)
		for _, c := range s.Conditions {
			fmt.Fprintf(&b, "  %s=%s %s since %s, last %s: %s\n", c.Type, c.Status, c.Reason, ago(c.LastTransitionTime), ago(c.LastUpdateTime), c.Message)
		}
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

func ago(at metav1.Time) string {
	if at.IsZero() {
		return "ever"
	}
	return at.Sub(began).String()
}

func describeSet(set *appsv1.ReplicaSet) string {
	return fmt.Sprintf("%s replicas=%d image=%s %v", set.Name, replicas(set), set.Spec.Template.Spec.Containers[0].Image, set.Annotations)
}

// A rollout, whatever comes in between, never has more pods than the surge
// allows, keeps as many available as it must, and ends.
func TestRolloutsStayInTheirFence(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { simulate(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

// world plays the parts of the API, the sets' controller and the nodes.
type world struct {
	random *rand.Rand
	d      *appsv1.Deployment
	sets   []*appsv1.ReplicaSet
	now    time.Time
}

func simulate(t *testing.T, random *rand.Rand) {
	w := &world{random: random, now: began, d: deploymentOf("v0", 1+random.Int32N(20), func(d *appsv1.Deployment) {
		s, u := intstr.FromInt32(random.Int32N(4)), intstr.FromInt32(random.Int32N(4))
		if s.IntVal+u.IntVal == 0 {
			s.IntVal = 1
		}
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}
	})}
	w.run(t, 2000, false)
	for i := range 3 {
		w.d.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("v%d", i%3+1)
		w.d.Generation++
		w.run(t, random.IntN(40), true) // the next one may come in the middle
	}
	if w.run(t, 4000, true); !complete(w.d, &w.d.Status) {
		t.Fatalf("the rollout did not end: %+v", w.d.Status)
	}
	for _, set := range w.sets {
		if current := set.Spec.Template.Spec.Containers[0].Image == w.d.Spec.Template.Spec.Containers[0].Image; current != (replicas(set) > 0) {
			t.Errorf("%s has %d replicas", set.Name, replicas(set))
		}
	}
}

// run lets things happen until the rollout is complete.
func (w *world) run(t *testing.T, steps int, guarded bool) {
	t.Helper()
	for range steps {
		w.now = w.now.Add(time.Second)
		if w.random.IntN(3) == 0 {
			w.reconcile()
		} else if len(w.sets) > 0 {
			w.turn(w.sets[w.random.IntN(len(w.sets))])
		}
		s := &scope{Observed: Observed{Deployment: w.d}, deployment: w.d}
		if have := sum(w.sets, replicas); have > s.wanted()+s.surge() {
			t.Fatalf("%d pods are asked for, of at most %d", have, s.wanted()+s.surge())
		}
		if have := sum(w.sets, available); guarded && have < s.least() {
			t.Fatalf("%d pods are available, of at least %d", have, s.least())
		}
		if complete(w.d, &w.d.Status) {
			return
		}
	}
}

func (w *world) reconcile() {
	p := plan(Observed{Deployment: w.d, Sets: w.sets, Now: w.now})
	if p.Create != nil {
		p.Create.UID, p.Create.Generation, p.Create.CreationTimestamp = types.UID(p.Create.Name), 1, metav1.NewTime(w.now)
		w.sets = append(w.sets, p.Create)
	}
	for _, c := range p.Update {
		i := slices.IndexFunc(w.sets, func(s *appsv1.ReplicaSet) bool { return s.Name == c.Set.Name })
		w.sets[i] = c.Set
	}
	for _, gone := range p.Delete {
		w.sets = slices.DeleteFunc(w.sets, func(s *appsv1.ReplicaSet) bool { return s.Name == gone.Name })
	}
	if p.Status != nil {
		w.d = p.Status
	}
}

// turn lets the set's controller act, or one of its pods become available.
func (w *world) turn(set *appsv1.ReplicaSet) {
	st := &set.Status
	switch {
	case st.Replicas != replicas(set):
		st.Replicas = replicas(set)
		st.AvailableReplicas = min(st.AvailableReplicas, st.Replicas)
	case st.AvailableReplicas < st.Replicas:
		st.AvailableReplicas++
	}
	st.ReadyReplicas, st.ObservedGeneration = st.AvailableReplicas, set.Generation
}
