//go:build linux

package process_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/cri"
	"setpoint.dev/setpoint/node/cri/contract"
	"setpoint.dev/setpoint/node/nodetest"
	"setpoint.dev/setpoint/node/process"
)

func TestMain(m *testing.M) {
	process.Main()
	if dir := os.Getenv(serveEnv); dir != "" {
		serve(dir)
	}
	os.Exit(m.Run())
}

// folder is a short one: sockets have short names.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "setpoint-process-") //nolint:usetesting // sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// runs is a runtime that runs within the test.
type runs struct {
	cfg  process.Config
	stop func()
}

func start(t *testing.T, cfg process.Config) *runs {
	t.Helper()
	r := &runs{cfg: cfg}
	r.start(t)
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *runs) start(t *testing.T) {
	t.Helper()
	rt, err := process.Open(t.Context(), r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx) }()
	r.stop = func() {
		cancel()
		select {
		case err := <-done:
			done <- nil
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the runtime does not end")
		}
	}
}

func (r *runs) restart(t *testing.T) {
	t.Helper()
	r.stop()
	r.start(t)
}

func TestContract(t *testing.T) {
	r := start(t, process.Config{Dir: folder(t)})
	contract.Run(t, contract.Subject{
		Endpoint: "unix://" + filepath.Join(r.cfg.Dir, "cri.sock"), Name: process.Name, Image: process.HostImage,
		Restart: r.restart, Lacks: lacks(),
	})
}

// TestContractImage is the contract with an image's files as the root.
func TestContractImage(t *testing.T) {
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Skip("there is no busybox to make an image of: ", err)
	}
	r := start(t, process.Config{Dir: folder(t)})
	layer, err := nodetest.BusyboxLayer()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(r.cfg.Dir, "images", "busybox.tar"))
	if err != nil {
		t.Fatal(err)
	}
	if err := nodetest.WriteArchive(f, nodetest.Image{Names: []string{"docker.io/library/busybox:1.36"}, Layers: []*nodetest.Layer{layer}, Cmd: []string{"sh"}}); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, r).Images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: "busybox:1.36"}, nil, nil); err != nil {
		t.Fatal(err)
	}
	contract.Run(t, contract.Subject{
		Endpoint: "unix://" + filepath.Join(r.cfg.Dir, "cri.sock"), Name: process.Name, Image: "busybox:1.36",
		Restart: r.restart, Lacks: lacks(),
	})
}

// TestContractUnprivileged is TestContract as a user without rights.
func TestContractUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("TestContract runs without rights already")
	}
	unprivileged(t, "TestContract$|TestContractImage$|TestSupervisorKilled$|TestKilledContract$")
}

// nobody is a user without rights.
const nobody = 65534

// unprivileged runs tests of this binary as a user without rights, from a copy
// that such a user can reach.
func unprivileged(t *testing.T, tests string) {
	t.Helper()
	dir := folder(t)
	binary := filepath.Join(dir, "process.test")
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(binary, b, 0o755)
	}
	if err == nil {
		err = os.Chown(dir, nobody, nobody)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", tests, "-test.v", "-test.count=1")
	cmd.Dir, cmd.Env = dir, []string{"TMPDIR=" + dir, "PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "=== ") && !strings.Contains(line, "--- PASS: TestContract/") {
			t.Log(strings.TrimSuffix(line, "\n"))
		}
	}
}

// lacks says what this node cannot do.
func lacks() map[string]string {
	l := map[string]string{"own network": "pods share the host's network"}
	if os.Geteuid() != 0 {
		l["groups"] = "nobody but root may join groups"
		l["memory limit"] = "without root there are no control groups"
		l["update resources"] = "without root there are no control groups"
		l["capabilities"] = "without root there are none to have"
	}
	return l
}

