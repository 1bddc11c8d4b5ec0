package serviceip

import (
	"slices"

	"k8s.io/kubernetes/pkg/apis/core"
)

// complete fills in what a service that was stored by an older server lacks, as
// far as the rest of it tells.
func complete(s *core.Service, primary core.IPFamily) {
	alignAddresses(s, nil)
	dropInternalPolicy(s)
	if s.Spec.Type == core.ServiceTypeExternalName || len(s.Spec.IPFamilies) > 0 {
		return
	}
	single, both := core.IPFamilyPolicySingleStack, core.IPFamilyPolicyRequireDualStack
	switch {
	case s.Spec.ClusterIP != core.ClusterIPNone:
		for _, ip := range s.Spec.ClusterIPs {
			if addr, err := parse(ip); err == nil {
				s.Spec.IPFamilies = append(s.Spec.IPFamilies, familyOf(addr))
			}
		}
		switch len(s.Spec.IPFamilies) {
		case 1:
			s.Spec.IPFamilyPolicy = &single
		case 2:
			s.Spec.IPFamilyPolicy = &both
		}
	case len(s.Spec.Selector) == 0:
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &both, []core.IPFamily{primary, otherFamily(primary)}
	default:
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &single, []core.IPFamily{primary}
	}
}

// dropInternalPolicy takes a policy for traffic inside the cluster from a
// service that has none. Compat: upstream stores it and shows the service
// without it. A value that is no policy stays for validation to refuse.
func dropInternalPolicy(s *core.Service) {
	p := s.Spec.InternalTrafficPolicy
	if s.Spec.Type == core.ServiceTypeExternalName && p != nil && (*p == core.ServiceInternalTrafficPolicyCluster || *p == core.ServiceInternalTrafficPolicyLocal) {
		s.Spec.InternalTrafficPolicy = nil
	}
}

// alignAddresses makes the list of addresses follow the single one, for clients
// that know only that. Where it cannot tell what is meant, validation will
// refuse the pair. old is nil for a creation.
func alignAddresses(s, old *core.Service) {
	if old == nil {
		if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		}
		return
	}
	sameOne := s.Spec.ClusterIP == old.Spec.ClusterIP
	if sameOne && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
	}
	if sameOne || !slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		return
	}
	if s.Spec.ClusterIP == "" {
		s.Spec.ClusterIPs = nil
	} else {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
}

// carryOver gives an updated service the allocated values that it leaves open,
// so that what was created can be sent again as it was.
func carryOver(s, old *core.Service) {
	if s.Spec.Type != core.ServiceTypeExternalName && old.Spec.Type != core.ServiceTypeExternalName {
		if s.Spec.ClusterIP == "" {
			s.Spec.ClusterIP = old.Spec.ClusterIP
		}
		if len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
	}
	if wantsPorts(s) && wantsPorts(old) {
		carryPorts(s.Spec.Ports, old.Spec.Ports)
	}
	if needsHealthPort(s) && needsHealthPort(old) && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

// carryPorts matches ports by name. A node port that the new service already
// has somewhere is not given a second time.
func carryPorts(ports, old []core.ServicePort) {
	had := map[string]int32{}
	kept := map[int32]bool{}
	for _, o := range old {
		had[o.Name] = o.NodePort
		for _, p := range ports {
			if p.NodePort == o.NodePort {
				kept[o.NodePort] = true
			}
		}
	}
	for i := range ports {
		if p := &ports[i]; p.NodePort == 0 && !kept[had[p.Name]] {
			p.NodePort = had[p.Name]
		}
	}
}
