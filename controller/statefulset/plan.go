package statefulset

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/pods"
	"setpoint.dev/setpoint/controller/revision"
)

var kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// Observed is what a set is decided by.
type Observed struct {
	Set *appsv1.StatefulSet
	// Pods are those that the set controls, Claims those of its pods that
	// exist, by name, and Revisions those that it controls.
	Pods      []*corev1.Pod
	Claims    map[string]*corev1.PersistentVolumeClaim
	Revisions []*appsv1.ControllerRevision
	Now       time.Time
}

// Plan is what to write, in this order. Everything in it is a copy, but for what
// is deleted.
type Plan struct {
	Revision revision.Choice
	Steps    []Step
	Trim     []*appsv1.ControllerRevision
	// Status is the set with another status.
	Status *appsv1.StatefulSet
	// Again is when a pod that is ready will count as available; 0 means that
	// only a change can tell something new.
	Again time.Duration
}

// Step is what to do for one pod, in this order. Steps of a set that keeps an
// order come one at a time.
type Step struct {
	Claims []*corev1.PersistentVolumeClaim // to create
	Owned  []*corev1.PersistentVolumeClaim // with other owners
	Create *corev1.Pod
	Update *corev1.Pod
	Delete *corev1.Pod
}

// scope is one decision on its way.
type scope struct {
	Observed
	set             *appsv1.StatefulSet // a copy that collects the status
	ordered         bool
	current, update string // names of revisions
	templates       map[string]*corev1.PodTemplateSpec
	members         []*corev1.Pod // by ordinal; those that are missing as they will be
	surplus         []*corev1.Pod // beyond the last ordinal, the highest first
	plan            Plan
}

// plan says what to write so that the set has its pods, each with its own name
// and storage, of the revision that it should be of.
//
// An ordered set takes one step at a time: the next pod is made when those
// before it are available, and the last goes when all others are.
func plan(seen Observed) (Plan, error) {
	s := &scope{Observed: seen, set: seen.Set.DeepCopy(), ordered: seen.Set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement}
	if err := s.revise(); err != nil {
		return Plan{}, err
	}
	s.sort()
	s.count()
	if s.set.DeletionTimestamp == nil && s.fill() && s.shrink() {
		s.roll()
	}
	return s.finish(), nil
}

// sort puts each pod in its place, and makes up those that are missing.
func (s *scope) sort() {
	s.members = make([]*corev1.Pod, s.wanted())
	for _, p := range s.Pods {
		switch i := ordinal(p); {
		case i >= s.first() && i < s.first()+s.wanted():
			s.members[i-s.first()] = p
		case i >= 0:
			s.surplus = append(s.surplus, p)
		}
	}
	for i, p := range s.members {
		if p == nil {
			s.members[i] = s.pod(s.first() + i)
		}
	}
	slices.SortFunc(s.surplus, func(a, b *corev1.Pod) int { return cmp.Compare(ordinal(b), ordinal(a)) })
}

// fill makes the pods that are missing and mends those that have lost what is
// theirs. It says whether nothing stands in the way of going on.
func (s *scope) fill() bool {
	for _, p := range s.members {
		if !s.tend(p) && s.ordered {
			return false
		}
	}
	return true
}

// tend takes care of one member. It says whether the next can be looked at.
func (s *scope) tend(p *corev1.Pod) bool {
	switch {
	case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
		if p.DeletionTimestamp == nil {
			s.do(Step{Delete: p})
		}
		return false
	case !exists(p):
		if s.claimsAreStale(p) {
			return false
		}
		s.do(Step{Claims: s.missingClaims(p), Owned: s.claimsToOwn(p), Create: p})
		return false
	}
	step := Step{Owned: s.claimsToOwn(p)}
	if p.Status.Phase == corev1.PodPending {
		step.Claims = s.missingClaims(p)
	}
	if s.ordered && (p.DeletionTimestamp != nil || !s.available(p)) {
		if len(step.Claims) > 0 {
			s.do(step)
		}
		return false
	}
	if mended := s.mend(p); mended != nil {
		step.Update, step.Claims = mended, s.missingClaims(mended)
	}
	if step.Update != nil || len(step.Claims)+len(step.Owned) > 0 {
		s.do(step)
	}
	return true
}

