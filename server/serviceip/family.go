package serviceip

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// fillFamilies settles the policy and the families of a service, from what it
// says, what it was, and what the cluster has. It refuses what does not go
// together.
func (d *draft) fillFamilies(old *core.Service) error {
	s := d.service
	if s.Spec.Type == core.ServiceTypeExternalName || old != nil && keepsPreference(s, old) {
		return nil
	}
	headless := s.Spec.ClusterIP == core.ClusterIPNone && len(s.Spec.Selector) == 0
	if s.Spec.IPFamilyPolicy == nil {
		s.Spec.IPFamilyPolicy = defaultPolicy(headless, old)
	}
	if errs := validation.ValidateServiceClusterIPsRelatedFields(s, old); len(errs) > 0 {
		return d.invalid(errs...)
	}
	errs := d.checkPolicy(old)
	errs = append(errs, d.inferFamilies()...)
	if len(errs) > 0 {
		return d.invalid(errs...)
	}
	if headless {
		// Whoever makes the endpoints knows their families; the cluster's do
		// not limit them.
		d.addFamilies(true)
		return nil
	}
	if policyOf(s) == core.IPFamilyPolicyRequireDualStack && len(d.ranges.families) < 2 {
		errs = append(errs, field.Invalid(policyPath, s.Spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, family := range s.Spec.IPFamilies {
		if !d.ranges.has(family) {
			errs = append(errs, field.Invalid(familiesPath.Index(i), family, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return d.invalid(errs...)
	}
	d.addFamilies(len(d.ranges.families) == 2)
	return nil
}

// defaultPolicy is the policy of a service that names none: what it had, or one
// family, or, where others choose the endpoints, both.
func defaultPolicy(headless bool, old *core.Service) *core.IPFamilyPolicy {
	if old != nil && old.Spec.IPFamilyPolicy != nil {
		return old.Spec.IPFamilyPolicy
	}
	policy := core.IPFamilyPolicySingleStack
	if headless {
		policy = core.IPFamilyPolicyRequireDualStack
	}
	return &policy
}

// checkPolicy compares the policy with the number of addresses and families. A
// service that turns to one family without saying more loses the second.
func (d *draft) checkPolicy(old *core.Service) field.ErrorList {
	spec := &d.service.Spec
	var errs field.ErrorList
	refuse := func(why string) {
		errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy, why))
	}
	if policyOf(d.service) != core.IPFamilyPolicySingleStack {
		if old != nil && isShorter(spec.ClusterIPs, old.Spec.ClusterIPs) {
			refuse("must be 'SingleStack' to release the secondary cluster IP")
		}
		if old != nil && isShorter(spec.IPFamilies, old.Spec.IPFamilies) {
			refuse("must be 'SingleStack' to release the secondary IP family")
		}
		return errs
	}
	if old != nil && len(spec.ClusterIPs) > 1 && slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs) {
		spec.ClusterIPs = spec.ClusterIPs[:1:1]
	}
	if old != nil && len(spec.IPFamilies) > 1 && slices.Equal(spec.IPFamilies, old.Spec.IPFamilies) {
		spec.IPFamilies = spec.IPFamilies[:1:1]
	}
	if len(spec.ClusterIPs) == 2 {
		refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified")
	}
	if len(spec.IPFamilies) == 2 {
		refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified")
	}
	return errs
}

// isShorter says that some of a list has been taken away; a list that is not
// given has not.
func isShorter[T any](now, before []T) bool { return len(now) > 0 && len(now) < len(before) }

// inferFamilies adds the families of addresses that are named without one.
func (d *draft) inferFamilies() field.ErrorList {
	spec := &d.service.Spec
	var errs field.ErrorList
	for i, ip := range spec.ClusterIPs {
		if ip == core.ClusterIPNone {
			break
		}
		addr, err := parse(ip)
		if err != nil || i < len(spec.IPFamilies) {
			continue // it is well-formed, and agrees: that was checked before
		}
		family := familyOf(addr)
		if !d.ranges.has(family) {
			errs = append(errs, field.Invalid(addressesPath.Index(i), spec.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", family)))
			continue
		}
		spec.IPFamilies = append(spec.IPFamilies, family)
	}
	return errs
}

// addFamilies gives the service the primary family if it has none, and another
// one if its policy wants two and there may be.
func (d *draft) addFamilies(both bool) {
	spec := &d.service.Spec
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []core.IPFamily{d.ranges.primary}
	}
	if both && len(spec.IPFamilies) == 1 && policyOf(d.service) != core.IPFamilyPolicySingleStack {
		spec.IPFamilies = []core.IPFamily{spec.IPFamilies[0], otherFamily(spec.IPFamilies[0])}
	}
}

func policyOf(s *core.Service) core.IPFamilyPolicy {
	if s.Spec.IPFamilyPolicy == nil {
		return ""
	}
	return *s.Spec.IPFamilyPolicy
}

// keepsPreference says that the service prefers two families, as before, and
// has what it had. It then keeps that, even when the cluster has got a second
// family since or has lost one.
func keepsPreference(s, old *core.Service) bool {
	return policyOf(s) == core.IPFamilyPolicyPreferDualStack &&
		(old.Spec.IPFamilyPolicy == nil || policyOf(old) == core.IPFamilyPolicyPreferDualStack) &&
		s.Spec.Type == old.Spec.Type && s.Spec.Type != core.ServiceTypeExternalName &&
		slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies)
}
