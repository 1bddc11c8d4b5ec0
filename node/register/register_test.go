package register_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/node/evict"
	"setpoint.dev/setpoint/node/register"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// runtimes say what they are told to.
type runtimes struct{ down atomic.Bool }

func (r *runtimes) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "1.6.20"}, nil
}

func (r *runtimes) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	if r.down.Load() {
		return nil, errors.New("connection refused")
	}
	return well(), nil
}

func well() *runtimeapi.StatusResponse {
	return &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true}}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}, {}},
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}
}

func facts() register.Facts {
	return register.Facts{
		Machine: register.Machine{
			CPUs: 2, Memory: 8 << 30, Storage: 100 << 30, HugePages: map[string]int64{"2Mi": 4 << 20},
			OS: "linux", Arch: "amd64", MachineID: "m", SystemUUID: "s", BootID: "b", Kernel: "6.1", System: "Debian",
		},
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}, {Type: corev1.NodeHostName, Address: "n1"}},
		Runtime:   well(), Version: &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "1.6.20"},
		Images: []*runtimeapi.Image{
			{Id: "a", RepoTags: []string{"small:1"}, Size: 10},
			{Id: "b", RepoTags: []string{"large:1", "large:2", "large:3"}, RepoDigests: []string{"large@1", "large@2", "large@3"}, Size: 20},
		},
		Kubelet: "v1.36.3", Port: 10250, MaxPods: 110,
		Reserved:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
		Thresholds: []evict.Threshold{{Signal: evict.Memory, Quantity: 100 << 20}, {Signal: evict.Disk, Percent: 10}, {Signal: evict.Disk, Percent: 20, Grace: time.Minute}},
	}
}

// TestStatus compares statuses with those in testdata.
func TestStatus(t *testing.T) {
	then, now := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), metav1.NewTime(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	first := register.Status(&corev1.NodeStatus{}, facts(), then)
	for _, test := range []struct {
		name   string
		before func(*corev1.NodeStatus)
		facts  func(*register.Facts)
	}{
		{name: "well"},
		{name: "short-of-everything", facts: func(f *register.Facts) { f.Pressure = register.Pressure{Memory: true, Disk: true, PID: true} }},
		{name: "without-a-runtime", facts: func(f *register.Facts) { f.Runtime, f.Version = nil, nil }},
		{name: "without-a-network", facts: func(f *register.Facts) {
			f.Runtime.Status.Conditions[1] = &runtimeapi.RuntimeCondition{Type: "NetworkReady", Reason: "NetworkPluginNotReady", Message: "no plugin"}
			f.Unhealthy = errors.New("disk is read-only")
		}},
		{name: "with-what-others-wrote", before: func(s *corev1.NodeStatus) {
			s.Capacity["example.com/gpu"] = resource.MustParse("2")
			s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: "NetworkUnavailable", Status: corev1.ConditionFalse})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, f := first.DeepCopy(), facts()
			if test.before != nil {
				test.before(before)
			}
			if test.facts != nil {
				test.facts(&f)
			}
			status := register.Status(before, f, now)
			got, err := yaml.Marshal(status)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", test.name+".yaml")
			if *rewrite {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Error(diff)
			}
			if changed := register.Changed(before, &status); changed != (test.name != "well") {
				t.Errorf("changed is %v", changed)
			}
		})
	}
}

// TestRun makes a node, loses its runtime, and is deleted, as a node that may
// write no more than its own.
func TestRun(t *testing.T) {
	plane := apptest.Start(t)
	admin, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	self, err := client.New(client.Config{Handler: plane.Handler, UserAgent: "node", User: &user.DefaultInfo{
		Name: "system:node:n1", Groups: []string{user.NodesGroup, user.AllAuthenticated},
	}}).Kubernetes()
	if err != nil {
		t.Fatal(err)
	}
	var r runtimes
	events := make(chan string, 100)
	registrar := register.New(register.Config{
		Client: self, Name: "n1", Runtime: &r, Port: 1234, Version: "v1.36.3", Dir: t.TempDir(), Labels: map[string]string{"example.com/rack": "7"},
		Event: func(_, reason, _ string) { events <- reason },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- registrar.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	until := func(what string, is func(*corev1.Node) bool) *corev1.Node {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			node, err := admin.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err == nil && is(node) {
				return node
			}
			registrar.Refresh()
		}
		t.Fatalf("the node does not become %s", what)
		return nil
	}
	readiness := func(status corev1.ConditionStatus) func(*corev1.Node) bool {
		return func(n *corev1.Node) bool {
			return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady && c.Status == status })
		}
	}
	first := until("ready", func(n *corev1.Node) bool { return readiness(corev1.ConditionTrue)(n) && registrar.Node() != nil })
	if first.Labels["example.com/rack"] != "7" || first.Labels[corev1.LabelHostname] != "n1" || first.Status.DaemonEndpoints.KubeletEndpoint.Port != 1234 {
		t.Errorf("the node is %+v", first)
	}
	if a := registrar.Allocatable(); a.Cpu().IsZero() || a.Memory().IsZero() || a.StorageEphemeral().IsZero() {
		t.Errorf("allocatable is %v", a)
	}
	first.Labels["example.com/rack"], first.Labels[corev1.LabelOSStable] = "8", "none"
	if _, err := admin.CoreV1().Nodes().Update(t.Context(), first, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	relabeled := until("what it is", func(n *corev1.Node) bool { return n.Labels[corev1.LabelOSStable] == runtime.GOOS })
	if relabeled.Labels["example.com/rack"] != "8" {
		t.Errorf("labels are %v", relabeled.Labels)
	}
	r.down.Store(true)
	until("not ready", readiness(corev1.ConditionFalse))
	r.down.Store(false)
	until("ready again", readiness(corev1.ConditionTrue))
	if err := admin.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second := until("another", func(n *corev1.Node) bool { return n.UID != first.UID && readiness(corev1.ConditionTrue)(n) })
	if second.Name != "n1" {
		t.Errorf("the node is %s", second.Name)
	}
	var lease *coordinationv1.Lease
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if lease, err = admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "n1", metav1.GetOptions{}); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if *lease.Spec.LeaseDurationSeconds != 40 || *lease.Spec.HolderIdentity != "n1" {
		t.Errorf("the lease is %+v", lease.Spec)
	}
	if got := <-events; got != "NodeNotReady" && got != "NodeReady" {
		t.Errorf("the first event is %s", got)
	}
}
