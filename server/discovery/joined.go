package discovery

import (
	"maps"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersions is a group with its versions, the preferred one first.
type GroupVersions struct {
	Group    string
	Versions []string
}

// Joined is what registrations of group versions, here and at other servers,
// make of discovery. It does not change.
type Joined struct {
	// Listed are the named groups of /apis, in order.
	Listed []GroupVersions
	// Merged are all groups of the aggregated form, in order; nil means those of
	// the list of kinds.
	Merged []GroupVersions
	// Remote are the group versions that other servers serve.
	Remote map[schema.GroupVersion]apidiscovery.APIVersionDiscovery
}

// Join has the documents tell of what is registered, too. It is called before
// the first request; joined returns the same value as long as nothing changes,
// and nil when there is nothing to tell.
func (s *Server) Join(joined func() *Joined) { s.joined = joined }

// listed is a group as its registrations say.
func listed(g GroupVersions) metav1.APIGroup {
	return apiGroup(&group{name: g.Group, versions: g.Versions})
}

// merge puts local groups and other servers' group versions together.
func (j *Joined) merge(local []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
	versions := map[schema.GroupVersion]apidiscovery.APIVersionDiscovery{}
	for _, g := range local {
		for _, v := range g.Versions {
			versions[schema.GroupVersion{Group: g.Name, Version: v.Version}] = v
		}
	}
	maps.Copy(versions, j.Remote)
	var merged []apidiscovery.APIGroupDiscovery
	for _, g := range j.Merged {
		d := apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.Group}}
		for _, version := range g.Versions {
			if v, ok := versions[schema.GroupVersion{Group: g.Group, Version: version}]; ok {
				d.Versions = append(d.Versions, v)
			}
		}
		if len(d.Versions) > 0 {
			merged = append(merged, d)
		}
	}
	return merged
}
