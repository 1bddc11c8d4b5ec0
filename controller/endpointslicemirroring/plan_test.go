package endpointslicemirroring

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/plantest"
	"setpoint.dev/setpoint/controller/services/servicestest"
)

func TestPlan(t *testing.T) {
	address := func(ips ...string) []corev1.EndpointAddress {
		var all []corev1.EndpointAddress
		for _, ip := range ips {
			all = append(all, corev1.EndpointAddress{IP: ip})
		}
		return all
	}
	http := []corev1.EndpointPort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
	endpoints := func(subsets ...corev1.EndpointSubset) *corev1.Endpoints {
		return &corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "x", corev1.EndpointsLastChangeTriggerTime: "then"}},
			Subsets:    subsets,
		}
	}
	edited := func(e *corev1.Endpoints, edit func(*corev1.Endpoints)) *corev1.Endpoints {
		edit(e)
		return e
	}
	had := func(e *corev1.Endpoints) []*discoveryv1.EndpointSlice {
		made := plan(e, nil).Create
		for i, s := range made {
			s.Name, s.GenerateName = fmt.Sprintf("web-%d", i), ""
		}
		return made
	}
	var many []string
	for i := range 1100 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1))
	}
	one := corev1.EndpointSubset{Ports: http, Addresses: address("10.1.0.1", "10.1.0.2"), NotReadyAddresses: address("10.1.0.3")}
	https := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}}, Addresses: address("10.1.0.1")}
	type seen struct {
		of   *corev1.Endpoints
		have []*discoveryv1.EndpointSlice
	}
	plantest.Cases(t, "plan.txt", map[string]seen{
		"nothing":                          {of: endpoints()},
		"first slice":                      {of: endpoints(one)},
		"two families and sets of ports":   {of: endpoints(https, corev1.EndpointSubset{Ports: http, Addresses: address("10.1.0.1", "fd00::1")})},
		"host names and nodes":             {of: endpoints(corev1.EndpointSubset{Addresses: []corev1.EndpointAddress{{IP: "10.1.0.1", Hostname: "a", NodeName: new("n1")}}})},
		"nothing to do":                    {of: endpoints(one), have: had(endpoints(one))},
		"another address":                  {of: endpoints(corev1.EndpointSubset{Ports: http, Addresses: address("10.1.0.9")}), have: had(endpoints(one))},
		"becomes ready":                    {of: endpoints(corev1.EndpointSubset{Ports: http, Addresses: address("10.1.0.1", "10.1.0.2", "10.1.0.3")}), have: had(endpoints(one))},
		"another label":                    {of: edited(endpoints(one), func(e *corev1.Endpoints) { e.Labels["tier"] = "front" }), have: had(endpoints(one))},
		"another annotation":               {of: edited(endpoints(one), func(e *corev1.Endpoints) { e.Annotations["note"] = "y" }), have: had(endpoints(one))},
		"made anew under its name":         {of: edited(endpoints(one), func(e *corev1.Endpoints) { e.UID = "later" }), have: had(endpoints(one))},
		"other ports: the slice is reused": {of: endpoints(https), have: had(endpoints(one))},
		"a set of ports goes":              {of: endpoints(one), have: had(endpoints(one, https))},
		"all go":                           {of: endpoints(), have: had(endpoints(one))},
		"no address":                       {of: endpoints(corev1.EndpointSubset{Ports: http, Addresses: address("nowhere", "10.1.0.1")})},
		"too many":                         {of: endpoints(corev1.EndpointSubset{Ports: http, Addresses: address(many...)})},
		"on its way out":                   {of: edited(endpoints(one), func(e *corev1.Endpoints) { e.DeletionTimestamp = &metav1.Time{} })},
	}, func(s seen) string {
		p := plan(s.of, s.have)
		text := servicestest.Describe(p.Changes)
		for _, e := range p.Events {
			text += fmt.Sprintf("tell %s: %s\n", e.Reason, e.Message)
		}
		return text
	})
}
