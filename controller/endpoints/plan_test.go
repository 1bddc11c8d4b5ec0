package endpoints

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/controller/plantest"
	"setpoint.dev/setpoint/controller/services/servicestest"
)

func TestPlan(t *testing.T) {
	service, pods := servicestest.Service, servicestest.Pods
	written := func(s *corev1.Service, text string, edits ...func(*corev1.Endpoints)) *corev1.Endpoints {
		e := plan(Observed{Service: s, Pods: pods(text)}).Create
		for _, edit := range edits {
			edit(e)
		}
		return e
	}
	var many strings.Builder
	for i := range 1200 {
		fmt.Fprintf(&many, "p%d 10.1.%d.%d%s\n", i, i/250, i%250+1, []string{" ready", ""}[i%2])
	}
	two := "a 10.1.0.1 ready\nb 10.1.0.2"
	plantest.Cases(t, "plan.txt", map[string]Observed{
		"no pods":                       {Service: service()},
		"ready and not":                 {Service: service(), Pods: pods(two), Changed: time.Date(2030, 1, 1, 0, 0, 0, 5, time.UTC)},
		"not ready, told of":            {Service: service(servicestest.PublishAll), Pods: pods(two)},
		"going":                         {Service: service(), Pods: pods("a 10.1.0.1 ready going")},
		"going, told of":                {Service: service(servicestest.PublishAll), Pods: pods("a 10.1.0.1 ready going")},
		"ended":                         {Service: service(), Pods: pods("a 10.1.0.1 Failed\nb 10.1.0.2 Succeeded")},
		"no address yet":                {Service: service(), Pods: pods("a")},
		"named port, another for each":  {Service: service(servicestest.Named), Pods: pods("a 10.1.0.1 ready port=web:8080\nb 10.1.0.2 ready port=web:8081\nc 10.1.0.3 ready")},
		"headless":                      {Service: service(servicestest.Headless), Pods: pods("a 10.1.0.1 ready hostname=a")},
		"headless without ports":        {Service: service(servicestest.Headless, func(s *corev1.Service) { s.Spec.Ports = nil }), Pods: pods(two)},
		"two families: the first":       {Service: service(servicestest.DualStack), Pods: pods("a fd00::2 10.1.0.1 ready")},
		"no address of the family":      {Service: service(), Pods: pods("a fd00::2 ready")},
		"family is not told":            {Service: service(servicestest.Headless, func(s *corev1.Service) { s.Spec.IPFamilies = nil }), Pods: pods("a fd00::2 ready")},
		"nothing to do":                 {Service: service(), Pods: pods(two), Current: written(service(), two)},
		"becomes ready":                 {Service: service(), Pods: pods("a 10.1.0.1 ready\nb 10.1.0.2 ready"), Current: written(service(), two)},
		"the service has other labels":  {Service: service(func(s *corev1.Service) { s.Labels["tier"] = "front" }), Current: written(service(), "")},
		"was of somebody else":          {Service: service(), Current: written(service(), "", func(e *corev1.Endpoints) { delete(e.Labels, managedBy) })},
		"a revision of the pod is told": {Service: service(), Pods: pods("a 10.1.0.1"), Current: written(service(), "a 10.1.0.1", func(e *corev1.Endpoints) { e.Subsets[0].NotReadyAddresses[0].TargetRef.ResourceVersion = "7" })},
		"too many":                      {Service: service(), Pods: pods(many.String())},
		"too many no more":              {Service: service(), Pods: pods("a 10.1.0.1"), Current: written(service(), many.String())},
	}, func(seen Observed) string { return describe(plan(seen)) })
}

func describe(p Plan) string {
	var b strings.Builder
	for verb, e := range map[string]*corev1.Endpoints{"create": p.Create, "update": p.Update} {
		if e == nil {
			continue
		}
		fmt.Fprintf(&b, "%s %s labels=%v annotations=%v\n", verb, e.Name, e.Labels, e.Annotations)
		for _, s := range e.Subsets {
			for _, port := range s.Ports {
				fmt.Fprintf(&b, "  port %s %d/%s\n", port.Name, port.Port, port.Protocol)
			}
			tell(&b, "ready", s.Addresses)
			tell(&b, "not ready", s.NotReadyAddresses)
		}
	}
	return b.String()
}

func tell(b *strings.Builder, what string, addresses []corev1.EndpointAddress) {
	if len(addresses) > 10 {
		fmt.Fprintf(b, "  %s: %d\n", what, len(addresses))
		return
	}
	for a := range slices.Values(addresses) {
		fmt.Fprintf(b, "  %s %s %s on %s hostname=%q\n", what, a.IP, a.TargetRef.Name, *a.NodeName, a.Hostname)
	}
}
