package snapshot_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/scheduler/snapshot"
)

func node(name, zone string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"i:" + zone}, SizeBytes: 1}}},
	}
}

func pod(t *testing.T, name, app string, milliCPU int64) *snapshot.Pod {
	t.Helper()
	p, err := snapshot.NewPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(milliCPU, resource.DecimalSI)}}}},
			Volumes:    []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: app}}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCacheCountsWhatIsThere changes a cache at random, and compares it with one
// that is made anew of what should be there. Snapshots that were taken before
// stay what they were.
func TestCacheCountsWhatIsThere(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c := snapshot.NewCache(nil)
	nodes, pods, on := map[string]*corev1.Node{}, map[string]*snapshot.Pod{}, map[string]string{}
	var before *snapshot.Snapshot
	var text string
	for i := range 5000 {
		name, host := fmt.Sprintf("p%d", r.IntN(30)), fmt.Sprintf("n%d", r.IntN(6))
		switch r.IntN(6) {
		case 0:
			nodes[host] = node(host, fmt.Sprint(r.IntN(3)))
			c.SetNode(nodes[host])
		case 1:
			delete(nodes, host)
			c.RemoveNode(host)
		case 2:
			delete(pods, name)
			c.RemovePod(types.UID(name))
		case 3:
			p := pod(t, name, fmt.Sprint(r.IntN(3)), 1+r.Int64N(100))
			pods[name], on[name] = p, host
			c.SetPod(p, host)
		case 4:
			p := pod(t, name, fmt.Sprint(r.IntN(3)), 1+r.Int64N(100))
			pods[name], on[name] = p, host
			c.Assume(p, host)
		default:
			if _, assumed := c.Placed(types.UID(name)); assumed {
				delete(pods, name)
			}
			c.Forget(types.UID(name))
		}
		again := snapshot.NewCache(nil)
		for _, n := range nodes {
			again.SetNode(n)
		}
		for name, p := range pods {
			again.SetPod(p, on[name])
		}
		if diff := cmp.Diff(describe(again.Snapshot()), describe(c.Snapshot())); diff != "" {
			t.Fatalf("after %d changes (-want +got):\n%s", i+1, diff)
		}
		if before != nil && describe(before) != text {
			t.Fatalf("after %d changes an older snapshot is another", i+1)
		}
		if before == nil || r.IntN(10) == 0 {
			before = c.Snapshot()
			text = describe(before)
		}
	}
}

func describe(s *snapshot.Snapshot) string {
	text := fmt.Sprintln(s.Images, s.Claims)
	for _, n := range s.Nodes {
		var names []string
		for _, p := range n.Pods {
			names = append(names, p.Object.Name)
		}
		slices.Sort(names)
		counts := map[string]int{}
		for _, c := range n.Classes {
			counts[c.Class.Labels["app"]] += c.N
		}
		text += fmt.Sprintln(n.Name(), n.Zone(), names, n.Requested.MilliCPU, n.NonZero, counts, s.Node(n.Name()) == n)
	}
	return text
}

func TestNodesOfZonesTakeTurns(t *testing.T) {
	c := snapshot.NewCache(nil)
	for _, n := range []*corev1.Node{node("a", "x"), node("b", "x"), node("c", "x"), node("d", "y"), node("e", "z")} {
		c.SetNode(n)
	}
	var names []string
	for _, n := range c.Snapshot().Nodes {
		names = append(names, n.Name())
	}
	if diff := cmp.Diff([]string{"a", "d", "e", "b", "c"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestNominatedPodsGoWithThePlacement(t *testing.T) {
	c := snapshot.NewCache(nil)
	c.SetNode(node("a", "x"))
	p := pod(t, "p", "app", 1)
	c.Nominate(p, "a")
	before := c.Snapshot()
	c.Nominate(p, "b")
	if len(before.Nominated["a"]) != 1 || len(c.Nominated("a")) != 0 || len(c.Nominated("b")) != 1 {
		t.Error("a pod is nominated where it was last, and an older snapshot stays")
	}
	c.Assume(p, "a")
	c.Nominate(p, "b")
	if len(c.Nominated("b")) != 0 {
		t.Error("a pod that has a node is nominated to none")
	}
}
