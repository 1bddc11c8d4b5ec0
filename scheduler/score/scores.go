package score

// All are the scores. Compat: order and weights are upstream's.
func All() []Score {
	return []Score{
		{"TaintToleration", 3, beginTaints},
		{"NodeAffinity", 2, beginNodeAffinity},
		{"NodeResourcesFit", 1, beginLeastAllocated},
		{"PodTopologySpread", 2, beginSpread},
		{"InterPodAffinity", 2, beginPodAffinity},
		{"NodeResourcesBalancedAllocation", 1, beginBalanced},
		{"ImageLocality", 1, beginImages},
	}
}
