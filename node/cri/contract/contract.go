// Package contract is what a node asks of every container runtime: one suite that
// the built-in runtime and those of others pass.
//
// In comes a Subject: where a runtime serves, and what it is able to do; out come
// failed tests. Every test makes pods of its own and removes them. What a runtime
// is not able to do is left out with a reason, never passed over in silence.
package contract

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/cri"
)

// Subject is a runtime that is put to the test.
type Subject struct {
	// Endpoint is where it serves.
	Endpoint string
	// Name is what it calls itself.
	Name string
	// Image is one that is there and has a shell and the usual small programs.
	Image string
	// Restart kills the runtime and starts it anew; nil if that cannot be done.
	Restart func(t *testing.T)
	// Only is the one test to run; empty for all.
	Only string
	// Lacks says what the runtime is not able to do, and why, by the test's name.
	Lacks map[string]string
}

// Run puts a runtime to the test.
func Run(t *testing.T, s Subject) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, b *bench)
	}{
		{"version", version},
		{"status", runtimeStatus},
		{"sandbox life", sandboxLife},
		{"sandbox filters", sandboxFilters},
		{"sandbox names", sandboxNames},
		{"container life", containerLife},
		{"container exits", containerExits},
		{"container start fails", startFails},
		{"container filters", containerFilters},
		{"container names", containerNames},
		{"dead sandbox", deadSandbox},
		{"unknown", unknown},
		{"environment", environment},
		{"user", user},
		{"groups", groups},
		{"no new privileges", noNewPrivileges},
		{"capabilities", capabilities},
		{"mounts", mounts},
		{"read-only root", readOnlyRoot},
		{"masked and read-only paths", coveredPaths},
		{"hostname", hostname},
		{"logs", logs},
		{"log rotation", logRotation},
		{"exec sync", execSync},
		{"exec timeout ends all", execTree},
		{"exec", exec},
		{"exec on a terminal", execTerminal},
		{"attach", attach},
		{"attach to a terminal", attachTerminal},
		{"port forward", portForward},
		{"stop with grace", stopGrace},
		{"stop signal", stopSignal},
		{"nothing is left", nothingLeft},
		{"remove while it runs", removeRunning},
		{"restart", restart},
		{"stats", stats},
		{"pod stats", podStats},
		{"memory limit", memoryLimit},
		{"update resources", updateResources},
		{"events", events},
		{"follow", follow},
		{"images", images},
		{"checkpoint", checkpoint},
	} {
		if s.Only != "" && s.Only != test.name {
			continue
		}
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			if why := s.Lacks[test.name]; why != "" {
				t.Skipf("%s: %s", s.Name, why)
			}
			test.run(t, newBench(t, s))
		})
	}
}

// patience is how long anything may take that is waited for.
const patience = 30 * time.Second

// bench is where one test works.
type bench struct {
	Subject
	client *cri.Client
	ctx    context.Context //nolint:containedctx // that of the test
	dir    string
}

func newBench(t *testing.T, s Subject) *bench {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	b := &bench{Subject: s, ctx: ctx, dir: t.TempDir()}
	// Containers of any user write there.
	must(t, os.Chmod(b.dir, 0o777))
	b.dial(t)
	return b
}

