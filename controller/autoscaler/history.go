package autoscaler

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// downWindow is for how long the highest recommendation counts where an
// autoscaler does not say. Compat: as upstream.
const downWindow = 5 * time.Minute

// longest is the longest time that an autoscaler may look back; what is older
// is forgotten.
const longest = time.Hour

// History is what was recommended for a target, and by how much it was changed.
// It is immutable: the next one is another.
type History struct {
	recommended, ups, downs []event
}

// event is a number of replicas at a time.
type event struct {
	replicas int32
	at       time.Time
}

// with is a list with one more event, without those that nobody looks back to.
func with(of []event, n int32, now time.Time) []event {
	kept := slices.DeleteFunc(slices.Clone(of), func(e event) bool { return e.at.Before(now.Add(-longest)) })
	return append(kept, event{n, now})
}

// recommend is the history after a recommendation.
func (h History) recommend(n int32, now time.Time) History {
	h.recommended = with(h.recommended, n, now)
	return h
}

// change is the history after a change of the target.
func (h History) change(from, to int32, now time.Time) History {
	if to > from {
		h.ups = with(h.ups, to-from, now)
	} else {
		h.downs = with(h.downs, from-to, now)
	}
	return h
}

// limited is a number of replicas and why it is no other.
type limited struct {
	replicas        int32
	reason, message string
}

// Compat: these are upstream's words.
const (
	downStabilized = "recent recommendations were higher than current one, applying the highest recent recommendation"
	upStabilized   = "recent recommendations were lower than current one, applying the lowest recent recommendation"
	tooFast        = "the desired replica count is increasing faster than the maximum scale rate"
	tooSlow        = "the desired replica count is decreasing faster than the maximum scale rate"
	tooMany        = "the desired replica count is more than the maximum replica count"
	tooFew         = "the desired replica count is less than the minimum replica count"
	withinRange    = "the desired count is within the acceptable range"
)

// stabilize is the highest of recent recommendations, for targets without a
// behavior.
func (h History) stabilize(desired int32, now time.Time) limited {
	highest := desired
	for _, r := range h.recommended {
		if !r.at.Before(now.Add(-downWindow)) {
			highest = max(highest, r.replicas)
		}
	}
	return limited{highest, "ScaleDownStabilized", downStabilized}
}

// stabilizeBy keeps replicas between the lowest recommendation of the window for
// more and the highest of the window for fewer.
func (h History) stabilizeBy(b *autoscalingv2.HorizontalPodAutoscalerBehavior, current, desired int32, now time.Time) limited {
	up, down := desired, desired
	for _, r := range h.recommended {
		if r.at.After(now.Add(-windowOf(b.ScaleUp, 0))) {
			up = min(up, r.replicas)
		}
		if r.at.After(now.Add(-windowOf(b.ScaleDown, downWindow))) {
			down = max(down, r.replicas)
		}
	}
	n := min(max(current, up), down)
	if desired >= current {
		return limited{n, "ScaleUpStabilized", upStabilized}
	}
	return limited{n, "ScaleDownStabilized", downStabilized}
}

func windowOf(rules *autoscalingv2.HPAScalingRules, otherwise time.Duration) time.Duration {
	if rules == nil || rules.StabilizationWindowSeconds == nil {
		return otherwise
	}
	return time.Duration(*rules.StabilizationWindowSeconds) * time.Second
}

// within keeps replicas between the least and the most, and from growing to
// more than twice as many at once, for targets without a behavior.
func within(current, desired, least, most int32) limited {
	limit := max(2*current, 4)
	switch {
	case desired < least:
		return limited{least, "TooFewReplicas", tooFew}
	case desired <= min(most, limit):
		return limited{desired, "DesiredWithinRange", withinRange}
	case most > limit:
		return limited{limit, "ScaleUpLimit", tooFast}
	}
	return limited{most, "TooManyReplicas", tooMany}
}

// withinBy keeps replicas between the least and the most, and to the rate that
// policies allow.
func (h History) withinBy(b *autoscalingv2.HorizontalPodAutoscalerBehavior, current, desired, least, most int32, now time.Time) limited {
	switch {
	case desired > current:
		limit := max(current, h.limit(b.ScaleUp, current, now, 1))
		if desired <= min(most, limit) {
			break
		}
		if most > limit {
			return limited{limit, "ScaleUpLimit", tooFast}
		}
		return limited{most, "TooManyReplicas", tooMany}
	case desired < current:
		limit := min(current, h.limit(b.ScaleDown, current, now, -1))
		if desired >= max(least, limit) {
			break
		}
		if least < limit {
			return limited{limit, "ScaleDownLimit", tooSlow}
		}
		return limited{least, "TooFewReplicas", tooFew}
	}
	return limited{desired, "DesiredWithinRange", withinRange}
}

// limit is how far rules let replicas go in a direction: 1 for more, -1 for
// fewer.
func (h History) limit(rules *autoscalingv2.HPAScalingRules, current int32, now time.Time, direction int32) int32 {
	selected := autoscalingv2.MaxChangePolicySelect
	if rules.SelectPolicy != nil {
		selected = *rules.SelectPolicy
	}
	if selected == autoscalingv2.DisabledPolicySelect {
		return current
	}
	var proposed []int32
	for _, p := range rules.Policies {
		since := now.Add(-time.Duration(p.PeriodSeconds) * time.Second)
		begun := current - sum(h.ups, since) + sum(h.downs, since)
		switch {
		case p.Type == autoscalingv2.PodsScalingPolicy:
			proposed = append(proposed, begun+direction*p.Value)
		case direction > 0:
			proposed = append(proposed, int32(math.Ceil(float64(begun)*(1+float64(p.Value)/100))))
		default:
			proposed = append(proposed, int32(float64(begun)*(1-float64(p.Value)/100)))
		}
	}
	if (selected == autoscalingv2.MinChangePolicySelect) == (direction > 0) {
		return slices.Min(proposed)
	}
	return slices.Max(proposed)
}

// sum is by how much replicas changed since then.
func sum(of []event, since time.Time) int32 {
	n := int32(0)
	for _, e := range of {
		if e.at.After(since) {
			n += e.replicas
		}
	}
	return n
}
