// Package servicestest makes services and their pods for tests, from a line of
// text each.
package servicestest

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Service is one that selects app=web and has a port, and edits of it.
func Service(edits ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web", Labels: map[string]string{"app": "web"}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

// Headless takes the address from a service.
func Headless(s *corev1.Service) {
	s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
}

// DualStack gives a service both families.
func DualStack(s *corev1.Service) {
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	s.Spec.ClusterIPs = []string{"10.0.0.1", "fd00::1"}
}

// PublishAll has a service tell of addresses that are not ready.
func PublishAll(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }

// Named has the port of a service lead to one with a name.
func Named(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("web") }

// Pods are those of a text: a line for each, with its name and what is known of
// it:
//
//	a 10.1.0.1 fd00::2 ready node=n1 going Failed hostname=a port=web:8081
func Pods(text string) []*corev1.Pod {
	var all []*corev1.Pod
	for line := range strings.Lines(text) {
		all = append(all, pod(strings.Fields(line)))
	}
	return all
}

func pod(words []string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: words[0], Namespace: "default", UID: types.UID(words[0]), Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "v1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, word := range words[1:] {
		describe(p, word)
	}
	return p
}

func describe(p *corev1.Pod, word string) {
	key, value, _ := strings.Cut(word, "=")
	switch key {
	case "ready":
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	case "going":
		p.DeletionTimestamp = &metav1.Time{}
	case "node":
		p.Spec.NodeName = value
	case "hostname":
		p.Spec.Hostname, p.Spec.Subdomain = value, "web"
	case "port":
		name, number, _ := strings.Cut(value, ":")
		n, _ := strconv.ParseInt(number, 10, 32) // 0 shows in the outcome
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: name, ContainerPort: int32(n), Protocol: corev1.ProtocolTCP}}
	case "Failed", "Succeeded":
		p.Status.Phase = corev1.PodPhase(key)
	default:
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: word})
		p.Status.PodIP = p.Status.PodIPs[0].IP
	}
}
