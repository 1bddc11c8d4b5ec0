package endpoints

import (
	"maps"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	endpointslice "k8s.io/endpointslice"
	endpointutil "k8s.io/endpointslice/util"
	endpointsv1 "k8s.io/kubernetes/pkg/api/v1/endpoints"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper"
	"k8s.io/utils/net"

	"setpoint.dev/setpoint/controller/pods"
)

// Compat: the label that says who made Endpoints, the most addresses that they
// have, and the annotation's word for those that would have more are upstream's.
const (
	managedBy   = "endpoints.kubernetes.io/managed-by"
	manager     = "endpoint-controller"
	capacity    = 1000
	truncatedIs = "truncated"
)

// Observed is a service that selects, its pods, and what is written down of it:
// Current is nil when nothing is. Changed is when the last change happened that
// is not written down yet; zero when there is none.
type Observed struct {
	Service *corev1.Service
	Pods    []*corev1.Pod
	Current *corev1.Endpoints
	Changed time.Time
}

// Plan is what to write: one of the two, or nothing.
type Plan struct{ Create, Update *corev1.Endpoints }

// plan says what the Endpoints of a service should be, where they are not.
func plan(seen Observed) Plan {
	wanted := endpointsv1.RepackSubsets(subsets(seen.Service, seen.Pods))
	if seen.Current != nil && right(seen.Current, seen.Service, wanted) {
		return Plan{}
	}
	next := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: seen.Service.Name, Namespace: seen.Service.Namespace}}
	if seen.Current != nil {
		next = seen.Current.DeepCopy()
	}
	next.Subsets = wanted
	next.Labels = labelsOf(seen.Service)
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	delete(next.Annotations, corev1.EndpointsLastChangeTriggerTime)
	if !seen.Changed.IsZero() {
		next.Annotations[corev1.EndpointsLastChangeTriggerTime] = seen.Changed.UTC().Format(time.RFC3339Nano)
	}
	delete(next.Annotations, corev1.EndpointsOverCapacity)
	if truncate(next.Subsets) {
		next.Annotations[corev1.EndpointsOverCapacity] = truncatedIs
	}
	if seen.Current == nil {
		return Plan{Create: next}
	}
	return Plan{Update: next}
}

// labelsOf are those of a service's Endpoints: its own, who made them, and that
// it has no address if so.
func labelsOf(s *corev1.Service) map[string]string {
	of := maps.Clone(s.Labels)
	if of == nil {
		of = map[string]string{}
	}
	delete(of, corev1.IsHeadlessService)
	if !helper.IsServiceIPSet(s) {
		of[corev1.IsHeadlessService] = ""
	}
	of[managedBy] = manager
	return of
}

// subsets are the addresses of pods, one by one, by the service's ports.
func subsets(s *corev1.Service, of []*corev1.Pod) []corev1.EndpointSubset {
	var all []corev1.EndpointSubset
	for _, p := range of {
		at := address(s, p)
		if at == nil || !endpointutil.ShouldPodBeInEndpoints(p, s.Spec.PublishNotReadyAddresses) {
			continue
		}
		ready := s.Spec.PublishNotReadyAddresses || pods.Ready(p)
		if len(s.Spec.Ports) == 0 && s.Spec.ClusterIP == corev1.ClusterIPNone {
			all = append(all, subset(*at, ready))
		}
		for i := range s.Spec.Ports {
			port := &s.Spec.Ports[i]
			number, err := endpointslice.FindPort(p, port)
			if err != nil {
				continue // the pod has no port of that name
			}
			all = append(all, subset(*at, ready, corev1.EndpointPort{
				Name: port.Name, Port: int32(number), Protocol: port.Protocol, AppProtocol: port.AppProtocol,
			}))
		}
	}
	return all
}

func subset(at corev1.EndpointAddress, ready bool, ports ...corev1.EndpointPort) corev1.EndpointSubset {
	s := corev1.EndpointSubset{Ports: ports}
	if ready {
		s.Addresses = []corev1.EndpointAddress{at}
	} else {
		s.NotReadyAddresses = []corev1.EndpointAddress{at}
	}
	return s
}

// address is where a pod serves, in the service's first family; nil when it has
// no address of that family.
func address(s *corev1.Service, p *corev1.Pod) *corev1.EndpointAddress {
	want := family(s, p)
	for _, at := range p.Status.PodIPs {
		ip := net.ParseIPSloppy(at.IP) // Compat: forms that are no longer accepted are written anew
		if net.IsIPv6(ip) != (want == corev1.IPv6Protocol) {
			continue
		}
		found := &corev1.EndpointAddress{
			IP: ip.String(), NodeName: &p.Spec.NodeName,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		}
		if endpointutil.ShouldSetHostname(p, s) {
			found.Hostname = p.Spec.Hostname
		}
		return found
	}
	return nil
}

// family is that of a service's addresses, guessed where it does not say.
func family(s *corev1.Service, p *corev1.Pod) corev1.IPFamily {
	switch {
	case len(s.Spec.IPFamilies) > 0:
		return s.Spec.IPFamilies[0]
	case helper.IsServiceIPSet(s) && net.IsIPv6String(s.Spec.ClusterIP),
		!helper.IsServiceIPSet(s) && net.IsIPv6String(p.Status.PodIP):
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// equal compares what endpoints tell. Compat: earlier releases wrote at which
// revision a pod was; it is not compared.
var equal = conversion.EqualitiesOrDie(func(a, b corev1.ObjectReference) bool {
	a.ResourceVersion, b.ResourceVersion = "", ""
	return a == b
})

// right says that Endpoints are what they should be.
func right(have *corev1.Endpoints, s *corev1.Service, wanted []corev1.EndpointSubset) bool {
	if _, over := have.Annotations[corev1.EndpointsOverCapacity]; over || count(have.Subsets) > capacity || !labelled(have, s) {
		return false
	}
	return equal.DeepEqual(have.Subsets, wanted) || equal.DeepEqual(endpointsv1.RepackSubsets(have.Subsets), wanted)
}

// labelled says that Endpoints have the labels of their service. Compat: the one
// that says that it has no address is not looked at.
func labelled(e *corev1.Endpoints, s *corev1.Service) bool {
	have, want := maps.Clone(e.Labels), labelsOf(s)
	delete(have, corev1.IsHeadlessService)
	delete(want, corev1.IsHeadlessService)
	return maps.Equal(have, want)
}

func count(of []corev1.EndpointSubset) int {
	n := 0
	for _, s := range of {
		n += len(s.Addresses) + len(s.NotReadyAddresses)
	}
	return n
}

// truncate leaves as many addresses as there may be, ready ones first, of each
// subset in proportion. It says whether there were too many.
func truncate(of []corev1.EndpointSubset) bool {
	ready := 0
	for _, s := range of {
		ready += len(s.Addresses)
	}
	total := count(of)
	if total <= capacity {
		return false
	}
	pick := func(s *corev1.EndpointSubset) *[]corev1.EndpointAddress { return &s.NotReadyAddresses }
	room, among := capacity-ready, total-ready
	if ready > capacity {
		pick = func(s *corev1.EndpointSubset) *[]corev1.EndpointAddress {
			s.NotReadyAddresses = []corev1.EndpointAddress{}
			return &s.Addresses
		}
		room, among = capacity, ready
	}
	left := room
	for i := range of {
		some := pick(&of[i])
		share := int(math.Ceil(float64(len(*some)) / float64(among) * float64(room)))
		*some = (*some)[:min(len(*some), share, left)]
		left -= len(*some)
	}
	return true
}
