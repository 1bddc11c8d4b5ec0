package cgroup

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// read makes a pod of the text of its spec.
func read(t *testing.T, spec string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1234-abcd"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestPods(t *testing.T) {
	node := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	for _, test := range []struct{ name, spec, want string }{
		{
			"nothing asked for", `{containers: [{name: a}]}`,
			"BestEffort /kubepods/besteffort/pod1234-abcd; pod 2 0 0; a 2 0/100000 0 oom 1000",
		},
		{
			"all it asks for", `{containers: [{name: a, resources: {requests: {cpu: 500m, memory: 64Mi}, limits: {cpu: 500m, memory: 64Mi}}}]}`,
			"Guaranteed /kubepods/pod1234-abcd; pod 512 50000 67108864; a 512 50000/100000 67108864 oom -997",
		},
		{
			"more than it asks for", `{containers: [{name: a, resources: {requests: {cpu: 250m, memory: 256Mi}}}, {name: b, resources: {limits: {cpu: 1m}}}]}`,
			"Burstable /kubepods/burstable/pod1234-abcd; pod 256 0 0; a 256 0/100000 0 oom 750; b 2 1000/100000 0 oom 999",
		},
		{
			"a sidecar lives as long as those it serves",
			`{initContainers: [{name: s, restartPolicy: Always, resources: {requests: {memory: 1Mi}}}], containers: [{name: a, resources: {requests: {memory: 512Mi}}}]}`,
			"Burstable /kubepods/burstable/pod1234-abcd; pod 2 0 0; s 2 0/100000 0 oom 500; a 2 0/100000 0 oom 500",
		},
		{
			"critical to the node", `{priority: 2000001000, containers: [{name: a}]}`,
			"BestEffort /kubepods/besteffort/pod1234-abcd; pod 2 0 0; a 2 0/100000 0 oom -997",
		},
		{
			"resources of the pod", `{resources: {requests: {cpu: "1", memory: 512Mi}, limits: {cpu: "2", memory: 512Mi}}, containers: [{name: a, resources: {requests: {memory: 128Mi}}}, {name: b}]}`,
			"Burstable /kubepods/burstable/pod1234-abcd; pod 1024 200000 536870912; a 2048 200000/100000 536870912 oom 688; b 2048 200000/100000 536870912 oom 813",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := read(t, test.spec)
			p := Pod(pod)
			got := fmt.Sprintf("%s %s; pod %d %d %d", QOS(pod), PodParent(pod), p.CpuShares, p.CpuQuota, p.MemoryLimitInBytes)
			for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				l := Linux(pod, &c, node)
				got += fmt.Sprintf("; %s %d %d/%d %d oom %d", c.Name, l.CpuShares, l.CpuQuota, l.CpuPeriod, l.MemoryLimitInBytes, OOMScore(pod, &c, 1<<30))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWithoutSwap(t *testing.T) {
	for _, unified := range []bool{false, true} {
		r := &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 20, Unified: map[string]string{"memory.oom.group": "1"}}
		withoutSwap(r, unified)
		want := &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 20, MemorySwapLimitInBytes: 1 << 20, Unified: map[string]string{"memory.oom.group": "1"}}
		if unified {
			want.MemorySwapLimitInBytes, want.Unified["memory.swap.max"] = 0, "0"
		}
		if r.String() != want.String() {
			t.Errorf("got %v, want %v", r, want)
		}
	}
}

func TestSystemdParent(t *testing.T) {
	got := SystemdParent(read(t, `{containers: [{name: a}]}`))
	want := "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1234_abcd.slice"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestValues(t *testing.T) {
	pod := read(t, `{containers: [{name: a, resources: {requests: {cpu: 500m, memory: 64Mi}, limits: {cpu: 500m, memory: 64Mi}}}]}`)
	r := Pod(pod)
	r.HugepageLimits = hugePages([]string{"2MB", "1GB"}, corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")})
	for _, test := range []struct{ name, got, want string }{
		{"version 1", fmt.Sprint(version1(r)), "map[cpu:[{cpu.shares 512} {cpu.cfs_period_us 100000} {cpu.cfs_quota_us 50000}] hugetlb:[{hugetlb.2MB.limit_in_bytes 4194304} {hugetlb.1GB.limit_in_bytes 0}] memory:[{memory.limit_in_bytes 67108864}]]"},
		{"version 2", fmt.Sprint(version2(r)), "map[cpu:[{cpu.weight 20} {cpu.max 50000 100000}] hugetlb:[{hugetlb.2MB.max 4194304} {hugetlb.1GB.max 0}] memory:[{memory.max 67108864}]]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTree makes groups of the kernel and removes them again.
func TestTree(t *testing.T) {
	under := "setpoint-test-" + fmt.Sprint(os.Getpid())
	tree := Open(Config{Under: under})
	if len(tree.mounts) == 0 {
		t.Skip("groups cannot be made here: this needs root and writable hierarchies")
	}
	pod := read(t, `{containers: [{name: a, resources: {requests: {cpu: 500m}, limits: {memory: 64Mi}}}]}`)
	if err := tree.Balance([]*corev1.Pod{pod}, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := tree.Ensure(pod); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := tree.Parent(pod), "/"+path.Join(under, "kubepods/burstable/pod1234-abcd"); got != want {
		t.Errorf("parent is %s, want %s", got, want)
	}
	held := func(controller, group, file string) string {
		text, err := os.ReadFile(filepath.Join(tree.mounts[controller], under, group, file))
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(text))
	}
	memory, cpu := "memory.limit_in_bytes", "cpu.shares"
	if tree.unified {
		memory, cpu = "memory.max", "cpu.weight"
	}
	if got := held("memory", "kubepods/burstable/pod1234-abcd", memory); got != "67108864" {
		t.Errorf("memory is limited to %s", got)
	}
	if got := held("cpu", "kubepods/burstable", cpu); got != "512" && got != "20" {
		t.Errorf("the class has %s shares", got)
	}
	if diff := cmp.Diff([]types.UID{"1234-abcd"}, tree.Known()); diff != "" {
		t.Error(diff)
	}
	tree.Clear() // the pod's group is still there
	for range 2 {
		if err := tree.Remove(pod.UID); err != nil {
			t.Fatal(err)
		}
	}
	if got := tree.Known(); len(got) != 0 {
		t.Errorf("%v is left", got)
	}
	tree.Clear()
	for _, mount := range tree.places() {
		if _, err := os.Stat(filepath.Join(mount, under)); err == nil {
			t.Errorf("%s is left in %s", under, mount)
		}
	}
}
