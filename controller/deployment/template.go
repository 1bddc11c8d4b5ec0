package deployment

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"setpoint.dev/setpoint/controller/template"
)

// What is written on replica sets, and the revision also on the deployment.
const (
	revisionAnnotation = "deployment.kubernetes.io/revision"
	// historyAnnotation are the revisions that the set has had before, each time
	// that its template came back.
	historyAnnotation = "deployment.kubernetes.io/revision-history"
	// desiredAnnotation is for how many pods in all the set was last sized; that
	// it differs from the deployment's number is how a change of that number is
	// told from a step of a rollout.
	desiredAnnotation = "deployment.kubernetes.io/desired-replicas"
	maxAnnotation     = "deployment.kubernetes.io/max-replicas"
)

// maxHistory bounds the history annotation, in bytes.
const maxHistory = 2000

// private are the annotations that a deployment and its sets do not share.
var private = map[string]bool{
	corev1.LastAppliedConfigAnnotation: true, revisionAnnotation: true, historyAnnotation: true,
	desiredAnnotation: true, maxAnnotation: true, appsv1.DeprecatedRollbackTo: true,
}

// sameTemplate says that the templates differ at most in the hash that sets add.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	return apiequality.Semantic.DeepEqual(withoutHash(a), withoutHash(b))
}

func withoutHash(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	if _, has := t.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; !has {
		return t
	}
	bare := *t
	bare.Labels = maps.Clone(t.Labels)
	delete(bare.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return &bare
}

// makeCurrent adds a set of the deployment's template, without pods yet, to the plan.
func (s *scope) makeCurrent() {
	d := s.deployment
	pods := d.Spec.Template.DeepCopy()
	hash := template.Hash(&d.Spec.Template, d.Status.CollisionCount)
	pods.Labels = with(pods.Labels, hash)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = with(selector.MatchLabels, hash)
	name := d.Name
	if longest := validation.DNS1123SubdomainMaxLength - 1 - len(hash); len(name) > longest {
		name = name[:longest]
	}
	s.current = &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-" + hash, Namespace: d.Namespace, Labels: maps.Clone(pods.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: new(int32), MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: *pods},
	}
	s.plan.Create = s.current
	s.share(s.current)
	s.noteSize(s.current)
	s.revise(s.current)
	if hasDeadline(d) {
		s.setProgress(corev1.ConditionTrue, reasonCreated, fmt.Sprintf("Created new replica set %q", s.current.Name))
	}
}

func with(labels map[string]string, hash string) map[string]string {
	more := maps.Clone(labels)
	if more == nil {
		more = map[string]string{}
	}
	more[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	return more
}

// reviseCurrent brings what the current set tells about the deployment up to
// date, and what the deployment tells about the set.
func (s *scope) reviseCurrent() {
	if s.current == nil {
		return
	}
	set := s.edit(s.current)
	s.share(set)
	s.revise(set)
	set.Spec.MinReadySeconds = s.deployment.Spec.MinReadySeconds
	if hasDeadline(s.deployment) && s.condition(appsv1.DeploymentProgressing) == nil {
		s.setProgress(corev1.ConditionTrue, reasonFound, fmt.Sprintf("Found new replica set %q", set.Name))
	}
}

// share copies the deployment's annotations to the set.
func (s *scope) share(set *appsv1.ReplicaSet) {
	if set.Annotations == nil {
		set.Annotations = map[string]string{}
	}
	for key, value := range s.deployment.Annotations {
		if !private[key] {
			set.Annotations[key] = value
		}
	}
}

// revise makes the set's revision the highest of all, and that of the deployment
// the same. A set whose revision cannot be read keeps it.
func (s *scope) revise(set *appsv1.ReplicaSet) {
	before, had := set.Annotations[revisionAnnotation]
	have, err := strconv.ParseInt(before, 10, 64)
	if err != nil && before != "" {
		return
	}
	highest := int64(0)
	for _, old := range s.old {
		if r, ok := revisionOf(old); ok {
			highest = max(highest, r)
		}
	}
	if have <= highest {
		set.Annotations[revisionAnnotation] = strconv.FormatInt(highest+1, 10)
		if had {
			remember(set, before)
		}
	}
	if s.deployment.Annotations == nil {
		s.deployment.Annotations = map[string]string{}
	}
	s.deployment.Annotations[revisionAnnotation] = set.Annotations[revisionAnnotation]
}

// remember adds a revision to the set's history, and drops the oldest for it.
func remember(set *appsv1.ReplicaSet, revision string) {
	history := set.Annotations[historyAnnotation]
	if history != "" {
		history += ","
	}
	history += revision
	for len(history) > maxHistory {
		_, rest, more := strings.Cut(history, ",")
		if !more {
			return
		}
		history = rest
	}
	set.Annotations[historyAnnotation] = history
}

// revisionOf is the set's revision, 0 when it has none.
func revisionOf(set *appsv1.ReplicaSet) (_ int64, ok bool) {
	text, has := set.Annotations[revisionAnnotation]
	if !has {
		return 0, true
	}
	r, err := strconv.ParseInt(text, 10, 64)
	return r, err == nil
}

// byRevision orders sets by revision, and by age where that does not tell.
func byRevision(a, b *appsv1.ReplicaSet) int {
	ra, oka := revisionOf(a)
	rb, okb := revisionOf(b)
	switch {
	case !oka || !okb || ra == rb:
		return older(a, b)
	case ra < rb:
		return -1
	default:
		return 1
	}
}

// noteSize writes on the set for which number of pods it was sized.
func (s *scope) noteSize(set *appsv1.ReplicaSet) {
	if set.Annotations == nil {
		set.Annotations = map[string]string{}
	}
	set.Annotations[desiredAnnotation] = strconv.Itoa(int(s.wanted()))
	set.Annotations[maxAnnotation] = strconv.Itoa(int(s.wanted() + s.surge()))
}

// noted is a number that noteSize has written.
func noted(set *appsv1.ReplicaSet, annotation string) (_ int32, ok bool) {
	n, err := strconv.ParseUint(set.Annotations[annotation], 10, 32)
	if err != nil || n > math.MaxInt32 {
		return 0, false
	}
	return int32(n), true
}
