package nodelife

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/pods"
)

// heard is what is known of a node's voice.
type heard struct {
	last    time.Time   // by this clock
	said    metav1.Time // the heartbeat that it last said
	spoke   bool        // it has said whether it is ready
	renewed time.Time   // its lease's own time
}

// listen returns what is known of a node's voice after a look at it.
func listen(h heard, n *corev1.Node, now time.Time) heard {
	ready := condition(n.Status.Conditions, corev1.NodeReady)
	if h.last.Before(n.CreationTimestamp.Time) {
		h.last = n.CreationTimestamp.Time
	}
	switch {
	case ready == nil && h.spoke:
		h.last, h.spoke = now, false
	case ready != nil && (!h.spoke || !h.said.Equal(&ready.LastHeartbeatTime)):
		h.last, h.spoke, h.said = now, true, ready.LastHeartbeatTime
	}
	return h
}

// Observed is what a plan is made from.
type Observed struct {
	Node     *corev1.Node
	Heard    heard
	Pods     []*corev1.Pod // those on it
	Now      time.Time
	Settings Settings
	// AllSilent says that no node at all is well; MayGiveUp that one of this zone
	// may be given up now, else that is asked again after Wait.
	AllSilent, MayGiveUp bool
	Wait                 time.Duration
}

// Plan is what to write. Nil is left alone.
type Plan struct {
	Conditions []corev1.NodeCondition
	Lost       bool // it was ready until now
	Taints     *[]corev1.Taint
	GaveUp     bool // the taints drive pods out that did not
	Labels     map[string]string
	Unready    []*corev1.Pod
	Again      time.Duration
}

// plan says what becomes of a node.
func plan(seen Observed) Plan {
	var p Plan
	conditions := seen.Node.Status.Conditions
	if silent(seen) {
		if changed := unknown(seen); statusIn(changed, corev1.NodeReady) != statusIn(conditions, corev1.NodeReady) {
			p.Conditions, p.Lost = changed, statusIn(conditions, corev1.NodeReady) == corev1.ConditionTrue
			conditions = changed
		}
	} else {
		p.Again = seen.Heard.last.Add(grace(seen)).Sub(seen.Now) + time.Millisecond
	}
	var wait bool
	p.Taints, p.GaveUp, wait = taints(seen, conditions)
	if wait {
		p.Again = seen.Wait
	} else if statusIn(conditions, corev1.NodeReady) != corev1.ConditionTrue && (p.Again <= 0 || p.Again > lookEvery) {
		p.Again = lookEvery // how others are counts for it, too
	}
	p.Labels = labelsOf(seen.Node)
	if statusIn(conditions, corev1.NodeReady) == corev1.ConditionUnknown {
		p.Unready = unready(seen)
	}
	return p
}

func grace(seen Observed) time.Duration {
	if condition(seen.Node.Status.Conditions, corev1.NodeReady) == nil {
		return seen.Settings.Startup
	}
	return seen.Settings.Grace
}

// silent says that a node has said nothing for too long.
func silent(seen Observed) bool {
	return seen.Now.After(seen.Heard.last.Add(grace(seen)))
}

// wrong says that a node is not ready.
func wrong(n *corev1.Node) bool { return statusOf(n, corev1.NodeReady) != corev1.ConditionTrue }

func condition(in []corev1.NodeCondition, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range in {
		if in[i].Type == kind {
			return &in[i]
		}
	}
	return nil
}

func statusIn(in []corev1.NodeCondition, kind corev1.NodeConditionType) corev1.ConditionStatus {
	if c := condition(in, kind); c != nil {
		return c.Status
	}
	return ""
}

func statusOf(n *corev1.Node, kind corev1.NodeConditionType) corev1.ConditionStatus {
	return statusIn(n.Status.Conditions, kind)
}

// spoken are the conditions that a node itself tells. Compat: whether its network
// is there is said by others.
var spoken = []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}

// unknown are the conditions of a node that has gone silent. Compat: the words
// are upstream's.
func unknown(seen Observed) []corev1.NodeCondition {
	all := slices.Clone(seen.Node.Status.Conditions)
	now := metav1.NewTime(seen.Now)
	for _, kind := range spoken {
		c := condition(all, kind)
		switch {
		case c == nil:
			all = append(all, corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: seen.Node.CreationTimestamp, LastTransitionTime: now,
			})
		case c.Status != corev1.ConditionUnknown:
			c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.", now
		}
	}
	return all
}

