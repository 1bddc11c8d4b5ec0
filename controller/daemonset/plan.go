package daemonset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"

	"setpoint.dev/setpoint/controller/pods"
	"setpoint.dev/setpoint/controller/revision"
	"setpoint.dev/setpoint/controller/template"
)

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// maxPods bounds how many pods one plan makes, and how many it removes.
const maxPods = 250

// Observed is what a set is decided by.
type Observed struct {
	Set   *appsv1.DaemonSet
	Nodes []*corev1.Node
	// Pods and Revisions are those that the set controls.
	Pods      []*corev1.Pod
	Revisions []*appsv1.ControllerRevision
	// Wait is for how long failed pods of a node stay, because others there
	// have failed before.
	Wait map[string]time.Duration
	Now  time.Time
}

// Plan is what to write, in this order. Everything in it is a copy, but for what
// is deleted.
type Plan struct {
	Revision revision.Choice
	Create   []*corev1.Pod
	Delete   []*corev1.Pod
	Trim     []*appsv1.ControllerRevision
	// Failed are the nodes on which failed pods are deleted.
	Failed []string
	// Status is the set with another status.
	Status *appsv1.DaemonSet
	Events []Event
	// Again is when to look again though nothing has changed; 0 means never.
	Again time.Duration
}

// Event is told about the set.
type Event struct {
	Type, Reason, Message string
}

// scope is one decision on its way.
type scope struct {
	Observed
	set    *appsv1.DaemonSet // a copy that collects the status
	hash   string            // of the set's template
	places map[string]*place
	wanted int // nodes that should have a pod
	plan   Plan
}

// place is a node, or what is left of one, with the set's pods for it.
type place struct {
	name  string
	node  *corev1.Node // nil when there is none of that name
	pods  []*corev1.Pod
	runs  bool // it should have a pod
	stays bool // it may keep the pod that it has
}

// plan says what to write so that each node that fits has a pod of the set's
// template: missing ones are made, others are replaced as the strategy allows.
func plan(seen Observed) (Plan, error) {
	s := &scope{Observed: seen, set: seen.Set.DeepCopy()}
	if sel := seen.Set.Spec.Selector; sel != nil && len(sel.MatchLabels)+len(sel.MatchExpressions) == 0 {
		s.tell(corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return s.plan, nil
	}
	if seen.Set.DeletionTimestamp != nil {
		return s.plan, nil // its pods and revisions may be gone in any order
	}
	if err := s.revise(); err != nil {
		return Plan{}, err
	}
	s.sort()
	s.manage()
	// A step of a rollout is for a set that is otherwise as it should be.
	if len(s.plan.Create)+len(s.plan.Delete) == 0 && s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		s.roll()
	}
	s.plan.Create = s.plan.Create[:min(len(s.plan.Create), maxPods)]
	s.plan.Delete = s.plan.Delete[:min(len(s.plan.Delete), maxPods)]
	s.count()
	return s.plan, nil
}

// revise finds the revision of the set's template.
func (s *scope) revise() error {
	all := slices.Clone(s.Revisions)
	revision.Sort(all)
	chosen, err := revision.Choose(revision.Owner{
		Object: s.set, Kind: kind, Template: &s.set.Spec.Template,
		Hash: func() string { return template.Hash(&s.set.Spec.Template, s.set.Status.CollisionCount) },
	}, all)
	if err != nil {
		return err
	}
	s.plan.Revision = chosen
	s.hash = chosen.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
	live := map[string]bool{chosen.Name: true}
	for _, r := range all {
		hash := r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
		if slices.ContainsFunc(s.Pods, func(p *corev1.Pod) bool { return p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == hash }) {
			live[r.Name] = true
		}
	}
	s.plan.Trim = revision.Surplus(all, s.set.Spec.RevisionHistoryLimit, live)
	return nil
}

// sort puts each pod to its node.
func (s *scope) sort() {
	s.places = map[string]*place{}
	for _, n := range s.Nodes {
		runs, stays := s.fits(n)
		s.places[n.Name] = &place{name: n.Name, node: n, runs: runs, stays: stays}
		if runs {
			s.wanted++
		}
	}
	for _, p := range s.Pods {
		name := nodeOf(p)
		if name == "" {
			continue
		}
		at := s.places[name]
		if at == nil {
			at = &place{name: name, stays: true}
			s.places[name] = at
		}
		at.pods = append(at.pods, p)
	}
	for _, at := range s.places {
		slices.SortFunc(at.pods, oldestFirst)
	}
}

