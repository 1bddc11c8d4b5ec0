package endpointslice

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clients "k8s.io/client-go/kubernetes/typed/discovery/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	upstream "k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	endpointutil "k8s.io/endpointslice/util"

	"setpoint.dev/setpoint/controller/services"
)

// perSlice is how many endpoints a slice has at most. Compat: as upstream.
const perSlice = 100

// Observed is a service that selects, its pods, the slices that it has and the
// nodes that there are. Zones remembers how endpoints were shared out. Changed
// is when the last change happened that is not written down yet; zero when
// there is none.
type Observed struct {
	Service *corev1.Service
	Pods    []*corev1.Pod
	Slices  []*discoveryv1.EndpointSlice
	Nodes   listers.NodeLister
	Zones   *topologycache.TopologyCache
	Changed time.Time
}

// Plan is what to write, and what to say of it.
type Plan struct {
	services.Changes
	Events []Event
}

// Event is one about the service.
type Event struct{ Type, Reason, Message string }

// plan says which slices a service should have, where it has others. The error
// says which pods are left out because nobody knows their node; they are looked
// at again later.
//
// How endpoints are laid out in slices is upstream's library's to decide. It is
// given a notebook for a client, and so decides without acting.
func plan(seen Observed) (Plan, error) {
	n := &notebook{}
	library := upstream.NewReconciler(n, seen.Nodes, perSlice, endpointutil.NewEndpointSliceTracker(), seen.Zones, n, manager, upstream.WithPreferSameTrafficDistributionEnabled(true))
	err := library.Reconcile(logr.Discard(), seen.Service, seen.Pods, seen.Slices, seen.Changed)
	// Families and names come in any order, which a plan does not.
	byFamily := func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.AddressType, b.AddressType) }
	slices.SortStableFunc(n.plan.Create, byFamily)
	slices.SortStableFunc(n.plan.Update, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Or(byFamily(a, b), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(n.plan.Delete, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	return n.plan, err
}

// notebook is a client and a recorder that write everything down and do
// nothing. It is asked for slices alone.
type notebook struct {
	kubernetes.Interface
	record.EventRecorder
	plan Plan
}

// DiscoveryV1 implements kubernetes.Interface.
func (n *notebook) DiscoveryV1() clients.DiscoveryV1Interface { return group{n: n} }

// Event implements record.EventRecorder.
func (n *notebook) Event(_ runtime.Object, kind, reason, message string) {
	n.plan.Events = append(n.plan.Events, Event{kind, reason, message})
}

type group struct {
	clients.DiscoveryV1Interface
	n *notebook
}

// EndpointSlices implements clients.DiscoveryV1Interface.
func (g group) EndpointSlices(string) clients.EndpointSliceInterface { return pages{n: g.n} }

type pages struct {
	clients.EndpointSliceInterface
	n *notebook
}

// Create implements clients.EndpointSliceInterface.
func (p pages) Create(_ context.Context, s *discoveryv1.EndpointSlice, _ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	p.n.plan.Create = append(p.n.plan.Create, s)
	return s, nil
}

// Update implements clients.EndpointSliceInterface.
func (p pages) Update(_ context.Context, s *discoveryv1.EndpointSlice, _ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	p.n.plan.Update = append(p.n.plan.Update, s)
	return s, nil
}

// Delete implements clients.EndpointSliceInterface.
func (p pages) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	p.n.plan.Delete = append(p.n.plan.Delete, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return nil
}
