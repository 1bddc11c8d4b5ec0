package deployment

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// fence is by how many pods a rollout may go above and below the wanted number.
// At least one of the two is not 0.
func (s *scope) fence() (surge, unavailable int32) {
	rolling := s.deployment.Spec.Strategy.RollingUpdate
	if s.deployment.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || rolling == nil {
		return 0, 0
	}
	surge = part(rolling.MaxSurge, s.wanted(), true)
	unavailable = part(rolling.MaxUnavailable, s.wanted(), false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1 // a percentage that was rounded down; surplus pods may not be allowed here
	}
	return surge, min(unavailable, s.wanted())
}

// part is n, or n percent of the whole; the API has checked that it is one.
func part(n *intstr.IntOrString, whole int32, up bool) int32 {
	if n == nil {
		return 0
	}
	value, err := intstr.GetScaledValueFromIntOrPercent(n, int(whole), up)
	if err != nil {
		return 0
	}
	return int32(value)
}

func (s *scope) surge() int32 {
	surge, _ := s.fence()
	return surge
}

// least is how many pods must stay available.
func (s *scope) least() int32 {
	_, unavailable := s.fence()
	return s.wanted() - unavailable
}

// available is how many pods of the set are, of those that it still asks for:
// its status may be from before it was made smaller.
func available(set *appsv1.ReplicaSet) int32 {
	return min(set.Status.AvailableReplicas, replicas(set))
}

// roll takes the next step of a rolling update: pods of the new template up to
// the surge, else fewer of the old ones, down to what must stay available.
func (s *scope) roll() {
	if s.current == nil {
		s.makeCurrent()
		s.scale(s.current, s.grown())
		s.tellCreated()
	} else if size := s.grown(); size != replicas(s.current) {
		s.scale(s.current, size)
		return
	}
	if s.shrink() {
		return
	}
	if complete(s.deployment, &s.Deployment.Status) {
		s.sweep()
	}
}

// grown is the size that the current set can have now. It does not grow while a
// set has a size that nobody has seen yet: it may still be making the pods of the
// size before, which neither its size nor its status tells of.
func (s *scope) grown() int32 {
	have := replicas(s.current)
	if have >= s.wanted() {
		return s.wanted()
	}
	if slices.ContainsFunc(s.all(), unseen) {
		return have
	}
	room := s.wanted() + s.surge() - sum(s.all(), present)
	return have + max(0, min(room, s.wanted()-have))
}

// present is how many pods of the set there may be: those that it asks for, and
// those that it has not let go yet.
func present(set *appsv1.ReplicaSet) int32 { return max(replicas(set), set.Status.Replicas) }

// unseen says that a set that exists has changed since its controller last
// looked at it.
func unseen(set *appsv1.ReplicaSet) bool { return set.Status.ObservedGeneration < set.Generation }

// tellCreated says how large a new set begins.
func (s *scope) tellCreated() {
	if s.plan.Create == nil || replicas(s.plan.Create) == 0 {
		return
	}
	s.plan.Events = append(s.plan.Events, Event{
		corev1.EventTypeNormal, "ScalingReplicaSet", fmt.Sprintf("Scaled up replica set %s from 0 to %d", s.plan.Create.Name, replicas(s.plan.Create)),
	})
}

// shrink takes pods from old sets: first those that are not available, whose
// loss costs nothing, then others as long as enough are available.
func (s *scope) shrink() bool {
	old := active(s.old)
	if len(old) == 0 {
		return false
	}
	missing := replicas(s.current) - available(s.current)
	spare := sum(s.all(), replicas) - s.least() - missing
	if spare <= 0 {
		return false
	}
	taken := int32(0)
	for i, set := range old {
		n := min(spare-taken, replicas(set)-available(set))
		if n > 0 {
			old[i] = s.edit(set)
			s.scale(old[i], replicas(set)-n)
			taken += n
		}
	}
	spare = sum(s.all(), available) - s.least()
	for _, set := range old {
		n := min(spare, replicas(set))
		if n > 0 {
			s.scale(set, replicas(set)-n)
			spare -= n
			taken += n
		}
	}
	return taken > 0
}

