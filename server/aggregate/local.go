package aggregate

import (
	"context"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"setpoint.dev/setpoint/crd"
	"setpoint.dev/setpoint/kinds"
)

// Managed is the label of APIServices that the server makes by itself: once,
// when it starts, or, with "true", for as long as it runs.
const (
	Managed = crd.Automanaged
	onStart = "onstart"
	always  = "true"
)

// priority is a group version's place: higher ones come first.
type priority struct{ group, version int32 }

// priorities are upstream's. A group version that is not here is not
// registered when the server starts.
var priorities = map[schema.GroupVersion]priority{
	{Group: "", Version: "v1"}:                                   {18000, 1},
	{Group: "apps", Version: "v1"}:                               {17800, 15},
	{Group: "events.k8s.io", Version: "v1"}:                      {17750, 15},
	{Group: "authentication.k8s.io", Version: "v1"}:              {17700, 15},
	{Group: "authorization.k8s.io", Version: "v1"}:               {17600, 15},
	{Group: "autoscaling", Version: "v2"}:                        {17500, 30},
	{Group: "autoscaling", Version: "v1"}:                        {17500, 15},
	{Group: "batch", Version: "v1"}:                              {17400, 15},
	{Group: "certificates.k8s.io", Version: "v1"}:                {17300, 15},
	{Group: "networking.k8s.io", Version: "v1"}:                  {17200, 15},
	{Group: "policy", Version: "v1"}:                             {17100, 15},
	{Group: "rbac.authorization.k8s.io", Version: "v1"}:          {17000, 15},
	{Group: "storage.k8s.io", Version: "v1"}:                     {16800, 15},
	{Group: "admissionregistration.k8s.io", Version: "v1"}:       {16700, 15},
	{Group: "admissionregistration.k8s.io", Version: "v1alpha1"}: {16700, 9},
	{Group: "apiextensions.k8s.io", Version: "v1"}:               {16700, 15},
	{Group: "apiextensions.k8s.io", Version: "v1beta1"}:          {16700, 9},
	{Group: "scheduling.k8s.io", Version: "v1"}:                  {16600, 15},
	{Group: "coordination.k8s.io", Version: "v1"}:                {16500, 15},
	{Group: "node.k8s.io", Version: "v1"}:                        {16300, 15},
	{Group: "discovery.k8s.io", Version: "v1"}:                   {16200, 15},
	{Group: "resource.k8s.io", Version: "v1"}:                    {16200, 21},
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}:       {16100, 21},
	{Group: "storagemigration.k8s.io", Version: "v1beta1"}:       {15800, 9},
	{Group: kinds.MetricsGroup, Version: "v1beta1"}:              {100, 100},
}

// priority is a place in discovery, which APIServices themselves lead.
func (l local) priority() priority {
	if l.Group == apiregistrationv1.GroupName {
		return priority{20001, 0}
	}
	if p, ok := priorities[l.GroupVersion]; ok {
		return p
	}
	if l.custom {
		return priority{crd.GroupPriority, crd.VersionPriority}
	}
	return priority{1000, 15}
}

// local is a group version that is served here.
type local struct {
	schema.GroupVersion
	custom bool // it is of custom kinds alone
}

// localVersions are the group versions of a list, in its order.
func localVersions(list *kinds.List) []local {
	var all []local
	known := map[schema.GroupVersion]bool{}
	for _, r := range list.All() {
		for _, v := range r.Versions {
			if gv := (schema.GroupVersion{Group: r.Group, Version: v}); !known[gv] {
				known[gv] = true
				all = append(all, local{gv, r.Custom != nil})
			}
		}
	}
	return all
}

// Local returns the APIServices of what is served here, as they are made on an
// empty store.
func Local(list *kinds.List) []*apiregistrationv1.APIService {
	var all []*apiregistrationv1.APIService
	for _, gv := range localVersions(list) {
		if gv.custom {
			all = append(all, crd.Registration(gv.GroupVersion))
			continue
		}
		p, ok := priorities[gv.GroupVersion]
		if !ok {
			continue
		}
		labels := map[string]string{Managed: onStart}
		if gv.Group == kinds.MetricsGroup {
			labels = nil // who brings a metrics-server may have it for good
		}
		all = append(all, &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group, Labels: labels},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: p.group, VersionPriority: p.version,
			},
			Status: apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{
				helper.NewLocalAvailableAPIServiceCondition(),
			}},
		})
	}
	return all
}

// Missing returns those of want that are not among have.
func Missing(want, have []*apiregistrationv1.APIService) []*apiregistrationv1.APIService {
	return slices.DeleteFunc(slices.Clone(want), func(w *apiregistrationv1.APIService) bool {
		return slices.ContainsFunc(have, func(h *apiregistrationv1.APIService) bool { return h.Name == w.Name })
	})
}

// Restore brings the APIServices that the server manages, among have, back to
// want: those with another spec are changed, those of group versions that are
// no longer served are deleted. Others are left alone, and so is what has
// changed or gone meanwhile.
func (a *Aggregator) Restore(ctx context.Context, want, have []*apiregistrationv1.APIService) error {
	for _, h := range have {
		if by := h.Labels[Managed]; by != onStart && by != always {
			continue
		}
		var err error
		i := slices.IndexFunc(want, func(w *apiregistrationv1.APIService) bool { return w.Name == h.Name })
		switch {
		case i < 0:
			err = a.write(ctx, http.MethodDelete, h.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(h.UID))})
		case !equalSpecs(h, want[i]):
			changed := h.DeepCopy()
			changed.Spec = want[i].Spec
			err = a.write(ctx, http.MethodPut, h.Name, changed)
		}
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