// TestRefused: what cannot be had is refused by name, and leaves nothing.
func TestRefused(t *testing.T) {
	r := start(t, process.Config{Dir: folder(t)})
	client := dial(t, r)
	for name, test := range map[string]struct {
		change  func(*runtimeapi.PodSandboxConfig)
		handler string
		want    string
	}{
		"sysctl": {func(c *runtimeapi.PodSandboxConfig) {
			c.Linux = &runtimeapi.LinuxPodSandboxConfig{Sysctls: map[string]string{"kernel.shm_rmid_forced": "1"}}
		}, "", `sysctl "kernel.shm_rmid_forced" cannot be set`},
		"another host port": {func(c *runtimeapi.PodSandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{HostPort: 8080, ContainerPort: 80}}
		}, "", "host port 8080 cannot lead to port 80"},
		"handler": {func(*runtimeapi.PodSandboxConfig) {}, "runsc", `no runtime for "runsc" is configured`},
	} {
		t.Run(name, func(t *testing.T) {
			config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name}}
			test.change(config)
			_, err := client.Runtime.RunPodSandbox(t.Context(), config, test.handler)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestContainerRefused is TestRefused for containers.
func TestContainerRefused(t *testing.T) {
	r := start(t, process.Config{Dir: folder(t)})
	client := dial(t, r)
	sandbox := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod"}}
	pod, err := client.Runtime.RunPodSandbox(t.Context(), sandbox, "")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mount := func(m *runtimeapi.Mount) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) { c.Mounts = []*runtimeapi.Mount{m} }
	}
	security := func(s *runtimeapi.LinuxContainerSecurityContext) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) { c.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: s} }
	}
	for name, test := range map[string]struct {
		change func(*runtimeapi.ContainerConfig)
		want   string
	}{
		"an image that is not there": {func(c *runtimeapi.ContainerConfig) { c.Image.Image = "example.org/none:1" }, `failed to resolve image "example.org/none:1"`},
		"nothing to run":             {func(c *runtimeapi.ContainerConfig) { c.Command = nil }, "no command specified"},
		"mounts for the host": {
			mount(&runtimeapi.Mount{HostPath: dir, ContainerPath: "/x", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL}),
			"cannot be shown to the host",
		},
		"deep, but not read-only": {mount(&runtimeapi.Mount{HostPath: dir, ContainerPath: "/x", RecursiveReadOnly: true}), "recursive read-only mount conflicts with RO=false"},
		"deep, but following": {
			mount(&runtimeapi.Mount{HostPath: dir, ContainerPath: "/x", Readonly: true, RecursiveReadOnly: true, Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}),
			"recursive read-only mount conflicts with propagation",
		},
		"a mount on the root":  {mount(&runtimeapi.Mount{HostPath: dir, ContainerPath: "/"}), `invalid mount path "/"`},
		"a group without user": {security(&runtimeapi.LinuxContainerSecurityContext{RunAsGroup: &runtimeapi.Int64Value{Value: 5}}), `user group "5" is specified without user`},
		"a user of no name":    {security(&runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "no-such-user"}), `failed to get user "no-such-user"`},
		"a profile": {
			security(&runtimeapi.LinuxContainerSecurityContext{Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "mine.json"}}),
			`the seccomp profile "mine.json" cannot be applied`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: process.HostImage}, Command: []string{"true"},
			}
			test.change(config)
			_, err := client.Runtime.CreateContainer(t.Context(), pod, config, sandbox)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v", err)
			}
		})
	}
	if left, err := os.ReadDir(filepath.Join(r.cfg.Dir, "containers")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// TestWithoutMounts: where nothing can be mounted, what needs no mount runs, and
// what does is refused with the reason.
func TestWithoutMounts(t *testing.T) {
	r := start(t, process.Config{Dir: folder(t), NoMounts: true})
	client := dial(t, r)
	s, err := client.Runtime.Status(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if c := s.GetStatus().GetConditions(); len(c) != 3 || c[2].GetReason() != "NoMounts" || c[2].GetStatus() {
		t.Errorf("conditions: %v", c)
	}
	pod, err := client.Runtime.RunPodSandbox(t.Context(), &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod"}}, "")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, test := range map[string]struct {
		change func(*runtimeapi.ContainerConfig)
		want   string // in an error; empty for none
	}{
		"nothing more": {func(*runtimeapi.ContainerConfig) {}, ""},
		"the same path": {func(c *runtimeapi.ContainerConfig) {
			c.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: dir}}
		}, ""},
		"another path": {func(c *runtimeapi.ContainerConfig) {
			c.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: "/elsewhere"}}
		}, dir + " cannot be mounted at /elsewhere: mounts are switched off"},
		"read-only": {func(c *runtimeapi.ContainerConfig) {
			c.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: dir, Readonly: true}}
		}, "cannot be made read-only"},
		"root": {func(c *runtimeapi.ContainerConfig) {
			c.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{ReadonlyRootfs: true}}
		}, "a read-only root cannot be given here"},
	} {
		t.Run(name, func(t *testing.T) {
			config := &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: process.HostImage}, Command: []string{"true"},
			}
			test.change(config)
			id, err := client.Runtime.CreateContainer(t.Context(), pod, config, &runtimeapi.PodSandboxConfig{})
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v", err)
				}
				return
			}
			if err == nil {
				err = client.Runtime.StartContainer(t.Context(), id)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	if err := client.Runtime.RemovePodSandbox(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

func dial(t *testing.T, r *runs) *cri.Client {
	t.Helper()
	client, err := cri.Dial(t.Context(), filepath.Join(r.cfg.Dir, "cri.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}
