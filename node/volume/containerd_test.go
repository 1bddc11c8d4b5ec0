package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"

	"setpoint.dev/setpoint/node/cgroup"
	"setpoint.dev/setpoint/node/nodetest"
)

const (
	testUser  = 1000
	testGroup = 1234
)

// TestContainerd shows volumes, parts of them, groups and limits to a container,
// which is some user without rights, and looks at what is left after it.
func TestContainerd(t *testing.T) {
	machine := nodetest.Containerd(t)
	runtime, err := remote.NewRemoteRuntimeService(klog.NewContext(t.Context(), klog.Background()), "unix://"+machine.Socket, time.Minute, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	o := sources()
	under := fmt.Sprintf("setpoint-volume-test-%d", os.Getpid())
	v, tree, p := open(t, o), cgroup.Open(cgroup.Config{Under: under}), testPod(t)
	if err := v.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := tree.Ensure(p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(p.UID); err != nil {
			t.Error(err)
		}
		tree.Clear()
		if left, _ := filepath.Glob("/sys/fs/cgroup/*/" + under); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	})
	namespaces := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: string(p.UID)},
		Linux:    &runtimeapi.LinuxPodSandboxConfig{CgroupParent: tree.Parent(p), SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: namespaces}},
	}
	pod, err := runtime.RunPodSandbox(t.Context(), sandbox, "")
	if err != nil {
		t.Fatal(err)
	}
	c := &p.Spec.Containers[0]
	mounts, err := v.Mounts(t.Context(), p, c, Hosts{PodIPs: []string{"10.1.0.5"}, Hostname: "web"})
	if err != nil {
		t.Fatal(err)
	}
	id, err := runtime.CreateContainer(t.Context(), pod, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Name}, Image: &runtimeapi.ImageSpec{Image: "busybox:1.36"}, Command: []string{"sleep", "600"}, Mounts: mounts,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: cgroup.Linux(p, c, v.cfg.NodeAllocatable()),
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				RunAsUser: &runtimeapi.Int64Value{Value: testUser}, SupplementalGroups: []int64{testGroup}, NamespaceOptions: namespaces,
			},
		},
	}, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	sees := func(script, want string) {
		t.Helper()
		out, errs, err := runtime.ExecSync(t.Context(), id, []string{"sh", "-c", script}, time.Minute)
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%s: got %q (%s, %v), want %q", script, got, errs, err, want)
		}
	}
	sees("grep ' /memory ' /proc/mounts | cut -d' ' -f3", "tmpfs")
	sees("cat /settings/color /part; cat /keys/key", "redreds3cret")
	sees("stat -L -c %a:%g /keys/key; stat -L -c %a /token/token", "440:1234\n640")
	sees("touch /data/mine && stat -c %u:%g /data/mine", "1000:1234")
	sees("echo x > /settings/x 2>/dev/null || echo no", "no")
	sees("grep -c '10.1.0.5.web' /etc/hosts", "1")
	sees("printf bye > /dev/termination-log", "")

	o.maps["settings"] = &corev1.ConfigMap{Data: map[string]string{"color": "blue"}}
	if err := v.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	sees("cat /settings/color", "blue")
	sees("cat /part", "red") // Compat: a part stays what it was.

	last := mounts[len(mounts)-1].HostPath
	if text, err := os.ReadFile(last); err != nil || string(text) != "bye" {
		t.Errorf("the last words are %q, %v", text, err)
	}
	limited(t, tree.Parent(p), id)
	if err := runtime.StopPodSandbox(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := runtime.RemovePodSandbox(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := v.Remove(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
}

// testPod uses volumes of all kinds.
func testPod(t *testing.T) *corev1.Pod {
	p := pod(t, "[{name: data, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory}}, {name: settings, configMap: {name: settings, defaultMode: 0644}}, "+
		"{name: keys, secret: {secretName: keys, defaultMode: 0400}}, {name: token, projected: {defaultMode: 0644, sources: [{serviceAccountToken: {path: token}}]}}]")
	user, group := int64(testUser), int64(testGroup)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, FSGroup: &group}
	c := &p.Spec.Containers[0]
	c.TerminationMessagePath = "/dev/termination-log"
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "settings", MountPath: "/part", SubPath: "color"})
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	return p
}

// limited looks for the limit of a container in the pod's group.
func limited(t *testing.T, parent, id string) {
	t.Helper()
	if parent == "" {
		t.Log("limits are not looked at: groups cannot be made here")
		return
	}
	pattern, file := filepath.Join("/sys/fs/cgroup/memory", parent, id), "memory.limit_in_bytes"
	if cgroup.Unified() {
		pattern, file = filepath.Join("/sys/fs/cgroup", parent, id), "memory.max"
	}
	if text, err := os.ReadFile(filepath.Join(pattern, file)); err != nil || strings.TrimSpace(string(text)) != fmt.Sprint(64<<20) {
		t.Errorf("memory is limited to %s, %v", text, err)
	}
}
