package dns_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/node/dns"
)

func TestOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("# ours\nnameserver 192.0.2.1\nsearch a.example b.example.\noptions ndots:2 rotate\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster := dns.Config{Servers: []string{"10.0.0.10"}, Domain: "cluster.local", ResolvConf: file}
	value := "7"
	own := &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.9"}, Searches: []string{"mine"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &value}, {Name: "debug"}}}
	for _, c := range []struct {
		name   string
		cfg    dns.Config
		spec   corev1.PodSpec
		want   string
		events string
	}{
		{"the cluster first", cluster, corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, "[10.0.0.10] [ns.svc.cluster.local svc.cluster.local cluster.local a.example b.example] [ndots:5]", ""},
		{"the node's own network", cluster, corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, HostNetwork: true}, "[192.0.2.1] [a.example b.example] [ndots:2 rotate]", ""},
		{"the cluster for the node's network", cluster, corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet, HostNetwork: true}, "[10.0.0.10] [ns.svc.cluster.local svc.cluster.local cluster.local a.example b.example] [ndots:5]", ""},
		{"none but its own", cluster, corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: own}, "[192.0.2.9] [mine] [debug ndots:7]", ""},
		{"the node's and its own", cluster, corev1.PodSpec{DNSPolicy: corev1.DNSDefault, DNSConfig: own}, "[192.0.2.1 192.0.2.9] [a.example b.example mine] [debug ndots:7 rotate]", ""},
		{"a cluster without", dns.Config{ResolvConf: file}, corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, "[192.0.2.1] [a.example b.example] [ndots:2 rotate]", "MissingClusterDNS"},
		{"a node without", dns.Config{}, corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, "[127.0.0.1] [.] []", ""},
		{"too many", cluster, corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: strings.Fields("1 2 3 4")}}, "[1 2 3] [] []", "DNSConfigForming"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var events []string
			c.cfg.Say = func(_ *corev1.Pod, _, reason, _ string) { events = append(events, reason) }
			got, err := c.cfg.Of(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}, Spec: c.spec})
			if err != nil {
				t.Fatal(err)
			}
			if text := fmt.Sprint(got.Servers, got.Searches, got.Options); text != c.want || strings.Join(events, " ") != c.events {
				t.Errorf("got %s, events %v", text, events)
			}
		})
	}
}
