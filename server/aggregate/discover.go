package aggregate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	clientdiscovery "k8s.io/client-go/discovery"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"setpoint.dev/setpoint/crd"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/server/discovery"
)

// found is what a server was seen to serve for one group version. The zero
// value is that of a server that has not answered.
type found struct {
	// fresh says that the server has answered; without that nothing is known.
	fresh    bool
	etag     string
	resource []apidiscovery.APIResourceDiscovery
	// specs are the URLs of the server's OpenAPI documents of version 3 by what
	// follows /openapi/v3/; converted says that there are none, so they come from
	// version 2.
	specs     map[string]string
	converted bool
}

func (f found) same(other found) bool {
	return f.fresh == other.fresh && apiequality.Semantic.DeepEqual(f.resource, other.resource)
}

// discover asks a server what it serves.
func (b *backend) discover(ctx context.Context, before found) found {
	now, err := b.resources(ctx, before)
	if err != nil {
		b.of.Logger.Debug("an API server does not say what it serves", "apiservice", b.service.Name, "error", err)
		return found{}
	}
	now.fresh = true
	now.specs, now.converted = b.index(ctx)
	return now
}

// resources reads the aggregated document, or the group version's own where
// there is none.
func (b *backend) resources(ctx context.Context, before found) (found, error) {
	header := http.Header{"Accept": {clientdiscovery.AcceptV2 + "," + clientdiscovery.AcceptV2Beta1}}
	if before.etag != "" {
		header.Set("If-None-Match", before.etag)
	}
	doc, err := b.fetch(ctx, "/apis", discoverer, header)
	gv := groupVersion(b.service)
	switch {
	case err != nil:
		return found{}, err
	case doc.code == http.StatusNotModified && before.fresh:
		return before, nil
	case doc.code == http.StatusServiceUnavailable:
		return found{}, fmt.Errorf("/apis: status %d", doc.code)
	case doc.code == http.StatusOK && isAggregated(doc.header.Get("Content-Type")):
		list := apidiscovery.APIGroupDiscoveryList{}
		if err := json.Unmarshal(doc.body, &list); err != nil {
			return found{}, err
		}
		return found{resource: resourcesOf(list, gv), etag: doc.header.Get("Etag")}, nil
	}
	if doc, err = b.fetch(ctx, root(gv), discoverer, http.Header{"Accept": {"application/json"}}); err != nil {
		return found{}, err
	}
	if doc.code != http.StatusOK {
		return found{}, fmt.Errorf("%s: status %d", root(gv), doc.code)
	}
	list := metav1.APIResourceList{}
	if err := json.Unmarshal(doc.body, &list); err != nil {
		return found{}, err
	}
	resources, err := fromList(list.APIResources)
	return found{resource: resources}, err
}

// isAggregated says that a document has all groups in it. Both versions of it
// look the same in JSON.
func isAggregated(contentType string) bool {
	media, params, err := mime.ParseMediaType(contentType)
	return err == nil && media == "application/json" && params["g"] == apidiscovery.GroupName && params["as"] == "APIGroupDiscoveryList" &&
		(params["v"] == "v2" || params["v"] == "v2beta1")
}

// resourcesOf picks a group version out of a server's document.
func resourcesOf(list apidiscovery.APIGroupDiscoveryList, gv schema.GroupVersion) []apidiscovery.APIResourceDiscovery {
	for _, g := range list.Items {
		for _, v := range g.Versions {
			if g.Name != gv.Group || v.Version != gv.Version {
				continue
			}
			for i := range v.Resources {
				fillKind(&v.Resources[i].ResponseKind)
				for j := range v.Resources[i].Subresources {
					fillKind(&v.Resources[i].Subresources[j].ResponseKind)
				}
			}
			return v.Resources
		}
	}
	return nil
}

// fillKind is for old clients that do not expect a kind to be missing.
func fillKind(kind **metav1.GroupVersionKind) {
	if *kind == nil {
		*kind = &metav1.GroupVersionKind{}
	}
}

// fromList turns the older form of what is served into the aggregated one.
func fromList(list []metav1.APIResource) ([]apidiscovery.APIResourceDiscovery, error) {
	var all []apidiscovery.APIResourceDiscovery
	at := map[string]int{}
	scope := func(r metav1.APIResource) apidiscovery.ResourceScope {
		if r.Namespaced {
			return apidiscovery.ScopeNamespace
		}
		return apidiscovery.ScopeCluster
	}
	kind := func(r metav1.APIResource) *metav1.GroupVersionKind {
		return &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
	}
	for _, r := range list {
		if strings.Contains(r.Name, "/") {
			continue
		}
		at[r.Name] = len(all)
		all = append(all, apidiscovery.APIResourceDiscovery{
			Resource: r.Name, Scope: scope(r), ResponseKind: kind(r), Verbs: r.Verbs,
			ShortNames: r.ShortNames, Categories: r.Categories, SingularResource: r.SingularName,
		})
	}
	for _, r := range list {
		name, sub, is := strings.Cut(r.Name, "/")
		if !is {
			continue
		}
		i, ok := at[name]
		if !ok {
			i = len(all)
			at[name] = i
			all = append(all, apidiscovery.APIResourceDiscovery{Resource: name, Scope: scope(r), ResponseKind: &metav1.GroupVersionKind{}})
		}
		if all[i].Scope != scope(r) {
			return nil, fmt.Errorf("%s and %s differ in scope", name, r.Name)
		}
		s := apidiscovery.APISubresourceDiscovery{Subresource: sub, Verbs: r.Verbs, ResponseKind: &metav1.GroupVersionKind{}}
		if r.Kind != "" {
			s.ResponseKind = kind(r)
		}
		all[i].Subresources = append(all[i].Subresources, s)
	}
	return all, nil
}

