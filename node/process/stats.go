//go:build linux

package process

import (
	"context"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/disk"
	"setpoint.dev/setpoint/node/process/cgroup"
	"setpoint.dev/setpoint/node/process/proc"
	"setpoint.dev/setpoint/node/process/supervise"
)

// sample is what a container had used at some time, and how fast it was then.
type sample struct {
	at   time.Time
	cpu  time.Duration
	rate uint64 // nanoseconds a second
}

// apart is how far two samples lie apart at least for a rate between them.
const apart = 100 * time.Millisecond

// next is the sample after s.
func (s sample) next(at time.Time, cpu time.Duration) sample {
	if s.at.IsZero() {
		return sample{at: at, cpu: cpu}
	}
	passed := at.Sub(s.at)
	if passed < apart {
		return s
	}
	rate := max(0, cpu-s.cpu).Seconds() / passed.Seconds()
	return sample{at: at, cpu: cpu, rate: uint64(rate * float64(time.Second))}
}

// used reads what a container uses: from its control group, or else from its
// processes, which are all that descend from its supervisor.
func used(c *container, started *supervise.Started, processes func() []proc.Stat) cgroup.Usage {
	var spec supervise.Spec
	if err := supervise.ReadFile(filepath.Join(c.dir, "spec.json"), &spec); err == nil && spec.Group != nil {
		if u, err := spec.Group.Used(); err == nil {
			return u
		}
	}
	var u cgroup.Usage
	for _, p := range proc.Below(processes(), started.Supervisor) {
		u.CPU += p.CPU
		u.Memory += p.Resident
		u.Faults += p.Faults
		u.MajorFaults += p.MajorFaults
		u.Processes++
	}
	u.WorkingSet, u.Resident = u.Memory, u.Memory
	return u
}

// stats measures containers. Those that have ended use nothing but room.
func (r *Runtime) stats(containers []*container) ([]*runtimeapi.ContainerStats, map[string]cgroup.Usage) {
	var all []proc.Stat
	processes := func() []proc.Stat {
		if all == nil {
			all, _ = proc.All() // what cannot be read counts as none
		}
		return all
	}
	var out []*runtimeapi.ContainerStats
	usages := map[string]cgroup.Usage{}
	for _, c := range containers {
		r.mu.Lock()
		started, running := c.started, c.state() == runtimeapi.ContainerState_CONTAINER_RUNNING
		config := c.Config.P
		r.mu.Unlock()
		now := time.Now()
		s := &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{
				Id: c.ID, Metadata: config.GetMetadata(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
			},
			WritableLayer: written(c, now),
		}
		if running {
			u := used(c, started, processes)
			usages[c.ID] = u
			r.mu.Lock()
			c.sample = c.sample.next(now, u.CPU)
			rate := c.sample.rate
			r.mu.Unlock()
			s.Cpu, s.Memory = cpuUsage(now, u, rate), memoryUsage(now, u)
		}
		out = append(out, s)
	}
	return out, usages
}

func number(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

func cpuUsage(now time.Time, u cgroup.Usage, rate uint64) *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{Timestamp: now.UnixNano(), UsageCoreNanoSeconds: number(uint64(u.CPU)), UsageNanoCores: number(rate)}
}

func memoryUsage(now time.Time, u cgroup.Usage) *runtimeapi.MemoryUsage {
	m := &runtimeapi.MemoryUsage{
		Timestamp: now.UnixNano(), WorkingSetBytes: number(u.WorkingSet), UsageBytes: number(u.Memory),
		RssBytes: number(u.Resident), PageFaults: number(u.Faults), MajorPageFaults: number(u.MajorFaults),
	}
	if u.Limit > u.WorkingSet {
		m.AvailableBytes = number(u.Limit - u.WorkingSet)
	}
	return m
}

// written is what a container wrote over its image. One on the host's files
// writes to those.
func written(c *container, now time.Time) *runtimeapi.FilesystemUsage {
	bytes, files := disk.Used(filepath.Join(c.dir, "upper"))
	return &runtimeapi.FilesystemUsage{
		Timestamp: now.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: filepath.Dir(c.dir)},
		UsedBytes: number(bytes), InodesUsed: number(files),
	}
}

// ContainerStats measures a container.
func (r *Runtime) ContainerStats(_ context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	all, _ := r.stats([]*container{c})
	return &runtimeapi.ContainerStatsResponse{Stats: all[0]}, nil
}

// ListContainerStats measures containers that run.
func (r *Runtime) ListContainerStats(_ context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	f := req.GetFilter()
	running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	r.mu.Lock()
	containers := r.containersLocked(f.GetId(), f.GetPodSandboxId(), running, f.GetLabelSelector())
	r.mu.Unlock()
	all, _ := r.stats(containers)
	return &runtimeapi.ListContainerStatsResponse{Stats: all}, nil
}

// podStats measures a pod: the sum of its containers.
func (r *Runtime) podStats(s *sandbox) *runtimeapi.PodSandboxStats {
	running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	r.mu.Lock()
	containers := r.containersLocked("", s.ID, running, nil)
	r.mu.Unlock()
	all, usages := r.stats(containers)
	now := time.Now()
	var sum cgroup.Usage
	var rate uint64
	for _, u := range usages {
		sum.CPU += u.CPU
		sum.Memory += u.Memory
		sum.WorkingSet += u.WorkingSet
		sum.Resident += u.Resident
		sum.Faults += u.Faults
		sum.MajorFaults += u.MajorFaults
		sum.Processes += u.Processes
	}
	for _, c := range all {
		rate += c.GetCpu().GetUsageNanoCores().GetValue()
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: s.ID, Metadata: s.Config.P.GetMetadata(), Labels: s.Config.P.GetLabels(), Annotations: s.Config.P.GetAnnotations(),
		},
		Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu: cpuUsage(now, sum, rate), Memory: memoryUsage(now, sum), Containers: all,
			Process: &runtimeapi.ProcessUsage{Timestamp: now.UnixNano(), ProcessCount: number(sum.Processes)},
		},
	}
}

// PodSandboxStats measures a pod.
func (r *Runtime) PodSandboxStats(_ context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	s, err := r.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	ready := s.ready()
	r.mu.Unlock()
	if !ready {
		return nil, status.Errorf(codes.FailedPrecondition, "sandbox container %q is not running", s.ID)
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: r.podStats(s)}, nil
}

// ListPodSandboxStats measures pods.
func (r *Runtime) ListPodSandboxStats(_ context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	f := req.GetFilter()
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	r.mu.Lock()
	pods := r.sandboxesLocked(f.GetId(), ready, f.GetLabelSelector())
	r.mu.Unlock()
	resp := &runtimeapi.ListPodSandboxStatsResponse{}
	for _, s := range pods {
		resp.Stats = append(resp.Stats, r.podStats(s))
	}
	return resp, nil
}