// recreate takes the next step of a deployment that has pods of one template
// only: none of the old, and when they have ended, all of the new.
func (s *scope) recreate() {
	if old := active(s.old); len(old) > 0 {
		for _, set := range old {
			s.scale(set, 0)
		}
		return
	}
	if s.oldPodsRun() {
		return
	}
	if s.current == nil {
		s.makeCurrent()
	}
	s.scale(s.current, s.wanted())
	s.tellCreated()
	if complete(s.deployment, &s.Deployment.Status) {
		s.sweep()
	}
}

// oldPodsRun says that pods of another template may still run.
func (s *scope) oldPodsRun() bool {
	if sum(s.old, func(set *appsv1.ReplicaSet) int32 { return set.Status.Replicas }) > 0 {
		return true
	}
	return slices.ContainsFunc(s.Pods, func(p *corev1.Pod) bool {
		if s.current != nil && metav1.IsControlledBy(p, s.current) {
			return false
		}
		return p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded
	})
}

// resized says that the wanted number has changed since the sets were sized. A
// deployment that recreates has first to come down to one set.
func (s *scope) resized() bool {
	if s.deployment.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType && len(active(s.old)) > 0 {
		return false
	}
	return slices.ContainsFunc(active(s.all()), func(set *appsv1.ReplicaSet) bool {
		n, ok := noted(set, desiredAnnotation)
		return ok && n != s.wanted()
	})
}

// resize gives the sets the sizes that a new wanted number asks for, without a
// step of the rollout: in proportion, so that the risk of a new template that
// does not work stays what it was.
func (s *scope) resize() {
	running := active(s.all())
	switch {
	case len(running) == 0:
		if set := s.latest(); set != nil {
			s.scale(set, s.wanted())
		}
	case len(running) == 1:
		set := s.edit(running[0])
		s.noteSize(set)
		s.scale(set, s.wanted())
	case s.saturated():
		for _, set := range active(s.old) {
			s.scale(set, 0)
		}
	case s.deployment.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType:
		s.spread(running)
	}
}

// latest is the current set, or the youngest.
func (s *scope) latest() *appsv1.ReplicaSet {
	if s.current != nil || len(s.old) == 0 {
		return s.current
	}
	return s.old[len(s.old)-1]
}

// saturated says that the current set has all pods that the deployment wants.
func (s *scope) saturated() bool {
	if s.current == nil {
		return false
	}
	n, ok := noted(s.current, desiredAnnotation)
	return ok && n == s.wanted() && replicas(s.current) == s.wanted() && s.current.Status.AvailableReplicas == s.wanted()
}

// spread shares what is to be added or taken among the sets by their sizes, the
// largest first. What rounding leaves over is the largest set's.
func (s *scope) spread(sets []*appsv1.ReplicaSet) {
	allowed := int32(0)
	if s.wanted() > 0 {
		allowed = s.wanted() + s.surge()
	}
	change := allowed - sum(sets, replicas)
	slices.SortFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		if c := cmp.Compare(replicas(b), replicas(a)); c != 0 {
			return c
		}
		if change > 0 {
			return older(b, a)
		}
		return older(a, b)
	})
	sizes := make([]int32, len(sets))
	done := int32(0)
	for i, set := range sets {
		n := s.proportion(set, change-done, change > 0)
		sizes[i] = replicas(set) + n
		done += n
	}
	sizes[0] = max(0, sizes[0]+change-done)
	for i, set := range sets {
		set = s.edit(set)
		s.noteSize(set)
		s.scale(set, sizes[i])
	}
}

// proportion is the set's share of a change, of which some is still left.
func (s *scope) proportion(set *appsv1.ReplicaSet, left int32, up bool) int32 {
	if left == 0 {
		return 0
	}
	if s.wanted() == 0 {
		return max(-replicas(set), left)
	}
	before, ok := noted(set, maxAnnotation)
	if !ok || before == 0 {
		if before = s.Deployment.Status.Replicas; before == 0 {
			return 0
		}
	}
	size := float64(replicas(set)) * float64(s.wanted()+s.surge()) / float64(before)
	share := int32(math.Round(size)) - replicas(set)
	if up {
		return min(share, left)
	}
	return max(share, left)
}
