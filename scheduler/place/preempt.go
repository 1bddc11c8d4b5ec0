package place

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"setpoint.dev/setpoint/scheduler/filter"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// Preemption is who must go for a pod.
type Preemption struct {
	// Node is where they go from, nil when nobody goes, and Message then says why.
	Node    *snapshot.Node
	Victims []*snapshot.Pod
	Message string
	// Useless says that nobody's going helps.
	Useless bool
}

// On how many nodes victims are looked for. Compat: these are upstream's.
const (
	candidatesPercent = 10
	candidatesFewest  = 100
)

// Preempt says who must go so that a pod that was refused everywhere finds room.
func (d *Decision) Preempt(budgets []*policyv1.PodDisruptionBudget, now time.Time) Preemption {
	if d.profile.NoPreemption {
		return Preemption{}
	}
	if why := d.ineligible(); why != "" {
		return Preemption{Message: "preemption: " + why}
	}
	var nodes []*snapshot.Node
	if d.none == nil {
		for _, r := range d.refused {
			if !r.Final {
				nodes = append(nodes, r.Node)
			}
		}
	}
	candidates, refused := d.candidates(nodes, budgets, now)
	if len(candidates) == 0 {
		all := len(d.cycle.Nodes)
		reasons := map[string]int{}
		for _, r := range refused {
			for _, reason := range r.Reasons {
				reasons[reason]++
			}
		}
		if rest := all - len(refused); rest > 0 {
			reasons["Preemption is not helpful for scheduling"] += rest
		}
		return Preemption{Message: "preemption: " + message(all, reasons), Useless: true}
	}
	best := cheapest(candidates, now)
	return Preemption{Node: best.node, Victims: best.victims}
}

// ineligible says why a pod may not have others go, "" when it may.
func (d *Decision) ineligible() string {
	pod := d.cycle.Pod
	if policy := pod.Object.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	n := d.cycle.Node(pod.Object.Status.NominatedNodeName)
	if n == nil {
		return ""
	}
	if slices.ContainsFunc(d.refused, func(r Refusal) bool { return r.Node == n && r.Final }) || d.none != nil {
		return "" // no room will be found there, whoever goes
	}
	for _, p := range n.Pods {
		if p.Priority < pod.Priority && goingFor(p.Object) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

// goingFor says whether a pod is going because of a more important one.
func goingFor(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// candidate is a node with those who must go.
type candidate struct {
	node      *snapshot.Node
	victims   []*snapshot.Pod // the most important first
	violating int             // how many of them a budget is to protect
}

// candidates finds nodes where it helps that pods go, and why it does not on
// others. It stops when it has enough, one of which hurts no budget.
func (d *Decision) candidates(nodes []*snapshot.Node, budgets []*policyv1.PodDisruptionBudget, now time.Time) (found []candidate, refused []*filter.Rejection) {
	if len(nodes) == 0 {
		return nil, nil
	}
	enough := min(max(len(nodes)*candidatesPercent/100, candidatesFewest), len(nodes))
	gentle, start := 0, int(d.turn.Tie%uint64(len(nodes)))
	for i := range nodes {
		c, rejection := d.victims(nodes[(start+i)%len(nodes)], budgets, now)
		if rejection != nil {
			refused = append(refused, rejection)
			continue
		}
		found = append(found, c)
		if c.violating == 0 {
			gentle++
		}
		if gentle > 0 && len(found) >= enough {
			break
		}
	}
	return found, refused
}

var noVictims = &filter.Rejection{Reasons: []string{"No preemption victims found for incoming pod"}, Final: true}

// victims are as few as possible of the least important pods of a node.
func (d *Decision) victims(n *snapshot.Node, budgets []*policyv1.PodDisruptionBudget, now time.Time) (candidate, *filter.Rejection) {
	var lower []*snapshot.Pod
	for _, p := range n.Pods {
		if p.Priority < d.cycle.Pod.Priority {
			lower = append(lower, p)
		}
	}
	if len(lower) == 0 {
		return candidate{}, noVictims
	}
	left, checks := n.Clone(), cloned(d.checks)
	for _, p := range lower {
		left.Remove(p)
		move(checks, p, left, -1)
	}
	if _, rejection := d.try(left, checks); rejection != nil {
		return candidate{}, rejection
	}
	byImportance := func(a, b *snapshot.Pod) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), started(a.Object, now).Compare(started(b.Object, now)))
	}
	slices.SortStableFunc(lower, byImportance)
	c := candidate{node: n}
	spare := func(p *snapshot.Pod) bool {
		left.Add(p)
		move(checks, p, left, 1)
		if _, rejection := d.try(left, checks); rejection == nil {
			return true
		}
		left.Remove(p)
		move(checks, p, left, -1)
		c.victims = append(c.victims, p)
		return false
	}
	protected, others := byBudget(lower, budgets)
	for _, p := range protected {
		if !spare(p) {
			c.violating++
		}
	}
	for _, p := range others {
		spare(p)
	}
	slices.SortStableFunc(c.victims, byImportance)
	if len(c.victims) == 0 {
		return c, noVictims // it fits as it is, which another filter had not seen
	}
	return c, nil
}

// started is when a pod began to run; one that has not begins now.
func started(pod *corev1.Pod, now time.Time) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return now
}

// byBudget parts pods into those whose going would hurt a budget and others.
func byBudget(pods []*snapshot.Pod, budgets []*policyv1.PodDisruptionBudget) (protected, others []*snapshot.Pod) {
	allowed := make([]int32, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.Status.DisruptionsAllowed
	}
	for _, p := range pods {
		hurts := false
		for i, b := range budgets {
			if !covers(b, p.Object) {
				continue
			}
			allowed[i]--
			hurts = hurts || allowed[i] < 0
		}
		if hurts {
			protected = append(protected, p)
		} else {
			others = append(others, p)
		}
	}
	return protected, others
}

// covers says whether a budget counts a pod that is not yet known to be going.
func covers(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	if b.Namespace != pod.Namespace || len(pod.Labels) == 0 {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil || selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
		return false
	}
	_, going := b.Status.DisruptedPods[pod.Name]
	return !going
}

// cheapest is the candidate that costs least: by budgets hurt, by its most
// important victim, by the importance of all, by their number, and by how
// recently the most important began.
func cheapest(all []candidate, now time.Time) candidate {
	return slices.MinFunc(all, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(a.violating, b.violating),
			cmp.Compare(a.victims[0].Priority, b.victims[0].Priority),
			cmp.Compare(importance(a.victims), importance(b.victims)),
			cmp.Compare(len(a.victims), len(b.victims)),
			earliest(b.victims, now).Compare(earliest(a.victims, now)),
		)
	})
}

// importance adds priorities up, each made positive so that more is always more.
func importance(pods []*snapshot.Pod) int64 {
	var sum int64
	for _, p := range pods {
		sum += int64(p.Priority) + math.MaxInt32 + 1
	}
	return sum
}

// earliest is when the first of the most important pods began.
func earliest(pods []*snapshot.Pod, now time.Time) time.Time {
	at := started(pods[0].Object, now)
	for _, p := range pods {
		if p.Priority == pods[0].Priority {
			if began := started(p.Object, now); began.Before(at) {
				at = began
			}
		}
	}
	return at
}
