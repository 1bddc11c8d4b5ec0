package pods

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// LeastFirst orders pods by how little is lost with them. A pod comes before
// another that, in this order,
//
//	is on a node while it is not
//	is further on: pending, unknown, running
//	is ready while it is not
//	costs more to delete, by its annotation
//	shares its node with fewer of the related pods, as rank tells
//	has been ready for longer
//	has restarted less
//	is older
//
// Ages are compared by their magnitude (powers of two), and pods of the same
// magnitude by their UID, so that not always the youngest go.
func LeastFirst(of []*corev1.Pod, rank func(*corev1.Pod) int, now time.Time) {
	slices.SortStableFunc(of, func(a, b *corev1.Pod) int {
		return cmp.Or(
			compareTrue(a.Spec.NodeName != "", b.Spec.NodeName != ""),
			cmp.Compare(phase(a), phase(b)),
			compareTrue(Ready(a), Ready(b)),
			cmp.Compare(deletionCost(a), deletionCost(b)),
			cmp.Compare(rank(b), rank(a)),
			compareReadyAge(a, b, now),
			compareRestarts(a, b),
			compareAge(a, b, a.CreationTimestamp.Time, b.CreationTimestamp.Time, now),
		)
	})
}

func compareTrue(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func phase(p *corev1.Pod) int {
	switch p.Status.Phase {
	case corev1.PodUnknown:
		return 1
	case corev1.PodRunning:
		return 2
	}
	return 0
}

// deletionCost is what the annotation says; one that is not a number says
// nothing.
func deletionCost(p *corev1.Pod) int32 {
	text, has := p.Annotations[corev1.PodDeletionCost]
	if !has || len(text) > 1 && (text[0] == '+' || text[0] == '0') {
		return 0
	}
	cost, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0
	}
	return int32(cost)
}

func compareReadyAge(a, b *corev1.Pod, now time.Time) int {
	if !Ready(a) || !Ready(b) {
		return 0
	}
	return compareAge(a, b, readySince(a), readySince(b), now)
}

// compareAge puts what began later first, and what began at no known time before
// everything.
func compareAge(a, b *corev1.Pod, since, other, now time.Time) int {
	if since.Equal(other) {
		return 0
	}
	if since.IsZero() || other.IsZero() {
		return compareTrue(!since.IsZero(), !other.IsZero())
	}
	return cmp.Or(cmp.Compare(magnitude(now.Sub(since)), magnitude(now.Sub(other))), cmp.Compare(a.UID, b.UID))
}

func magnitude(age time.Duration) int64 {
	if age <= 0 {
		return -1
	}
	return int64(math.Log2(float64(age)))
}

// compareRestarts puts what has restarted more first; sidecars count where the
// others are equal.
func compareRestarts(a, b *corev1.Pod) int {
	containers, sidecars := restarts(a)
	otherContainers, otherSidecars := restarts(b)
	return cmp.Or(cmp.Compare(otherContainers, containers), cmp.Compare(otherSidecars, sidecars))
}

func restarts(p *corev1.Pod) (containers, sidecars int32) {
	for _, c := range p.Status.ContainerStatuses {
		containers = max(containers, c.RestartCount)
	}
	for _, c := range p.Status.InitContainerStatuses {
		sidecar := slices.ContainsFunc(p.Spec.InitContainers, func(s corev1.Container) bool {
			return s.Name == c.Name && s.RestartPolicy != nil && *s.RestartPolicy == corev1.ContainerRestartPolicyAlways
		})
		if sidecar {
			sidecars = max(sidecars, c.RestartCount)
		}
	}
	return containers, sidecars
}
