package cycle

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/scheduler/snapshot"
)

// Constraint is a constraint on how pods are spread.
type Constraint struct {
	MaxSkew, MinDomains int
	TopologyKey         string
	Selector            labels.Selector
	// HonorAffinity and HonorTaints leave out nodes that the pod cannot be on.
	HonorAffinity, HonorTaints bool
}

// systemSpread is how pods are spread that do not say. Compat: it is upstream's.
var systemSpread = []corev1.TopologySpreadConstraint{
	{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
}

// MustSpread are the constraints that must hold.
func (c *Cycle) MustSpread() ([]Constraint, error) { return c.must() }

// ShouldSpread are the constraints that should hold.
func (c *Cycle) ShouldSpread() ([]Constraint, error) { return c.should() }

// EveryKey says whether only nodes are spread over that have the keys of all
// constraints. The defaults of the system do with any of them.
func (c *Cycle) EveryKey() bool {
	return len(c.Pod.Object.Spec.TopologySpreadConstraints) > 0 || c.Settings.OwnSpread
}

func (c *Cycle) constraints(when corev1.UnsatisfiableConstraintAction) ([]Constraint, error) {
	pod := c.Pod.Object
	if own := pod.Spec.TopologySpreadConstraints; len(own) > 0 {
		return readConstraints(own, pod.Labels, when)
	}
	from := systemSpread
	if c.Settings.OwnSpread {
		from = c.Settings.Spread
	}
	defaults, err := readConstraints(from, pod.Labels, when)
	if err != nil || len(defaults) == 0 {
		return nil, err
	}
	selector := c.siblings()
	if selector.Empty() {
		return nil, nil
	}
	for i := range defaults {
		defaults[i].Selector = selector
	}
	return defaults, nil
}

// readConstraints reads those constraints that are of a kind.
func readConstraints(from []corev1.TopologySpreadConstraint, own labels.Set, when corev1.UnsatisfiableConstraintAction) ([]Constraint, error) {
	var all []Constraint
	for i := range from {
		f := &from[i]
		if f.WhenUnsatisfiable != when {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(f.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("topology spread constraint: %w", err)
		}
		k := Constraint{
			MaxSkew: int(f.MaxSkew), MinDomains: 1, TopologyKey: f.TopologyKey, Selector: sameAs(own, f.MatchLabelKeys, selector),
			HonorAffinity: f.NodeAffinityPolicy == nil || *f.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor,
			HonorTaints:   f.NodeTaintsPolicy != nil && *f.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
		}
		if f.MinDomains != nil {
			k.MinDomains = int(*f.MinDomains)
		}
		all = append(all, k)
	}
	return all, nil
}

// sameAs narrows a selector to pods that have the same values of some labels.
func sameAs(own labels.Set, keys []string, selector labels.Selector) labels.Selector {
	same := labels.Set{}
	for _, key := range keys {
		if value, has := own[key]; has {
			same[key] = value
		}
	}
	requirements, selectable := selector.Requirements()
	if len(same) == 0 || !selectable {
		return selector
	}
	return labels.SelectorFromSet(same).Add(requirements...)
}

// siblings selects the pods that belong together with the pod: those of the
// services that select it and of the workload that controls it.
func (c *Cycle) siblings() labels.Selector {
	pod := c.Pod.Object
	set := labels.Set{}
	services, _ := c.Objects.Services.Services(pod.Namespace).List(labels.Everything()) // a lister does not fail
	for _, s := range services {
		if s.Spec.Selector != nil && labels.Set(s.Spec.Selector).AsSelectorPreValidated().Matches(labels.Set(pod.Labels)) {
			set = labels.Merge(set, s.Spec.Selector)
		}
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return set.AsSelector()
	}
	var of *metav1.LabelSelector
	switch schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind) {
	case corev1.SchemeGroupVersion.WithKind("ReplicationController"):
		if rc, err := c.Objects.ReplicationControllers.ReplicationControllers(pod.Namespace).Get(owner.Name); err == nil {
			set = labels.Merge(set, rc.Spec.Selector)
		}
	case appsv1.SchemeGroupVersion.WithKind("ReplicaSet"):
		if rs, err := c.Objects.ReplicaSets.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
			of = rs.Spec.Selector
		}
	case appsv1.SchemeGroupVersion.WithKind("StatefulSet"):
		if ss, err := c.Objects.StatefulSets.StatefulSets(pod.Namespace).Get(owner.Name); err == nil {
			of = ss.Spec.Selector
		}
	}
	selector := set.AsSelector()
	if of == nil {
		return selector
	}
	if other, err := metav1.LabelSelectorAsSelector(of); err == nil {
		if requirements, selectable := other.Requirements(); selectable {
			selector = selector.Add(requirements...)
		}
	}
	return selector
}

// HasKeys says whether a node has the labels that pods are spread by.
func HasKeys(n *corev1.Node, constraints []Constraint) bool {
	for i := range constraints {
		if _, has := n.Labels[constraints[i].TopologyKey]; !has {
			return false
		}
	}
	return true
}

// Counts says whether the pods on a node count for a constraint.
func (c *Cycle) Counts(k *Constraint, n *corev1.Node) bool {
	return (!k.HonorAffinity || c.Wants(n)) && (!k.HonorTaints || Tolerates(c.Pod.Object, n.Spec.Taints))
}

// Spread remembers which pods a constraint is about: those that its selector
// selects in the pod's namespace, and that are not going. The empty selector
// selects none.
func (c *Cycle) Spread(k *Constraint) *snapshot.Matches {
	empty, namespace := k.Selector.Empty(), c.Pod.Object.Namespace
	return c.Matching(func(class *snapshot.Class) bool {
		return !empty && !class.Going && class.Namespace == namespace && k.Selector.Matches(class.Labels)
	})
}