// shrink removes pods beyond the last ordinal. It says whether there are none.
func (s *scope) shrink() bool {
	for _, p := range s.surplus {
		if owned := s.claimsToOwn(p); len(owned) > 0 {
			s.do(Step{Owned: owned})
		}
	}
	for _, p := range s.surplus {
		if s.ordered && p.DeletionTimestamp != nil {
			return false
		}
		if p.DeletionTimestamp != nil {
			continue
		}
		// One that is not available may go first only if it is what holds up
		// the others.
		if s.ordered && !s.available(p) && p != s.firstUnavailable() {
			return false
		}
		s.do(Step{Delete: p})
		if s.ordered {
			return false
		}
	}
	return len(s.surplus) == 0 || !s.ordered
}

// firstUnavailable is the lowest pod that is not available.
func (s *scope) firstUnavailable() *corev1.Pod {
	all := slices.Clone(s.members)
	for _, p := range slices.Backward(s.surplus) {
		all = append(all, p)
	}
	for _, p := range all {
		if p.DeletionTimestamp != nil || !s.available(p) {
			return p
		}
	}
	return nil
}

// roll replaces a pod of another revision, the highest first and one at a time.
func (s *scope) roll() {
	if s.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return
	}
	for i, p := range slices.Backward(s.members) {
		if i < s.partition() {
			return
		}
		if p.Labels[appsv1.StatefulSetRevisionLabel] != s.update && p.DeletionTimestamp == nil {
			if exists(p) {
				s.do(Step{Delete: p})
				s.set.Status.CurrentReplicas--
			}
			return
		}
		if p.DeletionTimestamp != nil || !s.available(p) {
			return
		}
	}
}

// partition is the ordinal, counted from the first, from which on pods are of
// the newest revision.
func (s *scope) partition() int {
	if r := s.set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		return int(*r.Partition)
	}
	return 0
}

func (s *scope) do(step Step) { s.plan.Steps = append(s.plan.Steps, step) }

// finish puts the plan together.
func (s *scope) finish() Plan {
	st := &s.set.Status
	if n := int32(s.wanted()); s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType && st.UpdatedReplicas == n && st.ReadyReplicas == n && st.Replicas == n {
		st.CurrentReplicas, st.CurrentRevision = st.UpdatedReplicas, st.UpdateRevision
	}
	if !apiequality.Semantic.DeepEqual(s.Set.Status, s.set.Status) {
		s.plan.Status = s.set
	}
	for _, p := range s.Pods {
		if left := pods.AvailableIn(p, s.set.Spec.MinReadySeconds, s.Now); runs(p) && left > 0 && (s.plan.Again == 0 || left < s.plan.Again) {
			s.plan.Again = left
		}
	}
	return s.plan
}

// count says in the status how many pods there are.
func (s *scope) count() {
	before := s.set.Status
	st := appsv1.StatefulSetStatus{
		ObservedGeneration: s.set.Generation, CurrentRevision: s.current, UpdateRevision: s.update,
		CollisionCount: before.CollisionCount, Conditions: before.Conditions,
	}
	if st.CollisionCount == nil {
		st.CollisionCount = new(int32)
	}
	for _, p := range s.Pods {
		if ordinal(p) < 0 {
			continue
		}
		st.Replicas++
		if runs(p) {
			st.ReadyReplicas++
			if s.available(p) {
				st.AvailableReplicas++
			}
		}
		if p.DeletionTimestamp == nil {
			if r := p.Labels[appsv1.StatefulSetRevisionLabel]; r == s.current {
				st.CurrentReplicas++
			}
			if r := p.Labels[appsv1.StatefulSetRevisionLabel]; r == s.update {
				st.UpdatedReplicas++
			}
		}
	}
	s.set.Status = st
}

