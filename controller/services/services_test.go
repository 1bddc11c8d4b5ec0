package services_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/controller/services/servicestest"
)

// plane is a control plane with everybody who tells where services are served,
// and a node.
func plane(t *testing.T) kubernetes.Interface {
	t.Helper()
	p := apptest.StartWith(t, "endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller", "garbage-collector-controller")
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return k
}

// service is as the API takes it: without a UID, and with addresses of its own.
func service(edits ...func(*corev1.Service)) *corev1.Service {
	s := servicestest.Service(edits...)
	s.UID, s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = "", "", nil, nil
	return s
}

func create(t *testing.T, k kubernetes.Interface, s *corev1.Service) {
	t.Helper()
	if _, err := k.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func patch(t *testing.T, k kubernetes.Interface, body string) {
	t.Helper()
	if _, err := k.CoreV1().Services("default").Patch(t.Context(), "web", types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// run makes pods, or says other things of those that there are.
func run(t *testing.T, k kubernetes.Interface, text string) {
	t.Helper()
	for _, p := range servicestest.Pods(text) {
		status := p.Status
		p.UID = ""
		made, err := k.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
		if err != nil {
			if made, err = k.CoreV1().Pods("default").Get(t.Context(), p.Name, metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		made.Status = status
		if _, err := k.CoreV1().Pods("default").UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// served waits until Endpoints and slices of web tell these addresses: with "+"
// those that are ready.
func served(t *testing.T, k kubernetes.Interface, endpoints, slice string) {
	t.Helper()
	apptest.Eventually(t, func(ctx context.Context) string {
		var told []string
		if e, err := k.CoreV1().Endpoints("default").Get(ctx, "web", metav1.GetOptions{}); err == nil {
			for _, s := range e.Subsets {
				told = append(told, addresses(s.Addresses, "+")...)
				told = append(told, addresses(s.NotReadyAddresses, "-")...)
			}
		} else {
			told = []string{"none"}
		}
		if got := sorted(told); got != endpoints {
			return fmt.Sprintf("endpoints are %q", got)
		}
		all, err := k.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		if err != nil {
			return err.Error()
		}
		told = nil
		for _, s := range all.Items {
			for _, e := range s.Endpoints {
				told = append(told, map[bool]string{true: "+", false: "-"}[*e.Conditions.Ready]+e.Addresses[0])
			}
		}
		if len(all.Items) == 0 {
			told = []string{"none"}
		}
		if got := sorted(told); got != slice {
			return fmt.Sprintf("slices tell %q", got)
		}
		return ""
	})
}

func addresses(of []corev1.EndpointAddress, prefix string) []string {
	var all []string
	for _, a := range of {
		all = append(all, prefix+a.IP)
	}
	return all
}

func sorted(of []string) string {
	slices.Sort(of)
	return strings.Join(of, " ")
}

func TestAServiceIsWherePodsAre(t *testing.T) {
	k := plane(t)
	create(t, k, service())
	served(t, k, "", "")
	run(t, k, "a 10.1.0.1 ready\nb 10.1.0.2")
	served(t, k, "+10.1.0.1 -10.1.0.2", "+10.1.0.1 -10.1.0.2")
	run(t, k, "b 10.1.0.2 ready")
	served(t, k, "+10.1.0.1 +10.1.0.2", "+10.1.0.1 +10.1.0.2")
	patch(t, k, `{"spec":{"selector":{"app":"other"}}}`)
	served(t, k, "", "")
	patch(t, k, `{"spec":{"selector":{"app":"web"}}}`)
	served(t, k, "+10.1.0.1 +10.1.0.2", "+10.1.0.1 +10.1.0.2")
	if err := k.CoreV1().Endpoints("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := k.DiscoveryV1().EndpointSlices("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"}); err != nil {
		t.Fatal(err)
	}
	served(t, k, "+10.1.0.1 +10.1.0.2", "+10.1.0.1 +10.1.0.2")
	if err := k.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	served(t, k, "none", "none")
}

func TestEndpointsByHandAreRepeated(t *testing.T) {
	k := plane(t)
	byHand := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "10.9.0.1"}}}}}
	if _, err := k.CoreV1().Endpoints("default").Create(t.Context(), byHand, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	served(t, k, "+10.9.0.1", "none") // there is no service yet
	create(t, k, service(func(s *corev1.Service) { s.Spec.Selector = nil }))
	served(t, k, "+10.9.0.1", "+10.9.0.1")
	byHand.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"}
	if _, err := k.CoreV1().Endpoints("default").Update(t.Context(), byHand, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	served(t, k, "+10.9.0.1", "none")
	byHand.Labels, byHand.Subsets[0].Addresses[0].IP = nil, "10.9.0.2"
	if _, err := k.CoreV1().Endpoints("default").Update(t.Context(), byHand, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	served(t, k, "+10.9.0.2", "+10.9.0.2")
	patch(t, k, `{"spec":{"selector":{"app":"web"}}}`)
	served(t, k, "", "")
}