// Joined is what discovery is to tell of APIServices. It is the same value as
// long as nothing changes, and nil before any APIService is known.
func (a *Aggregator) Joined() *discovery.Joined {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.Kinds()
	if (a.joined == nil || a.joinedOf != list) && len(a.entries) > 0 {
		a.joined, a.joinedOf = a.joinLocked(list), list
	}
	return a.joined
}

// registeredLocked are the APIServices as they are about to be: those of custom
// kinds come and go with their definitions, of which news comes later.
func (a *Aggregator) registeredLocked(list *kinds.List) []*apiregistrationv1.APIService {
	custom := map[string]bool{}
	var all []*apiregistrationv1.APIService
	for _, gv := range localVersions(list) {
		if !gv.custom {
			continue
		}
		s := crd.Registration(gv.GroupVersion)
		custom[s.Name] = true
		if a.entries[s.Name] == nil {
			all = append(all, s)
		}
	}
	for name, e := range a.entries {
		if custom[name] || e.service.Labels[Managed] != always {
			all = append(all, e.service)
		}
	}
	return all
}

func (a *Aggregator) joinLocked(list *kinds.List) *discovery.Joined {
	j := &discovery.Joined{Listed: []discovery.GroupVersions{{Group: apiregistrationv1.GroupName, Versions: []string{"v1"}}}}
	for _, e := range a.entries {
		if e.backend == nil {
			continue
		}
		if j.Remote == nil {
			j.Remote = map[schema.GroupVersion]apidiscovery.APIVersionDiscovery{}
		}
		v := apidiscovery.APIVersionDiscovery{Version: e.service.Spec.Version, Resources: e.found.resource, Freshness: apidiscovery.DiscoveryFreshnessStale}
		if e.found.fresh {
			v.Freshness = apidiscovery.DiscoveryFreshnessCurrent
		}
		j.Remote[groupVersion(e.service)] = v
	}
	for _, group := range helper.SortedByGroupAndVersion(a.registeredLocked(list)) {
		g := discovery.GroupVersions{Group: group[0].Spec.Group}
		if g.Group == "" || g.Group == apiregistrationv1.GroupName {
			continue
		}
		for _, s := range group {
			g.Versions = append(g.Versions, s.Spec.Version)
		}
		j.Listed = append(j.Listed, g)
	}
	if j.Remote != nil {
		j.Merged = a.mergeLocked()
	}
	return j
}

// mergeLocked is the order of all group versions, those served here by
// upstream's priorities and the others by what their APIServices say.
//
// Compat: a group's priority is the highest of its versions'.
func (a *Aggregator) mergeLocked() []discovery.GroupVersions {
	priorities := map[schema.GroupVersion]priority{}
	for _, gv := range localVersions(a.Kinds()) {
		priorities[gv.GroupVersion] = gv.priority()
	}
	for _, e := range a.entries {
		if e.backend != nil {
			priorities[groupVersion(e.service)] = priority{e.service.Spec.GroupPriorityMinimum, e.service.Spec.VersionPriority}
		}
	}
	highest := map[string]int32{}
	at := map[string]int{}
	var all []discovery.GroupVersions
	for gv, p := range priorities {
		i, known := at[gv.Group]
		if !known {
			i = len(all)
			at[gv.Group] = i
			all = append(all, discovery.GroupVersions{Group: gv.Group})
		}
		all[i].Versions = append(all[i].Versions, gv.Version)
		highest[gv.Group] = max(highest[gv.Group], p.group)
	}
	for _, g := range all {
		slices.SortFunc(g.Versions, func(x, y string) int {
			of := func(v string) int32 { return priorities[schema.GroupVersion{Group: g.Group, Version: v}].version }
			return cmp.Or(cmp.Compare(of(y), of(x)), version.CompareKubeAwareVersionStrings(y, x))
		})
	}
	slices.SortFunc(all, func(x, y discovery.GroupVersions) int {
		return cmp.Or(cmp.Compare(highest[y.Group], highest[x.Group]), cmp.Compare(x.Group, y.Group))
	})
	return all
}