// exists says that the pod is one that there is, not one that the plan makes.
func exists(p *corev1.Pod) bool { return p.UID != "" }

func runs(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && pods.Ready(p) }

func (s *scope) available(p *corev1.Pod) bool {
	return runs(p) && pods.Available(p, s.set.Spec.MinReadySeconds, s.Now)
}

func (s *scope) wanted() int {
	if s.set.Spec.Replicas == nil {
		return 1
	}
	return int(*s.set.Spec.Replicas)
}

// first is the lowest ordinal.
func (s *scope) first() int {
	if s.set.Spec.Ordinals == nil {
		return 0
	}
	return int(s.set.Spec.Ordinals.Start)
}

// ordinal is the number at the end of the pod's name, -1 when there is none.
func ordinal(p *corev1.Pod) int {
	i := strings.LastIndexByte(p.Name, '-')
	n, err := strconv.ParseUint(p.Name[i+1:], 10, 31)
	if i < 0 || err != nil {
		return -1
	}
	return int(n)
}

// revise finds the revisions that the set is between.
func (s *scope) revise() error {
	all := slices.Clone(s.Revisions)
	revision.Sort(all)
	owner := revision.Owner{Object: s.set, Kind: kind, Template: &s.set.Spec.Template, Same: s.means}
	if n := s.set.Status.CollisionCount; n != nil {
		owner.Collisions = *n
	}
	chosen, err := revision.Choose(owner, all)
	if err != nil {
		return err
	}
	s.plan.Revision = chosen
	s.update, s.current = chosen.Name, chosen.Name
	s.templates = map[string]*corev1.PodTemplateSpec{s.update: &s.set.Spec.Template}
	live := map[string]bool{s.update: true}
	for _, r := range all {
		if r.Name != s.set.Status.CurrentRevision {
			continue
		}
		s.current, live[r.Name] = r.Name, true
		if r.Name != s.update {
			if s.templates[r.Name], err = revision.Template(r); err != nil {
				return err
			}
		}
	}
	for _, p := range s.Pods {
		live[p.Labels[appsv1.StatefulSetRevisionLabel]] = true
	}
	s.plan.Trim = revision.Surplus(all, s.set.Spec.RevisionHistoryLimit, live)
	return nil
}

// pod is the pod of that ordinal as it will be made: of the current revision
// below the partition, or while it is among those not reached yet.
func (s *scope) pod(i int) *corev1.Pod {
	rolling := s.set.Spec.UpdateStrategy.RollingUpdate
	of := s.update
	switch {
	case rolling != nil && i < s.first()+s.partition():
		of = s.current
	case rolling == nil && s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType && i < s.first()+int(s.Set.Status.CurrentReplicas):
		of = s.current
	}
	p := pods.FromTemplate(s.templates[of], s.set, metav1.NewControllerRef(s.set, kind))
	p.GenerateName, p.Name = "", s.set.Name+"-"+strconv.Itoa(i)
	p.Spec.Hostname, p.Spec.Subdomain = p.Name, s.set.Spec.ServiceName
	s.identify(p)
	p.Labels[appsv1.StatefulSetRevisionLabel] = of
	s.attach(p)
	return p
}

// identify writes on the pod which one it is.
func (s *scope) identify(p *corev1.Pod) {
	p.Labels = maps.Clone(p.Labels)
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[appsv1.StatefulSetPodNameLabel] = p.Name
	p.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal(p))
}

// mend is the pod with the identity and storage that it has lost, nil when it
// has not.
func (s *scope) mend(p *corev1.Pod) *corev1.Pod {
	if p.Labels[appsv1.StatefulSetPodNameLabel] == p.Name && s.attached(p) {
		return nil
	}
	p = p.DeepCopy()
	s.identify(p)
	s.attach(p)
	return p
}