// tainting is which taint follows from which condition.
var tainting = []struct {
	kind   corev1.NodeConditionType
	status corev1.ConditionStatus
	taint  string
}{
	{corev1.NodeReady, corev1.ConditionFalse, corev1.TaintNodeNotReady},
	{corev1.NodeReady, corev1.ConditionUnknown, corev1.TaintNodeUnreachable},
	{corev1.NodeMemoryPressure, corev1.ConditionTrue, corev1.TaintNodeMemoryPressure},
	{corev1.NodeDiskPressure, corev1.ConditionTrue, corev1.TaintNodeDiskPressure},
	{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, corev1.TaintNodeNetworkUnavailable},
	{corev1.NodePIDPressure, corev1.ConditionTrue, corev1.TaintNodePIDPressure},
}

// taints are those that a node with these conditions should have, nil when it
// has them; whether they drive pods out that did not so far, and whether they
// would, if the zone's pace allowed it.
func taints(seen Observed, conditions []corev1.NodeCondition) (changed *[]corev1.Taint, gaveUp, wait bool) {
	want := map[corev1.Taint]bool{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}: seen.Node.Spec.Unschedulable}
	var drive corev1.Taint
	for _, t := range tainting {
		holds := statusIn(conditions, t.kind) == t.status
		want[corev1.Taint{Key: t.taint, Effect: corev1.TaintEffectNoSchedule}] = holds
		if t.kind != corev1.NodeReady {
			continue
		}
		out := corev1.Taint{Key: t.taint, Effect: corev1.TaintEffectNoExecute}
		want[out] = false
		if holds && !seen.AllSilent {
			drive = out
		}
	}
	if drive.Key != "" {
		// A node that is given up already only changes why.
		driven := slices.ContainsFunc(seen.Node.Spec.Taints, drives)
		want[drive] = driven || seen.MayGiveUp
		gaveUp, wait = !driven && seen.MayGiveUp, !driven && !seen.MayGiveUp
	}
	return apply(seen.Node.Spec.Taints, want, seen.Now), gaveUp, wait
}

// drives says that a taint of this package drives pods out.
func drives(t corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
}

// apply returns taints of which those are there that should be, and those are
// not that should not; nil when nothing changes.
func apply(have []corev1.Taint, want map[corev1.Taint]bool, now time.Time) *[]corev1.Taint {
	bare := func(t corev1.Taint) corev1.Taint { return corev1.Taint{Key: t.Key, Effect: t.Effect} }
	all := slices.DeleteFunc(slices.Clone(have), func(t corev1.Taint) bool {
		wanted, ours := want[bare(t)]
		return ours && !wanted
	})
	changed := len(all) != len(have)
	for _, t := range inOrder(want) {
		if !slices.ContainsFunc(all, func(o corev1.Taint) bool { return bare(o) == t }) {
			t.TimeAdded = new(metav1.NewTime(now))
			all, changed = append(all, t), true
		}
	}
	if !changed {
		return nil
	}
	return &all
}

// inOrder are the taints that are wanted: those that keep new pods away first.
func inOrder(want map[corev1.Taint]bool) []corev1.Taint {
	var all []corev1.Taint
	keys := []string{corev1.TaintNodeUnschedulable}
	for _, t := range tainting {
		keys = append(keys, t.taint)
	}
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		for _, key := range keys {
			if t := (corev1.Taint{Key: key, Effect: effect}); want[t] {
				all = append(all, t)
			}
		}
	}
	return all
}

// older are labels that are kept like those that took their place.
var older = map[string]string{corev1.LabelOSStable: "beta.kubernetes.io/os", corev1.LabelArchStable: "beta.kubernetes.io/arch"}

// labelsOf are the labels that a node lacks; nil when it lacks none.
func labelsOf(n *corev1.Node) map[string]string {
	var lacks map[string]string
	for of, old := range older {
		value, has := n.Labels[of]
		if is, had := n.Labels[old]; has && (!had || is != value) {
			if lacks == nil {
				lacks = map[string]string{}
			}
			lacks[old] = value
		}
	}
	return lacks
}

// unready are the pods of a silent node that say that they are ready, as they
// should be.
func unready(seen Observed) []*corev1.Pod {
	var some []*corev1.Pod
	for _, p := range seen.Pods {
		if !pods.Ready(p) {
			continue
		}
		p = p.DeepCopy()
		c := pods.Condition(p, corev1.PodReady)
		c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(seen.Now)
		some = append(some, p)
	}
	return some
}
