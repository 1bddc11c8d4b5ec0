package filter

// All are the filters, in the order in which they are asked. Compat: it is
// upstream's order.
func All() []Filter {
	return []Filter{
		unschedulable,
		nodeName,
		taints,
		nodeAffinity,
		ports,
		resources,
		volumeRestrictions,
		volumeLimits,
		volumeBinding,
		volumeZone,
		spread,
		podAffinity,
		resourceClaims,
	}
}
