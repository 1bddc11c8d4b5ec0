//go:build linux

package process_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/cri"
	"setpoint.dev/setpoint/node/cri/contract"
	"setpoint.dev/setpoint/node/process"
)

// serveEnv has the test binary be a runtime of a folder.
const serveEnv = "SETPOINT_TEST_SERVE"

func serve(dir string) {
	rt, err := process.Open(context.Background(), process.Config{Dir: dir})
	if err == nil {
		err = rt.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// killable is a runtime in a process of its own.
type killable struct {
	dir string
	cmd *exec.Cmd
}

func startKillable(t *testing.T) *killable {
	t.Helper()
	k := &killable{dir: folder(t)}
	k.start(t)
	t.Cleanup(func() { k.kill(t) })
	return k
}

func (k *killable) start(t *testing.T) {
	t.Helper()
	k.cmd = exec.Command("/proc/self/exe")
	k.cmd.Env = append(os.Environ(), serveEnv+"="+k.dir)
	k.cmd.Stderr = os.Stderr
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (k *killable) kill(t *testing.T) {
	t.Helper()
	if err := k.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = k.cmd.Wait()
}

// TestKilledContract: a runtime that is killed, not ended, is gone on with.
func TestKilledContract(t *testing.T) {
	k := startKillable(t)
	l := lacks()
	contract.Run(t, contract.Subject{
		Endpoint: "unix://" + filepath.Join(k.dir, "cri.sock"), Name: process.Name, Image: process.HostImage, Lacks: l,
		Only:    "restart",
		Restart: func(t *testing.T) { t.Helper(); k.kill(t); k.start(t) },
	})
}

// TestSupervisorKilled: a container whose supervisor was killed has ended, with
// all its processes.
func TestSupervisorKilled(t *testing.T) {
	r := start(t, process.Config{Dir: folder(t)})
	client := dial(t, r)
	mark := fmt.Sprintf("supervisor-killed-%d", os.Getpid())
	// Without a control group a process that left the session is out of reach.
	away := map[bool]string{true: "setsid sh -c 'sleep 1000; : " + mark + "' & "}[os.Geteuid() == 0]
	pod, id := shell(t, client, "one", away+"(sh -c 'sleep 1000; : "+mark+"' &); sleep 1000; : "+mark)
	var started struct{ Supervisor int }
	read(t, filepath.Join(r.cfg.Dir, "containers", id, "started.json"), &started)
	if err := unix.Kill(started.Supervisor, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s := ended(t, client, id)
	if s.GetExitCode() != 255 || s.GetReason() != "Unknown" {
		t.Errorf("status: %v", s)
	}
	if left := marked(mark); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if err := client.Runtime.RemovePodSandbox(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

// marked gives the command lines that have a mark.
func marked(mark string) []string {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var found []string
	for _, path := range paths {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), mark) {
			found = append(found, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

// TestKilledAtRandom: whenever the runtime is killed, every container has run
// once, and what it said and how it ended is known.
func TestKilledAtRandom(t *testing.T) {
	k := startKillable(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	const pods = 20
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	killing, stop := context.WithCancel(ctx)
	var killer sync.WaitGroup
	killer.Go(func() { killAtRandom(killing, t, k) })
	t.Cleanup(func() { stop(); killer.Wait() })
	for i := range pods {
		live(ctx, t, k, dir, i)
	}
	stop()
	killer.Wait()
	for i := range pods {
		b, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil || string(b) != "ran\n" {
			t.Errorf("container %d: %q %v", i, b, err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(k.dir, "containers"))
	if err != nil || len(entries) != 0 {
		t.Errorf("left: %v %v", entries, err)
	}
}

// killAtRandom kills a runtime, and starts it anew, until ctx ends. It is killed
// some time after it has answered, however slow the machine is.
func killAtRandom(ctx context.Context, t *testing.T, k *killable) {
	t.Helper()
	for {
		c, err := cri.Dial(ctx, filepath.Join(k.dir, "cri.sock"))
		if err != nil {
			return // ctx has ended
		}
		_ = c.Close(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(rand.IntN(400)) * time.Millisecond):
			k.kill(t)
			k.start(t)
		}
	}
}

// live is the life of one pod, with every step tried until it is done.
func live(ctx context.Context, t *testing.T, k *killable, dir string, i int) {
	t.Helper()
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod", Uid: strconv.Itoa(i)}}
	var pod, id string
	step := func(what string, do func(c *cri.Client) error) {
		t.Helper()
		var err error
		for ctx.Err() == nil {
			var c *cri.Client
			if c, err = cri.Dial(ctx, filepath.Join(k.dir, "cri.sock")); err != nil {
				continue
			}
			err = do(c)
			_ = c.Close(ctx)
			if err == nil {
				return
			}
		}
		t.Fatalf("pod %d: %s: %v", i, what, err)
	}
	step("run", func(c *cri.Client) error {
		// A call that was cut off may have done its work.
		all, err := c.Runtime.ListPodSandbox(ctx, nil)
		if err == nil && len(all) == 1 {
			pod = all[0].GetId()
			return nil
		}
		pod, err = c.Runtime.RunPodSandbox(ctx, config, "")
		return err
	})
	step("create", func(c *cri.Client) error {
		all, err := c.Runtime.ListContainers(ctx, nil)
		if err == nil && len(all) == 1 {
			id = all[0].GetId()
			return nil
		}
		id, err = c.Runtime.CreateContainer(ctx, pod, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: process.HostImage},
			Command: []string{"sh", "-c", fmt.Sprintf("echo ran >> %s/%d; sleep 0.0%d; exit 7", dir, i, rand.IntN(10))},
		}, config)
		return err
	})
	step("start", func(c *cri.Client) error {
		err := c.Runtime.StartContainer(ctx, id)
		if err != nil && strings.Contains(err.Error(), "container is in CONTAINER_") {
			return nil
		}
		return err
	})
	step("end", func(c *cri.Client) error {
		s, err := c.Runtime.ContainerStatus(ctx, id, false)
		if err != nil {
			return err
		}
		if s.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			time.Sleep(5 * time.Millisecond)
			return fmt.Errorf("it is %v", s.GetStatus().GetState())
		}
		if s.GetStatus().GetExitCode() != 7 {
			t.Errorf("pod %d: %v", i, s.GetStatus())
		}
		return nil
	})
	step("remove", func(c *cri.Client) error { return c.Runtime.RemovePodSandbox(ctx, pod) })
}

// shell starts a pod with a container that runs a script.
func shell(t *testing.T, client *cri.Client, name, script string) (pod, id string) {
	t.Helper()
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name}}
	pod, err := client.Runtime.RunPodSandbox(t.Context(), config, "")
	if err == nil {
		id, err = client.Runtime.CreateContainer(t.Context(), pod, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: process.HostImage}, Command: []string{"sh", "-c", script},
		}, config)
	}
	if err == nil {
		err = client.Runtime.StartContainer(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pod, id
}

// ended waits for a container's end.
func ended(t *testing.T, client *cri.Client, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		s, err := client.Runtime.ContainerStatus(t.Context(), id, false)
		if err != nil {
			t.Fatal(err)
		}
		if s.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return s.GetStatus()
		}
	}
	t.Fatal("the container does not end")
	return nil
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}
