package serviceip_test

import (
	"context"
	"encoding/json"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/server/serviceip"
)

// tables are stored objects by table and key.
type tables map[string]map[string][]byte

func (s tables) put(t *testing.T, table, key string, obj any) {
	t.Helper()
	value, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	if s[table] == nil {
		s[table] = map[string][]byte{}
	}
	s[table][key] = value
}

func (s tables) Get(_ context.Context, table, key string) ([]byte, error) { return s[table][key], nil }

func (s tables) All(_ context.Context, table string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, key := range slices.Sorted(maps.Keys(s[table])) {
			if !yield(s[table][key], nil) {
				return
			}
		}
	}
}

func (s tables) Has(context.Context, string, string, string) (bool, error) { return false, nil }

func TestRepair(t *testing.T) {
	now := time.Now()
	address := func(ip, service string, change func(*networkingv1.IPAddress)) *networkingv1.IPAddress {
		a := serviceip.NewIPAddress(netip.MustParseAddr(ip), "shop", service)
		a.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
		if change != nil {
			change(a)
		}
		return a
	}
	ips := func(ips ...string) corev1.ServiceSpec { return corev1.ServiceSpec{ClusterIPs: ips} }
	for _, test := range []struct {
		name      string
		services  map[string]corev1.ServiceSpec
		addresses []*networkingv1.IPAddress
		want      []string
		wait      bool
	}{
		{"all is well", map[string]corev1.ServiceSpec{"a": ips("10.0.0.5")}, []*networkingv1.IPAddress{address("10.0.0.5", "a", nil)}, nil, false},
		{"no address", map[string]corev1.ServiceSpec{"a": ips("10.0.0.5")}, nil, []string{"create 10.0.0.5 for a"}, false},
		{"one of two", map[string]corev1.ServiceSpec{"a": ips("10.0.0.5", "fd00::5")}, []*networkingv1.IPAddress{address("10.0.0.5", "a", nil)}, []string{"create fd00::5 for a"}, false},
		{"no service", nil, []*networkingv1.IPAddress{address("10.0.0.5", "a", nil)}, []string{"remove 10.0.0.5"}, false},
		{"no service yet", nil, []*networkingv1.IPAddress{address("10.0.0.5", "a", func(a *networkingv1.IPAddress) {
			a.CreationTimestamp = metav1.NewTime(now.Add(-time.Second))
		})}, nil, true},
		{"held by a finalizer", nil, []*networkingv1.IPAddress{address("10.0.0.5", "a", func(a *networkingv1.IPAddress) { a.Finalizers = []string{"x"} })}, nil, false},
		{"somebody else's", nil, []*networkingv1.IPAddress{address("10.0.0.5", "a", func(a *networkingv1.IPAddress) { a.Labels = nil })}, nil, false},
		{"of a gateway", nil, []*networkingv1.IPAddress{address("10.0.0.5", "a", func(a *networkingv1.IPAddress) {
			a.Spec.ParentRef.Group, a.Spec.ParentRef.Resource = "gateway.networking.k8s.io", "gateways"
		})}, []string{"remove 10.0.0.5"}, false},
		{"without labels", map[string]corev1.ServiceSpec{"a": ips("10.0.0.5")}, []*networkingv1.IPAddress{address("10.0.0.5", "a", func(a *networkingv1.IPAddress) {
			a.Labels = nil
		})}, []string{"remove 10.0.0.5"}, false},
		{"of a service that is gone", map[string]corev1.ServiceSpec{"a": ips("10.0.0.5")}, []*networkingv1.IPAddress{address("10.0.0.5", "b", nil)}, []string{"remove 10.0.0.5"}, false},
		{"of a service with another address", map[string]corev1.ServiceSpec{"a": ips("10.0.0.5")}, []*networkingv1.IPAddress{address("10.0.0.5", "a", nil), address("10.0.0.6", "a", nil)}, []string{"remove 10.0.0.6"}, false},
		{"out of range", map[string]corev1.ServiceSpec{"a": ips("192.0.2.1")}, nil, nil, false},
		{"headless", map[string]corev1.ServiceSpec{"a": ips("None")}, nil, nil, false},
		{"external", map[string]corev1.ServiceSpec{"a": {Type: corev1.ServiceTypeExternalName}}, []*networkingv1.IPAddress{address("10.0.0.5", "a", nil)}, []string{"remove 10.0.0.5"}, false},
		{"no IP", map[string]corev1.ServiceSpec{"a": ips("x", "")}, nil, nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := tables{}
			s.put(t, "servicecidrs.networking.k8s.io", "kubernetes", &networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.0.0.0/24", "fd00::/108"}},
			})
			for name, spec := range test.services {
				s.put(t, "services", "shop/"+name, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec})
			}
			for _, a := range test.addresses {
				s.put(t, "ipaddresses.networking.k8s.io", a.Name, a)
			}
			fixes, wait, err := serviceip.Repair(t.Context(), s, now)
			if err != nil || wait != test.wait {
				t.Errorf("wait is %v, error %v", wait, err)
			}
			var got []string
			for _, f := range fixes {
				if a, is := f.Object.(*networkingv1.IPAddress); is {
					got = append(got, "create "+a.Name+" for "+a.Spec.ParentRef.Name)
				} else {
					got = append(got, "remove "+f.Key)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