func (b *bench) dial(t *testing.T) {
	client, err := cri.Dial(b.ctx, b.Endpoint)
	must(t, err)
	b.client = client
	t.Cleanup(func() { _ = client.Close(context.Background()) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// count makes names that no other test has.
var count atomic.Int64

func unique(what string) string { return fmt.Sprintf("%s-%d-%d", what, os.Getpid(), count.Add(1)) }

// pod is a sandbox of a test, which is removed at its end.
type pod struct {
	*bench
	id     string
	config *runtimeapi.PodSandboxConfig
}

func (b *bench) podConfig() *runtimeapi.PodSandboxConfig {
	uid := unique("uid")
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod", Uid: uid, Namespace: "contract"},
		Hostname: "contract-pod", LogDirectory: filepath.Join(b.dir, uid),
		Labels: map[string]string{"test": uid}, Annotations: map[string]string{"note": "kept as it is"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{}}},
	}
}

// pod makes a sandbox, changed before by those who ask.
func (b *bench) pod(t *testing.T, change ...func(*runtimeapi.PodSandboxConfig)) *pod {
	t.Helper()
	config := b.podConfig()
	for _, f := range change {
		f(config)
	}
	id, err := b.client.Runtime.RunPodSandbox(b.ctx, config, "")
	must(t, err)
	b.removeAtEnd(t, id)
	return &pod{bench: b, id: id, config: config}
}

func (b *bench) removeAtEnd(t *testing.T, id string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// The test's own connection may be gone.
		client, err := cri.Dial(ctx, b.Endpoint)
		if err != nil {
			t.Error(err)
			return
		}
		defer client.Close(ctx) //nolint:errcheck // the test is over
		// Compat: older runtimes do not take what is gone for stopped.
		if err := client.Runtime.StopPodSandbox(ctx, id); err != nil && status.Code(err) != codes.NotFound {
			t.Error(err)
		}
		if err := client.Runtime.RemovePodSandbox(ctx, id); err != nil {
			t.Error(err)
		}
	})
}

// shell is a container that runs a script.
func (p *pod) shell(script string) *runtimeapi.ContainerConfig {
	name := unique("c")
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: 2},
		Image:    &runtimeapi.ImageSpec{Image: p.Image}, Command: []string{"sh", "-c"}, Args: []string{script},
		Labels: map[string]string{"container": name}, Annotations: map[string]string{"note": "kept, too"},
		LogPath: name + "/0.log",
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{}, SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{}},
		},
	}
}

// create makes a container.
func (p *pod) create(t *testing.T, config *runtimeapi.ContainerConfig) string {
	t.Helper()
	id, err := p.client.Runtime.CreateContainer(p.ctx, p.id, config, p.config)
	must(t, err)
	return id
}

// start makes a container and starts it.
func (p *pod) start(t *testing.T, config *runtimeapi.ContainerConfig) string {
	t.Helper()
	id := p.create(t, config)
	must(t, p.client.Runtime.StartContainer(p.ctx, id))
	return id
}

// status is how a container is.
func (b *bench) status(t *testing.T, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	resp, err := b.client.Runtime.ContainerStatus(b.ctx, id, false)
	must(t, err)
	return resp.GetStatus()
}

// ended waits for a container's end.
func (b *bench) ended(t *testing.T, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	var s *runtimeapi.ContainerStatus
	b.until(t, "the container ends", func() bool {
		s = b.status(t, id)
		return s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return s
}

// until waits until something holds.
func (b *bench) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// line is a line of a container's log.
type line struct {
	at          time.Time
	stream, tag string
	text        string
}

// log reads a container's log.
func (p *pod) log(t *testing.T, config *runtimeapi.ContainerConfig) []line {
	t.Helper()
	return readLog(t, filepath.Join(p.config.GetLogDirectory(), config.GetLogPath()))
}

func readLog(t *testing.T, path string) []line {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	var all []line
	for text := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSuffix(text, "\n"), " ", 4)
		if len(fields) != 4 {
			t.Fatalf("no CRI log line: %q", text)
		}
		at, err := time.Parse(time.RFC3339Nano, fields[0])
		must(t, err)
		all = append(all, line{at: at, stream: fields[1], tag: fields[2], text: fields[3]})
	}
	return all
}

// says runs a script to its end and gives what it wrote, line by line.
func (p *pod) says(t *testing.T, config *runtimeapi.ContainerConfig) []string {
	t.Helper()
	id := p.start(t, config)
	s := p.ended(t, id)
	var out []string
	for _, l := range p.log(t, config) {
		out = append(out, l.text)
	}
	if s.GetExitCode() != 0 {
		t.Fatalf("exit code %d, reason %s: %s\n%s", s.GetExitCode(), s.GetReason(), s.GetMessage(), strings.Join(out, "\n"))
	}
	return out
}

// sh runs a script in a container that runs, and gives what it wrote.
func (b *bench) sh(t *testing.T, id, script string) string {
	t.Helper()
	stdout, stderr, err := b.client.Runtime.ExecSync(b.ctx, id, []string{"sh", "-c", script}, patience)
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", script, err, stdout, stderr)
	}
	return strings.TrimSpace(string(stdout))
}
