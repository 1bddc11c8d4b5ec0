package stats

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"setpoint.dev/setpoint/node/disk"
)

// node is what the machine as a whole uses.
func (c *Collector) node(brief bool) statsapi.NodeStats {
	now := time.Now()
	s := statsapi.NodeStats{NodeName: c.Node, StartTime: metav1.NewTime(c.machine.booted())}
	if used, known := c.machine.processor(); known {
		s.CPU = &statsapi.CPUStats{Time: metav1.NewTime(now), UsageCoreNanoSeconds: &used}
		if rate, known := c.rate(nodeItself, now, used); known {
			s.CPU.UsageNanoCores = &rate
		}
	}
	if m, swap := c.machine.memory(); m != nil {
		m.Time, swap.Time = metav1.NewTime(now), metav1.NewTime(now)
		s.Memory, s.Swap = m, swap
	}
	if brief {
		return s
	}
	if r := c.machine.processes(); r != nil {
		r.Time = metav1.NewTime(now)
		s.Rlimit = r
	}
	s.Network = network(c.machine.interfaces(0), c.machine.mainInterface(), now)
	return s
}

// addLogs says what logs of containers take up.
func (c *Collector) addLogs(s *statsapi.Summary, sandboxes []*runtimeapi.PodSandbox) {
	if c.Logs == nil {
		return
	}
	folders := map[string]string{}
	for _, sandbox := range sandboxes {
		folders[nameOf(sandbox)] = c.Logs(sandbox.Labels[podNamespaceLabel], sandbox.Labels[podNameLabel], types.UID(sandbox.Labels[podUIDLabel]))
	}
	now := metav1.NewTime(time.Now())
	for i := range s.Pods {
		pod := &s.Pods[i]
		for j := range pod.Containers {
			bytes, files := disk.Used(filepath.Join(folders[pod.PodRef.Namespace+"/"+pod.PodRef.Name], pod.Containers[j].Name))
			pod.Containers[j].Logs = &statsapi.FsStats{Time: now, UsedBytes: &bytes, InodesUsed: &files}
			if pod.EphemeralStorage == nil {
				pod.EphemeralStorage = &statsapi.FsStats{Time: now}
			}
			pod.EphemeralStorage.UsedBytes = plus(pod.EphemeralStorage.UsedBytes, &bytes)
			pod.EphemeralStorage.InodesUsed = plus(pod.EphemeralStorage.InodesUsed, &files)
		}
	}
}

// nameOf is the name of a sandbox's pod.
func nameOf(s *runtimeapi.PodSandbox) string {
	return s.Labels[podNamespaceLabel] + "/" + s.Labels[podNameLabel]
}

// addDisks says how full disks are: that of the node, and that of images.
func (c *Collector) addDisks(ctx context.Context, s *statsapi.Summary) {
	s.Node.Fs = c.machine.disk(c.Dir)
	info, err := c.Images.ImageFsInfo(ctx)
	if err != nil {
		return // it is left out
	}
	s.Node.Runtime = &statsapi.RuntimeStats{ImageFs: c.images(info.GetImageFilesystems()), ContainerFs: c.images(info.GetContainerFilesystems())}
	if s.Node.Runtime.ContainerFs == nil {
		s.Node.Runtime.ContainerFs = s.Node.Runtime.ImageFs
	}
	whole := s.Node.Runtime.ContainerFs
	for i := range s.Pods {
		share(s.Pods[i].EphemeralStorage, s.Node.Fs)
		for j := range s.Pods[i].Containers {
			share(s.Pods[i].Containers[j].Rootfs, whole)
			share(s.Pods[i].Containers[j].Logs, s.Node.Fs)
		}
	}
}

// images is the disk of a runtime's files, with what these take up of it.
func (c *Collector) images(all []*runtimeapi.FilesystemUsage) *statsapi.FsStats {
	if len(all) == 0 {
		return nil
	}
	fs := c.machine.disk(all[0].GetFsId().GetMountpoint())
	if fs == nil {
		fs = &statsapi.FsStats{Time: metav1.NewTime(time.Unix(0, all[0].Timestamp))}
	}
	fs.UsedBytes, fs.InodesUsed = value(all[0].UsedBytes), value(all[0].InodesUsed)
	return fs
}

// share says of something on a disk how much there is of that.
func share(of, whole *statsapi.FsStats) {
	if of != nil && whole != nil {
		of.AvailableBytes, of.CapacityBytes, of.Inodes, of.InodesFree = whole.AvailableBytes, whole.CapacityBytes, whole.Inodes, whole.InodesFree
	}
}

// addNetworks says what pods have sent and received, where they have a network of
// their own.
func (c *Collector) addNetworks(ctx context.Context, s *statsapi.Summary, sandboxes []*runtimeapi.PodSandbox) {
	pids := map[string]int{}
	for _, sandbox := range sandboxes {
		pids[nameOf(sandbox)] = c.pid(ctx, sandbox.Id)
	}
	now := time.Now()
	for i := range s.Pods {
		ref := s.Pods[i].PodRef
		if pid := pids[ref.Namespace+"/"+ref.Name]; pid > 0 {
			s.Pods[i].Network = network(c.machine.interfaces(pid), "eth0", now)
		}
	}
}

// network is what goes through interfaces; main is the one that counts most.
func network(all []statsapi.InterfaceStats, main string, now time.Time) *statsapi.NetworkStats {
	if len(all) == 0 {
		return nil
	}
	n := &statsapi.NetworkStats{Time: metav1.NewTime(now), Interfaces: all}
	for _, one := range all {
		if one.Name == main {
			n.InterfaceStats = one
		}
	}
	return n
}

// pid is a process in the network of a sandbox; 0 when that is the node's, or not
// known.
func (c *Collector) pid(ctx context.Context, sandbox string) int {
	c.mu.Lock()
	pid, known := c.pids[sandbox]
	c.mu.Unlock()
	if known {
		return pid
	}
	is, err := c.Runtime.PodSandboxStatus(ctx, sandbox, true)
	if err != nil {
		return 0 // it is asked again
	}
	if is.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		pid = pidOf(is.GetInfo())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pids[sandbox] = pid
	return pid
}

// pidOf finds a process in what runtimes say of a sandbox when they say all: under
// pid, or in a document under info.
func pidOf(info map[string]string) int {
	if pid, err := strconv.Atoi(info["pid"]); err == nil {
		return pid
	}
	var all struct {
		PID int `json:"pid"`
	}
	if json.Unmarshal([]byte(info["info"]), &all) != nil {
		return 0
	}
	return all.PID
}
