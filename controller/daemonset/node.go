package daemonset

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corehelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"setpoint.dev/setpoint/controller/pods"
)

// generationLabel says for which generation of the template a pod was made.
const generationLabel = "pod-template-generation"

// tolerated are the taints that every pod of a set bears: a node in trouble
// keeps its daemons.
var tolerated = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
}

// tolerate adds what is tolerated to a pod.
func tolerate(spec *corev1.PodSpec) {
	all := tolerated
	if spec.HostNetwork {
		all = append(slices.Clip(all), corev1.Toleration{Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	own := slices.DeleteFunc(slices.Clone(spec.Tolerations), func(have corev1.Toleration) bool {
		return slices.ContainsFunc(all, func(t corev1.Toleration) bool { return have.MatchToleration(&t) })
	})
	spec.Tolerations = slices.Concat(own, all)
}

// fits says whether the node should have a pod of the set, and whether it may
// keep one that it has.
func (s *scope) fits(n *corev1.Node) (runs, stays bool) {
	if name := s.set.Spec.Template.Spec.NodeName; name != "" && name != n.Name {
		return false, false
	}
	p := &corev1.Pod{Spec: *s.set.Spec.Template.Spec.DeepCopy()}
	tolerate(&p.Spec)
	if match, _ := nodeaffinity.GetRequiredNodeAffinity(p).Match(n); !match { // Compat: what cannot be read does not match
		return false, false
	}
	bears := func(effects ...corev1.TaintEffect) bool {
		_, refused := corehelper.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations, func(t *corev1.Taint) bool {
			return slices.Contains(effects, t.Effect)
		}, true)
		return !refused
	}
	return bears(corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule), bears(corev1.TaintEffectNoExecute)
}

// make adds a pod for the node to the plan.
func (s *scope) make(at *place) {
	p := pods.FromTemplate(&s.set.Spec.Template, s.set, metav1.NewControllerRef(s.set, kind))
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = s.hash
	if g := s.set.Annotations[appsv1.DeprecatedTemplateGeneration]; g != "" {
		p.Labels[generationLabel] = g
	}
	tolerate(&p.Spec)
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	if p.Spec.Affinity.NodeAffinity == nil {
		p.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	// The scheduler puts it there: it knows what else the node has to carry.
	p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{at.name}}},
	}}}
	s.plan.Create = append(s.plan.Create, p)
}

// nodeOf is the node that the pod is on or is meant for, "" when nobody knows.
func nodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}
