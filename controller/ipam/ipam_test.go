package ipam_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/controller/ipam"
)

func TestEveryNodeHasItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, stop := apptest.InBubble(t, app.Config{
			Controllers: []string{"node-ipam-controller"},
			NodeRanges:  ipam.Settings{Allocate: true, Ranges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/21"), netip.MustParsePrefix("fd00:1::/48")}},
		})
		defer stop()
		add := func(name string) {
			t.Helper()
			if _, err := b.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		// look says which nodes have ranges, and that none has another's.
		look := func() (have int) {
			t.Helper()
			b.Settle(t)
			nodes, err := b.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			of := map[string]string{}
			for _, n := range nodes.Items {
				if len(n.Spec.PodCIDRs) == 2 && n.Spec.PodCIDR == n.Spec.PodCIDRs[0] {
					have++
				}
				for _, r := range n.Spec.PodCIDRs {
					if of[r] != "" {
						t.Errorf("%s and %s have %s", of[r], n.Name, r)
					}
					of[r] = n.Name
				}
			}
			return have
		}
		for i := range 9 {
			add(fmt.Sprintf("n%d", i))
		}
		if have := look(); have != 8 {
			t.Errorf("%d of nine nodes have one of eight ranges", have)
		}
		if err := b.Client.CoreV1().Nodes().Delete(t.Context(), "n3", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		b.Turn(time.Hour) // whoever found none tries again ever more seldom
		if have := look(); have != 8 {
			t.Errorf("%d of eight nodes have one of eight ranges", have)
		}
	})
}
