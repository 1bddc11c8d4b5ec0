package deployment

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Observed is what a deployment is decided by.
type Observed struct {
	Deployment *appsv1.Deployment
	// Sets are the replica sets that the deployment controls.
	Sets []*appsv1.ReplicaSet
	// Pods are those of the sets. Only a deployment that recreates asks for them.
	Pods []*corev1.Pod
	Now  time.Time
}

// Plan is what to write, in this order. Everything in it is a copy.
type Plan struct {
	// Create is the set of the deployment's template, where there is none yet.
	Create *appsv1.ReplicaSet
	Update []Change
	Delete []*appsv1.ReplicaSet
	// Spec is the deployment with an older template, or without the wish for one.
	Spec *appsv1.Deployment
	// Status is the deployment with another status or revision.
	Status *appsv1.Deployment
	// Events tell what Create, Spec or nothing at all has done; those of a
	// change are with it.
	Events []Event
	// Again is when to look whether the rollout is stuck; 0 means that only a
	// change can tell something new.
	Again time.Duration
}

// Change is a replica set as it shall be, and what to tell about it.
type Change struct {
	Set   *appsv1.ReplicaSet
	Event *Event // nil when its size stays
}

// Event is told about the deployment.
type Event struct {
	Type, Reason, Message string
}

// scope is one decision on its way: the deployment as it will be written, and
// its sets as they will be once the plan is carried out.
type scope struct {
	Observed
	deployment *appsv1.Deployment   // a copy that collects status and revision
	current    *appsv1.ReplicaSet   // the set of the deployment's template, nil when there is none
	old        []*appsv1.ReplicaSet // all others, oldest first
	changed    map[string]Change    // by name
	plan       Plan
}

// plan says what to write so that the deployment's pods follow its template
// and number, never more than its surge above nor its unavailability below.
//
// One plan takes one step: it scales up, or down, or sweeps up, and says how
// far things are. What the step leads to is observed before the next.
func plan(seen Observed) Plan {
	s := &scope{Observed: seen, deployment: seen.Deployment.DeepCopy(), changed: map[string]Change{}}
	switch {
	case selectsAll(seen.Deployment):
		s.plan.Events = append(s.plan.Events, Event{corev1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required."})
		s.deployment.Status.ObservedGeneration = max(s.deployment.Generation, s.deployment.Status.ObservedGeneration)
		return s.finish()
	case seen.Deployment.DeletionTimestamp != nil:
		s.sort()
		s.count()
		return s.finish()
	}
	s.sort()
	s.notePause()
	s.reviseCurrent()
	switch {
	case s.deployment.Spec.Paused:
		s.resize()
		if _, asked := rollbackTo(s.deployment); !asked {
			s.sweep()
		}
		s.count()
	case s.rollBack():
	case s.resized():
		s.resize()
		s.count()
	case s.deployment.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		s.recreate()
		s.progress()
	default:
		s.roll()
		s.progress()
	}
	return s.finish()
}

func selectsAll(d *appsv1.Deployment) bool {
	return d.Spec.Selector != nil && len(d.Spec.Selector.MatchLabels) == 0 && len(d.Spec.Selector.MatchExpressions) == 0
}

// sort tells the set of the deployment's template from the others.
func (s *scope) sort() {
	sets := slices.SortedFunc(slices.Values(s.Sets), older)
	for _, set := range sets {
		if s.current == nil && sameTemplate(&s.deployment.Spec.Template, &set.Spec.Template) {
			s.current = set // Compat: the oldest, where there are several
			continue
		}
		s.old = append(s.old, set)
	}
}

// older orders sets by age, and those of one second by name.
func older(a, b *appsv1.ReplicaSet) int {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// all are the sets that there are or will be.
func (s *scope) all() []*appsv1.ReplicaSet {
	if s.current == nil {
		return s.old
	}
	return append(slices.Clone(s.old), s.current)
}

// edit is a copy of the set that the plan will write. It takes the set's place.
func (s *scope) edit(set *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	if set == s.plan.Create {
		return set
	}
	if c, ok := s.changed[set.Name]; ok {
		return c.Set
	}
	edited := set.DeepCopy()
	s.changed[set.Name] = Change{Set: edited}
	if s.current == set {
		s.current = edited
	}
	if i := slices.Index(s.old, set); i >= 0 {
		s.old = slices.Clone(s.old)
		s.old[i] = edited
	}
	return edited
}

// scale gives the set another size, and says so.
func (s *scope) scale(set *appsv1.ReplicaSet, size int32) {
	if replicas(set) == size {
		return
	}
	set = s.edit(set)
	set.Spec.Replicas = &size
	s.noteSize(set)
	i := slices.IndexFunc(s.Sets, func(have *appsv1.ReplicaSet) bool { return have.Name == set.Name })
	if i < 0 {
		return // it is to be created, which tells its size
	}
	from, direction := replicas(s.Sets[i]), "up"
	if size < from {
		direction = "down"
	}
	s.changed[set.Name] = Change{Set: set, Event: &Event{
		corev1.EventTypeNormal, "ScalingReplicaSet", fmt.Sprintf("Scaled %s replica set %s from %d to %d", direction, set.Name, from, size),
	}}
}

// sweep deletes the oldest sets beyond the history that is kept.
func (s *scope) sweep() {
	limit := s.deployment.Spec.RevisionHistoryLimit
	if limit == nil || *limit == math.MaxInt32 {
		return
	}
	var kept []*appsv1.ReplicaSet
	for _, set := range s.old {
		if set.DeletionTimestamp == nil {
			kept = append(kept, set)
		}
	}
	surplus := len(kept) - int(*limit)
	if surplus <= 0 {
		return
	}
	slices.SortStableFunc(kept, byRevision)
	for _, set := range kept[:surplus] {
		if set.Status.Replicas == 0 && replicas(set) == 0 && set.Generation <= set.Status.ObservedGeneration {
			s.plan.Delete = append(s.plan.Delete, set)
		}
	}
}

// finish puts together what has been decided.
func (s *scope) finish() Plan {
	for _, set := range s.Sets { // in the order in which they were given
		if c, ok := s.changed[set.Name]; ok && !apiequality.Semantic.DeepEqual(set, c.Set) {
			s.plan.Update = append(s.plan.Update, c)
		}
	}
	if s.plan.Spec == nil && s.differs() {
		s.plan.Status = s.deployment
	}
	if s.plan.Status == nil {
		s.plan.Again = s.stuckAfter()
	}
	return s.plan
}

func (s *scope) differs() bool {
	return !apiequality.Semantic.DeepEqual(s.Deployment.Status, s.deployment.Status) ||
		s.Deployment.Annotations[revisionAnnotation] != s.deployment.Annotations[revisionAnnotation]
}

func replicas(set *appsv1.ReplicaSet) int32 { return valueOf(set.Spec.Replicas) }

// wanted is the number of pods that the deployment asks for.
func (s *scope) wanted() int32 { return valueOf(s.deployment.Spec.Replicas) }

// valueOf is what is written, or the API's default.
func valueOf(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// sum adds up a number of each set.
func sum(sets []*appsv1.ReplicaSet, of func(*appsv1.ReplicaSet) int32) int32 {
	total := int32(0)
	for _, set := range sets {
		total += of(set)
	}
	return total
}

// active are the sets that ask for pods.
func active(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	var some []*appsv1.ReplicaSet
	for _, set := range sets {
		if replicas(set) > 0 {
			some = append(some, set)
		}
	}
	return some
}

// now is the time that conditions are written with: the API keeps seconds.
func (s *scope) now() metav1.Time { return metav1.NewTime(s.Now.Truncate(time.Second)) }
