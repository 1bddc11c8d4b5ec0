package endpointslice

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/endpointslice/topologycache"

	"setpoint.dev/setpoint/controller/plantest"
	"setpoint.dev/setpoint/controller/services/servicestest"
)

// nodesOf are nodes n1, n2, … that are ready, each in the zone that is named.
func nodesOf(t *testing.T, zones ...string) (listers.NodeLister, *topologycache.TopologyCache) {
	t.Helper()
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	var all []*corev1.Node
	for i, zone := range zones {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1), Labels: map[string]string{corev1.LabelTopologyZone: zone}},
			Status: corev1.NodeStatus{
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			},
		}
		if err := index.Add(n); err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	spread := topologycache.NewTopologyCache()
	spread.SetNodes(logr.Discard(), all)
	return listers.NewNodeLister(index), spread
}

func TestPlan(t *testing.T) {
	service, pods := servicestest.Service, servicestest.Pods
	nodes, zones := nodesOf(t, "a", "b")
	// had are the slices that a plan for such pods makes.
	had := func(s *corev1.Service, text string) []*discoveryv1.EndpointSlice {
		p, err := plan(Observed{Service: s, Pods: pods(text), Nodes: nodes, Zones: zones})
		if err != nil {
			t.Fatal(err)
		}
		for i, slice := range p.Create {
			slice.Name, slice.GenerateName = fmt.Sprintf("web-%d", i), ""
		}
		return p.Create
	}
	some := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "p%d 10.1.%d.%d ready\n", i, i/250, i%250+1)
		}
		return b.String()
	}
	annotated := func(s *corev1.Service) { s.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"} }
	prefers := func(what string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.TrafficDistribution = &what }
	}
	two := "a 10.1.0.1 ready\nb 10.1.0.2 node=n2"
	spread := "a 10.1.0.1 ready\nb 10.1.0.2 ready node=n2"
	reused := had(service(), two)
	reused[0].OwnerReferences[0].UID = "earlier"
	plantest.Cases(t, "plan.txt", map[string]Observed{
		"no pods":                           {Service: service()},
		"no pods, as before":                {Service: service(), Slices: had(service(), "")},
		"ready and not":                     {Service: service(), Pods: pods(two), Changed: time.Date(2030, 1, 1, 0, 0, 0, 5, time.UTC)},
		"not ready, told of":                {Service: service(servicestest.PublishAll), Pods: pods(two)},
		"going":                             {Service: service(), Pods: pods("a 10.1.0.1 ready going\nb 10.1.0.2 going")},
		"ended":                             {Service: service(), Pods: pods("a 10.1.0.1 Failed")},
		"named port, another for each":      {Service: service(servicestest.Named), Pods: pods("a 10.1.0.1 ready port=web:8080\nb 10.1.0.2 ready port=web:8081\nc 10.1.0.3 ready")},
		"headless":                          {Service: service(servicestest.Headless), Pods: pods("a 10.1.0.1 ready hostname=a")},
		"two families":                      {Service: service(servicestest.DualStack), Pods: pods("a 10.1.0.1 fd00::2 ready")},
		"a family that the service lost":    {Service: service(), Pods: pods("a 10.1.0.1 fd00::2 ready"), Slices: had(service(servicestest.DualStack), "a 10.1.0.1 fd00::2 ready")},
		"nothing to do":                     {Service: service(), Pods: pods(two), Slices: had(service(), two)},
		"becomes ready":                     {Service: service(), Pods: pods(spread), Slices: had(service(), two)},
		"the service has other labels":      {Service: service(func(s *corev1.Service) { s.Labels["tier"] = "front" }), Pods: pods(two), Slices: had(service(), two)},
		"more than a slice has":             {Service: service(), Pods: pods(some(120))},
		"one more":                          {Service: service(), Pods: pods(some(3)), Slices: had(service(), some(2))},
		"more than the slice has":           {Service: service(), Pods: pods(some(120)), Slices: had(service(), some(100))},
		"all go":                            {Service: service(), Slices: had(service(), some(2))},
		"slices of an earlier service":      {Service: service(), Pods: pods(two), Slices: reused},
		"the service goes":                  {Service: service(func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{} }), Pods: pods(two)},
		"a node that nobody knows":          {Service: service(), Pods: pods("a 10.1.0.1 ready node=n9\nb 10.1.0.2 ready")},
		"a node that nobody knows, told of": {Service: service(servicestest.PublishAll), Pods: pods("a 10.1.0.1 ready node=n9")},
		"traffic close":                     {Service: service(prefers(corev1.ServiceTrafficDistributionPreferClose)), Pods: pods(spread)},
		"traffic in the same zone":          {Service: service(prefers(corev1.ServiceTrafficDistributionPreferSameZone)), Pods: pods(spread)},
		"traffic on the same node":          {Service: service(prefers(corev1.ServiceTrafficDistributionPreferSameNode)), Pods: pods(spread)},
		"traffic anywhere again":            {Service: service(), Pods: pods(spread), Slices: had(service(prefers(corev1.ServiceTrafficDistributionPreferClose)), spread)},
		"shared out among zones":            {Service: service(annotated), Pods: pods("a 10.1.0.1 ready\nb 10.1.0.2 ready\nc 10.1.0.3 ready node=n2\nd 10.1.0.4 ready node=n2")},
		"too few for all zones":             {Service: service(annotated), Pods: pods("a 10.1.0.1 ready")},
	}, func(seen Observed) string {
		seen.Nodes, seen.Zones = nodesOf(t, "a", "b")
		p, err := plan(seen)
		text := servicestest.Describe(p.Changes)
		for _, e := range p.Events {
			text += fmt.Sprintf("tell %s %s: %s\n", e.Type, e.Reason, e.Message)
		}
		if err != nil {
			text += fmt.Sprintln("again:", err)
		}
		return text
	})
}
