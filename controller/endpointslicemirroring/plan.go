package endpointslicemirroring

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	endpointutil "k8s.io/endpointslice/util"
	endpointsv1 "k8s.io/kubernetes/pkg/api/v1/endpoints"
	"k8s.io/kubernetes/pkg/apis/discovery/validation"
	"k8s.io/utils/net"

	"setpoint.dev/setpoint/controller/services"
)

// perSubset is how many addresses of one subset are repeated. Compat: as
// upstream.
const perSubset = 1000

var kind = corev1.SchemeGroupVersion.WithKind("Endpoints")

// Plan is what to write, and what to warn of.
type Plan struct {
	services.Changes
	Events []Event
}

// Event is a warning about the Endpoints.
type Event struct{ Reason, Message string }

// place is what all endpoints of a slice have in common.
type place struct {
	family discoveryv1.AddressType
	ports  endpointutil.PortMapKey
}

// wanted is what one place should have.
type wanted struct {
	ports     []discoveryv1.EndpointPort
	endpoints []discoveryv1.Endpoint
}

// plan says which slices repeat endpoints, where those that there are do not. A
// slice that is not needed is used for what is.
func plan(of *corev1.Endpoints, have []*discoveryv1.EndpointSlice) Plan {
	var p Plan
	wants, events := read(of)
	p.Events = events
	by := map[place][]*discoveryv1.EndpointSlice{}
	for _, s := range have {
		at := place{s.AddressType, endpointutil.NewPortMapKey(slices.Clone(s.Ports))}
		by[at] = append(by[at], s)
	}
	var missing []*discoveryv1.EndpointSlice
	for _, at := range inOrder(wants) {
		made := slice(of, at, wants[at])
		if len(by[at]) == 0 {
			missing = append(missing, made)
			continue
		}
		first := by[at][0]
		if !same(of, first, made) {
			made.Name, made.GenerateName = first.Name, ""
			p.Update = append(p.Update, made)
		}
		by[at] = by[at][1:]
	}
	for _, at := range inOrder(by) {
		p.Delete = append(p.Delete, by[at]...)
	}
	p.reuse(missing)
	if of.DeletionTimestamp != nil {
		p.Create = nil // they would be the garbage collector's at once
	}
	return p
}

// inOrder are the places of a map in an order that does not change.
func inOrder[T any](of map[place]T) []place {
	return slices.SortedFunc(maps.Keys(of), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.ports, b.ports))
	})
}

// reuse has slices that would be deleted become those that are missing, family
// by family; the family of a slice never changes.
func (p *Plan) reuse(missing []*discoveryv1.EndpointSlice) {
	for _, s := range missing {
		i := slices.IndexFunc(p.Delete, func(d *discoveryv1.EndpointSlice) bool { return d.AddressType == s.AddressType })
		if i < 0 {
			p.Create = append(p.Create, s)
			continue
		}
		s.Name, s.GenerateName = p.Delete[i].Name, ""
		p.Update = append(p.Update, s)
		p.Delete = slices.Delete(p.Delete, i, i+1)
	}
}

// read returns what each place should have, and warnings of what is left out.
func read(of *corev1.Endpoints) (map[place]wanted, []Event) {
	wants := map[place]wanted{}
	invalid, skipped := 0, 0
	for _, subset := range endpointsv1.RepackSubsets(of.Subsets) {
		ports := portsOf(subset.Ports)
		key := endpointutil.NewPortMapKey(ports)
		added := 0
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for i := range addresses {
				if added >= perSubset {
					return
				}
				family, e, ok := endpoint(&addresses[i], ready)
				if !ok {
					invalid++
					continue
				}
				w := wants[place{family, key}]
				w.ports, w.endpoints = ports, append(w.endpoints, e)
				wants[place{family, key}] = w
				added++
			}
		}
		add(subset.Addresses, true)
		add(subset.NotReadyAddresses, false)
		skipped += len(subset.Addresses) + len(subset.NotReadyAddresses) - added
	}
	var events []Event
	if invalid > 0 {
		events = append(events, Event{"InvalidIPAddress", fmt.Sprintf("Skipped %d invalid IP addresses when mirroring to EndpointSlices", invalid)})
	}
	if skipped > invalid {
		events = append(events, Event{"TooManyAddressesToMirror", fmt.Sprintf("A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped", perSubset, skipped)})
	}
	return wants, events
}

func portsOf(some []corev1.EndpointPort) []discoveryv1.EndpointPort {
	ports := make([]discoveryv1.EndpointPort, len(some))
	for i, p := range some {
		ports[i] = discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol}
	}
	return ports
}

// endpoint is an address as slices have it; not ok when it is none.
func endpoint(at *corev1.EndpointAddress, ready bool) (family discoveryv1.AddressType, e discoveryv1.Endpoint, ok bool) {
	ip := net.ParseIPSloppy(at.IP) // Compat: forms that are no longer accepted are written anew
	if ip == nil {
		return "", discoveryv1.Endpoint{}, false
	}
	family = discoveryv1.AddressTypeIPv4
	if ip.To4() == nil {
		family = discoveryv1.AddressTypeIPv6
	}
	e = discoveryv1.Endpoint{
		Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: at.TargetRef, NodeName: at.NodeName,
	}
	if at.Hostname != "" {
		e.Hostname = &at.Hostname
	}
	return family, e, true
}

// slice is a new one.
func slice(of *corev1.Endpoints, at place, w wanted) *discoveryv1.EndpointSlice {
	labels := maps.Clone(of.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[discoveryv1.LabelServiceName], labels[discoveryv1.LabelManagedBy] = of.Name, manager
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: prefix(of.Name), Namespace: of.Namespace, Labels: labels, Annotations: annotations(of),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(of, kind)},
		},
		AddressType: at.family, Ports: w.ports, Endpoints: w.endpoints,
	}
}

// prefix is how names of slices begin.
func prefix(name string) string {
	if len(validation.ValidateEndpointSliceName(name+"-", true)) > 0 {
		return name
	}
	return name + "-"
}

// annotations are those that slices repeat.
func annotations(of *corev1.Endpoints) map[string]string {
	kept := map[string]string{}
	for k, v := range of.Annotations {
		if k != corev1.EndpointsLastChangeTriggerTime && k != corev1.LastAppliedConfigAnnotation {
			kept[k] = v
		}
	}
	return kept
}

// same says that a slice is what it should be. The order of endpoints does not
// matter.
func same(of *corev1.Endpoints, have, want *discoveryv1.EndpointSlice) bool {
	was := func(r metav1.OwnerReference) bool { return r.Kind == kind.Kind && r.Name == of.Name && r.UID != of.UID }
	if !apiequality.Semantic.DeepEqual(have.Labels, want.Labels) || !apiequality.Semantic.DeepEqual(have.Annotations, want.Annotations) ||
		slices.ContainsFunc(have.OwnerReferences, was) || len(have.Endpoints) != len(want.Endpoints) {
		return false
	}
	return slices.EqualFunc(sorted(have.Endpoints), sorted(want.Endpoints), func(a, b discoveryv1.Endpoint) bool {
		return strings.Join(a.Addresses, ",") == strings.Join(b.Addresses, ",") && apiequality.Semantic.DeepEqual(a.Hostname, b.Hostname) && endpointutil.EndpointsEqualBeyondHash(&a, &b)
	})
}

func sorted(of []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	return slices.SortedStableFunc(slices.Values(of), func(a, b discoveryv1.Endpoint) int {
		return slices.Compare(a.Addresses, b.Addresses)
	})
}
