package bench_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/node/nodetest"
)

var kubelet = flag.String("kubelet", "", "kubelet to run pods with, beside kube-apiserver, kube-controller-manager and kube-scheduler")

// nodeName is the node's on both sides.
const nodeName = "bench"

// newMachines are sides that run pods: `setpoint up` and a whole cluster of the
// peer. Each has a containerd of its own with the same settings, which is no part
// of what is measured. It skips the benchmark, and says why, where one of them
// cannot be had.
func newMachines(b *testing.B) sides {
	b.Helper()
	if !hasPeer() || *kubeControllerManager == "" || *kubeScheduler == "" || *kubelet == "" {
		b.Skip("no peer: give -kubelet, -kube-apiserver, -kube-controller-manager, -kube-scheduler and -etcd to run pods beside them")
	}
	if err := nodetest.Possible(); err != nil {
		b.Skip(err)
	}
	all := sides{setpointMachine(b), peerMachine(b)}
	for _, s := range all {
		s.awaitNode(b)
	}
	return all
}

// setpointMachine is everything in one process.
func setpointMachine(b *testing.B) *server {
	b.Helper()
	runtime := nodetest.Containerd(b)
	s := setpointServer(b, buildSetpoint(b))
	up := s.processes[0]
	up.Args = []string{
		up.Args[0], "up", "--data", filepath.Join(s.dir, "data"), "--listen", fmt.Sprintf("127.0.0.1:%d", s.port), "--kubeconfig", filepath.Join(s.dir, "kubeconfig"),
		"--token-auth-file", filepath.Join(s.dir, "tokens"), "--runtime", "unix://" + runtime.Socket, "--node-name", nodeName, "--node-ip", "127.0.0.1",
		"--node-dir", filepath.Join(runtime.Dir, "node"), "--image-gc-high-threshold", "100", "--eviction-hard", "",
	}
	s.logTo(b, up)
	s.start(b)
	b.Cleanup(s.stop)
	return s
}

// peerMachine is the peer with all of its parts.
func peerMachine(b *testing.B) *server {
	b.Helper()
	keepSettings(b)
	forget(b, "/var/lib/kubelet", "/var/log/containers")
	group := makeGroup(b)
	runtime := nodetest.Containerd(b)
	s := peerServer(b)
	s.start(b)
	b.Cleanup(s.stop)
	s.startControllers(b)
	s.startScheduler(b)
	s.startKubelet(b, runtime, group)
	return s
}

// startKubelet starts the kubelet of a kube-apiserver. It may ask as often as it
// likes, and is not to find the disk too full, as Setpoint is not. What it keeps
// is with its runtime, and goes with it.
func (s *server) startKubelet(b *testing.B, runtime *nodetest.Runtime, group string) {
	b.Helper()
	config := filepath.Join(s.dir, "kubelet-config")
	if err := os.WriteFile(config, encode(b, object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": "127.0.0.1", "port": freePort(b), "healthzPort": 0,
		"authentication": object{"anonymous": object{"enabled": false}, "webhook": object{"enabled": false}}, "authorization": object{"mode": "AlwaysAllow"},
		"containerRuntimeEndpoint": "unix://" + runtime.Socket, "cgroupDriver": "cgroupfs", "cgroupRoot": "/" + group, "failCgroupV1": false, "failSwapOn": false,
		"podLogsDir": filepath.Join(runtime.Dir, "pod-logs"), "volumePluginDir": filepath.Join(runtime.Dir, "volume-plugins"),
		"kubeAPIQPS": 5000, "kubeAPIBurst": 5000, "eventRecordQPS": 5000, "eventBurst": 5000, "makeIPTablesUtilChains": false, "oomScoreAdj": 0,
		"imageGCHighThresholdPercent": 100, "evictionHard": object{"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
	}), 0o600); err != nil {
		b.Fatal(err)
	}
	p := exec.CommandContext(b.Context(), *kubelet, "--config", config, "--kubeconfig", s.kubeconfig(b, "kubelet-client"), "--hostname-override", nodeName,
		"--root-dir", filepath.Join(runtime.Dir, "kubelet"), "--cert-dir", filepath.Join(s.dir, "kubelet-certs"))
	s.logTo(b, p)
	if err := p.Start(); err != nil {
		b.Fatal(err)
	}
	s.processes = append([]*exec.Cmd{p}, s.processes...)
}

// logTo writes down what a program says. The end of it is told if the benchmark
// fails.
func (s *server) logTo(b *testing.B, p *exec.Cmd) {
	b.Helper()
	path := filepath.Join(s.dir, filepath.Base(p.Path)+".log")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	p.Stdout, p.Stderr = f, f
	b.Cleanup(func() {
		_ = f.Close()
		if said, err := os.ReadFile(path); err == nil && b.Failed() {
			b.Logf("%s: %s", path, said[max(0, len(said)-lastWords):])
		}
	})
}

// lastWords is how much of a log is told.
const lastWords = 4000

// awaitNode waits until pods can be made and run: the node is ready and has no
// taint, and there is the service account that they get.
func (s *server) awaitNode(b *testing.B) {
	b.Helper()
	s.until(b, "the node", func() bool {
		code, answer, err := s.do(b.Context(), http.MethodGet, "/api/v1/nodes/"+nodeName, "", nil)
		if err != nil || code != http.StatusOK {
			return false
		}
		var node struct {
			Spec   struct{ Taints []struct{} }
			Status struct{ Conditions conditions }
		}
		if err := json.Unmarshal(answer, &node); err != nil {
			b.Fatal(err)
		}
		return len(node.Spec.Taints) == 0 && node.Status.Conditions.ready()
	})
	s.until(b, "the service account", func() bool {
		code, _, err := s.do(b.Context(), http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", "", nil)
		return err == nil && code == http.StatusOK
	})
}

// conditions are those of a node or a pod.
type conditions []struct{ Type, Status string }

func (all conditions) ready() bool {
	for _, c := range all {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// keepSettings restores at the end what a kubelet sets for the whole machine.
func keepSettings(b *testing.B) {
	b.Helper()
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		file := filepath.Join("/proc/sys", name)
		value, err := os.ReadFile(file)
		if err != nil {
			b.Skipf("no kubelet runs here: %v", err)
		}
		b.Cleanup(func() {
			if err := os.WriteFile(file, value, 0o600); err != nil {
				b.Errorf("a setting that the kubelet may have changed: %v", err)
			}
		})
	}
}

// forget removes at the end those folders that are not there now: a kubelet makes
// them whatever it is told.
func forget(b *testing.B, folders ...string) {
	b.Helper()
	for _, dir := range folders {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		b.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				b.Error(err)
			}
		})
	}
}

// makeGroup makes a control group for all that the kubelet runs, so that it takes
// nobody else's for a remnant of its own, and removes it at the end.
func makeGroup(b *testing.B) string {
	b.Helper()
	const top = "/sys/fs/cgroup"
	group := fmt.Sprintf("bench-%d", os.Getpid())
	trees := []string{top}
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err != nil { // version 1: one for each controller
		procs, err := filepath.Glob(filepath.Join(top, "*", "cgroup.procs"))
		if err != nil {
			b.Fatal(err)
		}
		trees = nil
		for _, p := range procs {
			trees = append(trees, filepath.Dir(p))
		}
	}
	for _, tree := range trees {
		dir := filepath.Join(tree, group)
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := removeGroup(dir); err != nil {
				b.Errorf("control group: %v", err)
			}
		})
	}
	return group
}

// removeGroup removes a group and those below it. Their files are the kernel's.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(dir)
}
