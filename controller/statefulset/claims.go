package statefulset

import (
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsdefaults "k8s.io/kubernetes/pkg/apis/apps/v1"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// claimName is the name of a pod's claim from a template of that name.
func (s *scope) claimName(template string, p *corev1.Pod) string {
	return template + "-" + s.set.Name + "-" + strconv.Itoa(ordinal(p))
}

// attached says that the pod has a volume for each of its claims.
func (s *scope) attached(p *corev1.Pod) bool {
	for _, t := range s.set.Spec.VolumeClaimTemplates {
		if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == t.Name && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == s.claimName(t.Name, p)
		}) {
			return false
		}
	}
	return true
}

// attach gives the pod a volume for each of its claims, in place of others of
// that name.
func (s *scope) attach(p *corev1.Pod) {
	var volumes []corev1.Volume
	claimed := map[string]bool{}
	for _, t := range s.set.Spec.VolumeClaimTemplates {
		claimed[t.Name] = true
		volumes = append(volumes, corev1.Volume{Name: t.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: s.claimName(t.Name, p)},
		}})
	}
	for _, v := range p.Spec.Volumes {
		if !claimed[v.Name] {
			volumes = append(volumes, v)
		}
	}
	p.Spec.Volumes = volumes
}

// missingClaims are the pod's claims that there are not yet.
func (s *scope) missingClaims(p *corev1.Pod) []*corev1.PersistentVolumeClaim {
	var missing []*corev1.PersistentVolumeClaim
	for _, t := range s.set.Spec.VolumeClaimTemplates {
		name := s.claimName(t.Name, p)
		if s.Claims[name] != nil {
			continue
		}
		claim := t.DeepCopy()
		claim.Name, claim.Namespace = name, s.set.Namespace
		if claim.Labels == nil {
			claim.Labels = map[string]string{}
		}
		maps.Copy(claim.Labels, s.set.Spec.Selector.MatchLabels)
		if refs := s.owners(claim, p); len(refs) > 0 {
			claim.OwnerReferences = refs
		}
		missing = append(missing, claim)
	}
	return missing
}

// claimsOf are the pod's claims that there are.
func (s *scope) claimsOf(p *corev1.Pod) []*corev1.PersistentVolumeClaim {
	var have []*corev1.PersistentVolumeClaim
	for _, t := range s.set.Spec.VolumeClaimTemplates {
		if claim := s.Claims[s.claimName(t.Name, p)]; claim != nil {
			have = append(have, claim)
		}
	}
	return have
}

// claimsAreStale says that a claim is still that of an earlier pod of this name,
// with which it will go.
func (s *scope) claimsAreStale(p *corev1.Pod) bool {
	return s.retention().WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType &&
		slices.ContainsFunc(s.claimsOf(p), func(c *corev1.PersistentVolumeClaim) bool { return namesAnother(c, p, podKind) })
}

// claimsToOwn are the pod's claims, with the owners that the policy asks for,
// where they have others: those that are deleted go with what owns them.
func (s *scope) claimsToOwn(p *corev1.Pod) []*corev1.PersistentVolumeClaim {
	var changed []*corev1.PersistentVolumeClaim
	for _, claim := range s.claimsOf(p) {
		if namesAnother(claim, s.set, kind) || namesAnother(claim, p, podKind) {
			continue // it belongs to one of that name that is gone, and will go with it
		}
		refs := s.owners(claim, p)
		if !sameOwners(refs, claim.OwnerReferences) {
			claim = claim.DeepCopy()
			claim.OwnerReferences = refs
			changed = append(changed, claim)
		}
	}
	return changed
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	key := func(r metav1.OwnerReference) string {
		return string(r.UID) + strconv.FormatBool(r.Controller != nil && *r.Controller)
	}
	has := func(in []metav1.OwnerReference, one metav1.OwnerReference) bool {
		return slices.ContainsFunc(in, func(r metav1.OwnerReference) bool { return key(r) == key(one) })
	}
	for _, r := range a {
		if !has(b, r) {
			return false
		}
	}
	return len(a) == len(b)
}

// owners are the references that the claim should have: others' stay; the set
// owns it when it goes with the set, the pod when the set has become smaller.
func (s *scope) owners(claim *corev1.PersistentVolumeClaim, p *corev1.Pod) []metav1.OwnerReference {
	policy := s.retention()
	refs := slices.DeleteFunc(slices.Clone(claim.OwnerReferences), func(r metav1.OwnerReference) bool {
		return names(r, s.set, kind) || names(r, p, podKind)
	})
	if slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller }) {
		return refs // somebody else decides
	}
	i := ordinal(p)
	beyond := i < s.first() || i >= s.first()+s.wanted()
	scaled := policy.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	switch {
	case scaled && beyond:
		if exists(p) {
			refs = append(refs, *metav1.NewControllerRef(p, podKind))
		}
	case policy.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
		refs = append(refs, *metav1.NewControllerRef(s.set, kind))
	}
	return refs
}

// retention is what happens to claims; they are kept when nothing is said.
func (s *scope) retention() appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy {
	if p := s.set.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		return *p
	}
	keep := appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	return appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: keep, WhenScaled: keep}
}

// names says that the reference is to an object of that name, this or another.
func names(r metav1.OwnerReference, obj metav1.Object, kind schema.GroupVersionKind) bool {
	return r.Name == obj.GetName() && r.Kind == kind.Kind && r.APIVersion == kind.GroupVersion().String()
}

// namesAnother says that the claim is owned by an object of that name which is
// not this one.
func namesAnother(claim *corev1.PersistentVolumeClaim, obj metav1.Object, kind schema.GroupVersionKind) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(r metav1.OwnerReference) bool {
		return names(r, obj, kind) && r.UID != obj.GetUID()
	})
}

// means says that a template which was written down before some default was
// known is still the set's.
func (s *scope) means(was *corev1.PodTemplateSpec) bool {
	set := s.set.DeepCopy()
	set.Spec.Template = *was
	appsdefaults.SetObjectDefaults_StatefulSet(set)
	return apiequality.Semantic.DeepEqual(set.Spec.Template, s.set.Spec.Template)
}
