package nodetest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/nodetest"
)

// TestContainerd runs a pod with a container on a runtime of the test's own,
// kills the runtime, and finds nothing left of either afterwards.
func TestContainerd(t *testing.T) {
	var dir string
	t.Run("pod", func(t *testing.T) {
		r := nodetest.Containerd(t)
		dir = r.Dir
		conn, err := grpc.NewClient("unix://"+r.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		c := runtimeapi.NewRuntimeServiceClient(conn)
		sandbox := &runtimeapi.PodSandboxConfig{
			Metadata:     &runtimeapi.PodSandboxMetadata{Name: "a", Namespace: "default", Uid: "1"},
			LogDirectory: filepath.Join(r.Dir, "logs"), Linux: &runtimeapi.LinuxPodSandboxConfig{},
		}
		pod, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
		if err != nil {
			t.Fatal(err)
		}
		container, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: pod.GetPodSandboxId(), SandboxConfig: sandbox,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "sleeps"}, Image: &runtimeapi.ImageSpec{Image: nodetest.BusyboxImage},
				Command: []string{"sleep", "1000"}, LogPath: "0.log", Linux: &runtimeapi.LinuxContainerConfig{},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: container.GetContainerId()}); err != nil {
			t.Fatal(err)
		}
		if err := r.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := r.Start(); err != nil {
			t.Fatal(err)
		}
		out, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: container.GetContainerId(), Cmd: []string{"echo", "here"}})
		if err != nil || string(out.GetStdout()) != "here\n" {
			t.Errorf("said %q, %v", out.GetStdout(), err)
		}
	})
	if dir == "" {
		t.Skip("no runtime was started")
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir) {
		t.Errorf("mounts below %s are still there", dir)
	}
}
