package nodetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Close ends the runtime and all that it still runs, and removes what it made
// on this machine: processes, mounts, network, folders.
func (r *Runtime) Close() error {
	err := r.removePods()
	err = errors.Join(err, r.Kill()) // whoever starts processes goes before them
	for range 100 {
		pids := r.processes()
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be gone already
		}
		time.Sleep(20 * time.Millisecond)
	}
	err = errors.Join(err, r.unmount(), r.disconnect())
	return errors.Join(err, os.RemoveAll(r.Dir))
}

// processes are the shims of this runtime and what runs below them.
func (r *Runtime) processes() []int {
	parents, pids := map[int]int{}, []int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		after := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(after) < 2 || after[0] == "Z" {
			continue
		}
		parents[pid], _ = strconv.Atoi(after[1])
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if strings.Contains(string(line), r.Socket) && strings.Contains(string(line), "shim") {
			pids = append(pids, pid)
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, parent := range parents {
			if slices.Contains(pids, parent) && !slices.Contains(pids, pid) {
				pids, grown = append(pids, pid), true
			}
		}
	}
	return pids
}

// unmount unmounts what is mounted below the runtime's folder, the last first.
func (r *Runtime) unmount() error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(data), "\n")
	slices.Reverse(lines)
	for _, line := range lines {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], r.Dir+"/") {
			err = errors.Join(err, unix.Unmount(fields[4], unix.MNT_DETACH))
		}
	}
	return err
}

// disconnect removes the bridge of the pods. The rules that name it went with
// the pods.
func (r *Runtime) disconnect() error {
	if _, err := net.InterfaceByName(r.Bridge); err != nil {
		return nil //nolint:nilerr // there is none
	}
	if out, err := exec.Command("ip", "link", "delete", r.Bridge).CombinedOutput(); err != nil {
		return fmt.Errorf("bridge %s: %w: %s", r.Bridge, err, out)
	}
	return nil
}

// removePods stops and removes all pods, so that their network is taken down
// by who set it up.
func (r *Runtime) removePods() error {
	if r.process == nil {
		if err := r.Start(); err != nil {
			return err
		}
	}
	return r.cri(func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
		pods, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		for _, pod := range pods.GetItems() {
			_, stopped := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.GetId()})
			_, removed := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.GetId()})
			err = errors.Join(err, stopped, removed)
		}
		return err
	})
}