// inOrder are the places by name.
func (s *scope) inOrder() []*place {
	return slices.SortedFunc(maps.Values(s.places), func(a, b *place) int { return strings.Compare(a.name, b.name) })
}

// oldestFirst orders pods of a node: those with a node first, then by age.
func oldestFirst(a, b *corev1.Pod) int {
	if (a.Spec.NodeName == "") != (b.Spec.NodeName == "") {
		if a.Spec.NodeName != "" {
			return -1
		}
		return 1
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// manage makes pods where there are none, and removes those that are too many,
// have ended, or are not wanted there.
func (s *scope) manage() {
	for _, at := range s.inOrder() {
		switch {
		case at.node == nil:
			// One that waits for a node that is gone would wait for ever.
			for _, p := range at.pods {
				if p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
					s.remove(p)
				}
			}
		case at.runs && len(at.pods) == 0:
			s.make(at)
		case at.stays:
			s.tidy(at)
		default:
			for _, p := range at.pods {
				if p.DeletionTimestamp == nil {
					s.remove(p)
				}
			}
		}
	}
}

// tidy leaves one pod on the node, or two while one of them takes over.
func (s *scope) tidy(at *place) {
	var running []*corev1.Pod
	for _, p := range at.pods {
		switch {
		case p.DeletionTimestamp != nil:
		case p.Status.Phase == corev1.PodFailed:
			if wait := s.Wait[at.name]; wait > 0 {
				s.again(wait)
				continue
			}
			s.tell(corev1.EventTypeWarning, "FailedDaemonPod", fmt.Sprintf("Found failed daemon pod %s/%s on node %s, will try to kill it", p.Namespace, p.Name, at.name))
			s.plan.Failed = append(s.plan.Failed, at.name)
			s.remove(p)
		case p.Status.Phase == corev1.PodSucceeded:
			s.tell(corev1.EventTypeNormal, "SucceededDaemonPod", fmt.Sprintf("Found succeeded daemon pod %s/%s on node %s, will try to delete it", p.Namespace, p.Name, at.name))
			s.remove(p)
		default:
			running = append(running, p)
		}
	}
	switch {
	case s.surge(1) == 0:
		for _, p := range running[min(1, len(running)):] {
			s.remove(p)
		}
	case len(running) == 0 && at.runs:
		s.make(at)
	case len(running) > 1:
		s.takeOver(running)
	}
}

// takeOver leaves the oldest pod of the set's template and the oldest other, and
// the other only until it is no longer needed.
func (s *scope) takeOver(running []*corev1.Pod) {
	var updated, old *corev1.Pod
	for _, p := range running {
		switch {
		case s.updated(p) && updated == nil:
			updated = p
		case !s.updated(p) && old == nil:
			old = p
		default:
			s.remove(p)
		}
	}
	if updated != nil && old != nil && (!pods.Ready(old) || s.available(updated)) {
		s.remove(old)
	}
}

// roll takes the next step of a rolling update.
func (s *scope) roll() {
	surge, unavailable := s.surge(s.wanted), s.part(func(r *appsv1.RollingUpdateDaemonSet) *intstr.IntOrString { return r.MaxUnavailable }, s.wanted)
	if s.wanted > 0 && surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	if surge == 0 {
		s.replace(unavailable)
	} else {
		s.overlap(surge)
	}
}

// replace removes old pods: all that are not available anyway, and others as
// long as no more are missing than may be.
func (s *scope) replace(unavailable int) {
	missing := 0
	var candidates []*corev1.Pod
	for _, at := range s.inOrder() {
		if !at.runs && len(at.pods) == 0 {
			continue
		}
		updated, old, ok := s.pair(at)
		switch {
		case !ok, (updated == nil) == (old == nil):
			missing++ // somebody sees to it
		case updated != nil:
			if !s.available(updated) {
				missing++
			}
		case !s.available(old):
			missing++
			s.remove(old)
		default:
			candidates = append(candidates, old)
		}
	}
	for _, p := range candidates[:max(0, min(unavailable-missing, len(candidates)))] {
		s.remove(p)
	}
}

// overlap makes new pods beside old ones, where the old is not available and
// elsewhere up to the surge, and removes an old one when the new is available.
// Pods on nodes that should not have one go when there are enough without them.
func (s *scope) overlap(surge int) {
	busy, available := 0, 0
	var candidates []*place
	var unwanted []*corev1.Pod
	for _, at := range s.inOrder() {
		updated, old, ok := s.pair(at)
		if !ok {
			busy++
			continue
		}
		if old != nil && s.available(old) || old == nil && updated != nil && s.available(updated) {
			available++
		}
		switch {
		case old == nil:
		case updated != nil && s.available(updated):
			s.remove(old)
		case updated != nil:
			busy++
		case at.node == nil:
		case !at.runs && s.available(old):
			unwanted = append(unwanted, old)
		case !at.runs:
			s.remove(old)
		case s.available(old):
			candidates = append(candidates, at)
		default:
			s.make(at)
		}
	}
	for _, p := range unwanted[:max(0, min(available-s.wanted, len(unwanted)))] {
		s.remove(p)
	}
	for _, at := range candidates[:max(0, min(surge-busy, len(candidates)))] {
		s.make(at)
	}
}

// pair is the pod of the set's template and the other on a node; not ok when
// there are several of a sort.
func (s *scope) pair(at *place) (updated, old *corev1.Pod, ok bool) {
	for _, p := range at.pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		which := &old
		if s.updated(p) {
			which = &updated
		}
		if *which != nil {
			return nil, nil, false
		}
		*which = p
	}
	return updated, old, true
}

