package nodelife

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/topology"
)

// excluded is a label of nodes that are not counted. Compat: as upstream.
const excluded = "node.kubernetes.io/exclude-disruption"

// census is how many nodes of a zone are well and unwell.
type census struct{ well, unwell int }

// count counts the nodes of each zone.
func count(nodes []*corev1.Node, unwell func(*corev1.Node) bool) map[string]census {
	zones := map[string]census{}
	for _, n := range nodes {
		if _, has := n.Labels[excluded]; has {
			continue
		}
		zone := topology.GetZoneKey(n)
		c := zones[zone]
		if unwell(n) {
			c.unwell++
		} else {
			c.well++
		}
		zones[zone] = c
	}
	return zones
}

// rate is how many nodes of a zone are given up in a second. Compat: a zone of
// which nobody is well is taken for lost, and one of which many are not for one
// that is cut off.
func (s Settings) rate(c census) float64 {
	partly := c.well > 0 && c.unwell > 2 && float64(c.unwell)/float64(c.well+c.unwell) >= s.Unhealthy
	switch {
	case !partly:
		return s.Rate
	case c.well+c.unwell > s.Large:
		return s.Reduced
	default:
		return 0
	}
}

// allUnwell says that there are nodes, and none is well.
func allUnwell(zones map[string]census) bool {
	for _, c := range zones {
		if c.well > 0 {
			return false
		}
	}
	return len(zones) > 0
}

// zones keep the pace at which nodes are given up. Their lock is taken before that
// of what is heard of nodes.
type zones struct {
	settings Settings

	mu      sync.Mutex // guards the fields below
	looked  time.Time
	counted map[string]census
	silent  bool                 // as of looked
	given   map[string]time.Time // when a node of a zone was last given up
}

// lookLocked counts the nodes, if that has not been done lately, and says whether all
// are unwell, and whether that has just ended.
func (z *zones) lookLocked(nodes []*corev1.Node, unwell func(*corev1.Node) bool, now time.Time) (allSilent, ended bool) {
	if z.counted == nil || now.Sub(z.looked) >= lookEvery {
		// While nobody is well everybody is looked at; what is older says nothing.
		before := z.silent && now.Sub(z.looked) <= 2*lookEvery
		z.counted, z.looked = count(nodes, unwell), now
		z.silent = allUnwell(z.counted)
		ended = before && !z.silent
	}
	return z.silent, ended
}

// mayLocked says whether a node of a zone may be given up now, and if not, when to ask
// again.
func (z *zones) mayLocked(zone string, now time.Time) (bool, time.Duration) {
	rate := z.settings.rate(z.counted[zone])
	if rate <= 0 {
		return false, lookEvery
	}
	wait := z.given[zone].Add(time.Duration(float64(time.Second) / rate)).Sub(now)
	if wait > 0 {
		return false, min(wait, lookEvery)
	}
	return true, 0
}