// count says in the status how many nodes have the pod that they should.
func (s *scope) count() {
	before := s.set.Status
	st := appsv1.DaemonSetStatus{
		ObservedGeneration: s.set.Generation, DesiredNumberScheduled: int32(s.wanted), CollisionCount: before.CollisionCount, Conditions: before.Conditions,
	}
	for _, at := range s.places {
		switch {
		case at.node == nil || len(at.pods) == 0:
			continue
		case !at.runs:
			st.NumberMisscheduled++
			continue
		}
		st.CurrentNumberScheduled++
		p := at.pods[0]
		if pods.Ready(p) {
			st.NumberReady++
			if s.available(p) {
				st.NumberAvailable++
			} else {
				s.again(pods.AvailableIn(p, s.set.Spec.MinReadySeconds, s.Now))
			}
		}
		if s.updated(p) {
			st.UpdatedNumberScheduled++
		}
	}
	st.NumberUnavailable = st.DesiredNumberScheduled - st.NumberAvailable
	s.set.Status = st
	if !apiequality.Semantic.DeepEqual(before, st) {
		s.plan.Status = s.set
	}
}

func (s *scope) remove(p *corev1.Pod) {
	if !slices.Contains(s.plan.Delete, p) {
		s.plan.Delete = append(s.plan.Delete, p)
	}
}

func (s *scope) tell(of, reason, message string) {
	s.plan.Events = append(s.plan.Events, Event{of, reason, message})
}

func (s *scope) again(after time.Duration) {
	if after > 0 && (s.plan.Again == 0 || after < s.plan.Again) {
		s.plan.Again = after
	}
}

// surge is how many nodes, of so many, may have two pods for a while.
func (s *scope) surge(of int) int {
	return s.part(func(r *appsv1.RollingUpdateDaemonSet) *intstr.IntOrString { return r.MaxSurge }, of)
}

// part is a number or percentage of the strategy; the API has checked that it is
// one.
func (s *scope) part(which func(*appsv1.RollingUpdateDaemonSet) *intstr.IntOrString, of int) int {
	rolling := s.set.Spec.UpdateStrategy.RollingUpdate
	if s.set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || rolling == nil || which(rolling) == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(which(rolling), of, true)
	if err != nil {
		return 0
	}
	return n
}

// updated says that the pod is of the set's template. Compat: sets from before
// revisions know it by a generation.
func (s *scope) updated(p *corev1.Pod) bool {
	generation := s.set.Annotations[appsv1.DeprecatedTemplateGeneration]
	return p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == s.hash || generation != "" && p.Labels[generationLabel] == generation
}

func (s *scope) available(p *corev1.Pod) bool {
	return pods.Available(p, s.set.Spec.MinReadySeconds, s.Now)
}
