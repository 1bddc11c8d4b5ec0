// Package stats says what a node and its pods use: processor, memory, disks,
// network.
//
// In comes what a container runtime knows of its containers, and what the kernel
// knows of the machine; out comes a Summary, which is kubelet's. Rates need two
// looks: a Summary goes by the one before it, so somebody has to ask again and
// again, as node/evict does. What cannot be known is left out.
package stats

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Labels by which runtimes know whose a container is.
const (
	podNameLabel       = "io.kubernetes.pod.name"
	podNamespaceLabel  = "io.kubernetes.pod.namespace"
	podUIDLabel        = "io.kubernetes.pod.uid"
	containerNameLabel = "io.kubernetes.container.name"
)

// Runtime is what a Collector asks of a container runtime.
type Runtime interface {
	ListContainerStats(ctx context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error)
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error)
}

// Images says what the runtime's images take up.
type Images interface {
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// Config is what a Collector works with. Node, Runtime and Images are needed.
type Config struct {
	// Node is the name of the node.
	Node    string
	Runtime Runtime
	Images  Images
	// Dir is a folder on the disk that pods' files are on; "" means the root.
	Dir string
	// Logs says where the logs of a pod's containers are, each in a folder of its
	// name; nil means that they are not counted.
	Logs func(namespace, name string, uid types.UID) string
	// UID is that of a pod in the API, which for a static pod is another than its
	// containers have; nil means that they are the same.
	UID func(uid types.UID) types.UID
}

// Collector knows what is used.
type Collector struct {
	Config
	machine machine

	mu sync.Mutex // guards the fields below
	// last is what was seen last of each container, and of the node under "".
	last map[string]look
	// pids are processes in the network of each sandbox; 0 is one that is not known.
	pids map[string]int
}

// look is one look at how much processor time something has had.
type look struct {
	at    time.Time
	used  uint64 // nanoseconds
	rate  uint64 // billionths of a processor, between this look and the one before
	rated bool   // there was one before
}

// New returns a collector that has seen nothing yet.
func New(cfg Config) *Collector {
	if cfg.Dir == "" {
		cfg.Dir = "/"
	}
	if cfg.UID == nil {
		cfg.UID = func(uid types.UID) types.UID { return uid }
	}
	return &Collector{Config: cfg, last: map[string]look{}, pids: map[string]int{}}
}

// Summary says what the node and its pods use now; brief leaves out all but
// processor and memory.
func (c *Collector) Summary(ctx context.Context, brief bool) (*statsapi.Summary, error) {
	used, err := c.Runtime.ListContainerStats(ctx, &runtimeapi.ContainerStatsFilter{})
	if err != nil {
		return nil, err
	}
	running, err := c.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		return nil, err
	}
	sandboxes, err := c.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	})
	if err != nil {
		return nil, err
	}
	s := &statsapi.Summary{Node: c.node(brief), Pods: c.pods(used, running, sandboxes)}
	if !brief {
		c.addLogs(s, sandboxes)
		c.addDisks(ctx, s)
		c.addNetworks(ctx, s, sandboxes)
	}
	c.forget(running, sandboxes)
	return s, nil
}

// forget forgets those that run no more.
func (c *Collector) forget(running []*runtimeapi.Container, sandboxes []*runtimeapi.PodSandbox) {
	is := map[string]bool{nodeItself: true}
	for _, r := range running {
		is[r.Id] = true
	}
	for _, s := range sandboxes {
		is[s.Id] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.last {
		if !is[id] {
			delete(c.last, id)
		}
	}
	for id := range c.pids {
		if !is[id] {
			delete(c.pids, id)
		}
	}
}

// nodeItself is what looks at the node are kept under.
const nodeItself = ""

// shortest is the time between two looks that a rate is made of.
const shortest = time.Second

// rate takes note of how much processor time something has had, and returns how
// much of a processor it uses; false when that is not known yet.
func (c *Collector) rate(id string, at time.Time, used uint64) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, seen := c.last[id]
	since := at.Sub(before.at)
	switch {
	case seen && since < shortest:
		return before.rate, before.rated
	case !seen || used < before.used: // it has been started anew
		c.last[id] = look{at: at, used: used}
		return 0, false
	}
	rate := uint64(float64(used-before.used) / since.Seconds())
	c.last[id] = look{at: at, used: used, rate: rate, rated: true}
	return rate, true
}

// pods are the stats of all pods that run, in the order of their names.
func (c *Collector) pods(used []*runtimeapi.ContainerStats, running []*runtimeapi.Container, sandboxes []*runtimeapi.PodSandbox) []statsapi.PodStats {
	begun := map[string]int64{}
	for _, r := range running {
		begun[r.Id] = r.CreatedAt
	}
	pods := map[string]*statsapi.PodStats{}
	for _, s := range sandboxes {
		uid := c.UID(types.UID(s.Labels[podUIDLabel]))
		pods[s.Id] = &statsapi.PodStats{
			PodRef:     statsapi.PodReference{Name: s.Labels[podNameLabel], Namespace: s.Labels[podNamespaceLabel], UID: string(uid)},
			StartTime:  metav1.NewTime(time.Unix(0, s.CreatedAt)),
			Containers: []statsapi.ContainerStats{},
		}
	}
	in := map[string]string{}
	for _, r := range running {
		in[r.Id] = r.PodSandboxId
	}
	for _, u := range used {
		id := u.GetAttributes().GetId()
		if pod := pods[in[id]]; pod != nil {
			pod.Containers = append(pod.Containers, c.container(u, begun[id]))
		}
	}
	all := make([]statsapi.PodStats, 0, len(pods))
	for _, pod := range pods {
		add(pod)
		all = append(all, *pod)
	}
	slices.SortFunc(all, func(a, b statsapi.PodStats) int {
		return cmp.Or(cmp.Compare(a.PodRef.Namespace, b.PodRef.Namespace), cmp.Compare(a.PodRef.Name, b.PodRef.Name), cmp.Compare(a.PodRef.UID, b.PodRef.UID))
	})
	return all
}

// container is what a runtime says of a container, in kubelet's form.
func (c *Collector) container(u *runtimeapi.ContainerStats, begun int64) statsapi.ContainerStats {
	s := statsapi.ContainerStats{Name: u.GetAttributes().GetLabels()[containerNameLabel], StartTime: metav1.NewTime(time.Unix(0, begun))}
	if cpu := u.GetCpu(); cpu.GetUsageCoreNanoSeconds() != nil {
		at := time.Unix(0, cpu.Timestamp)
		s.CPU = &statsapi.CPUStats{Time: metav1.NewTime(at), UsageCoreNanoSeconds: &cpu.UsageCoreNanoSeconds.Value}
		if rate, known := c.rate(u.Attributes.Id, at, cpu.UsageCoreNanoSeconds.Value); known {
			s.CPU.UsageNanoCores = &rate
		}
	}
	if m := u.GetMemory(); m != nil {
		s.Memory = &statsapi.MemoryStats{
			Time: metav1.NewTime(time.Unix(0, m.Timestamp)), WorkingSetBytes: value(m.WorkingSetBytes), AvailableBytes: value(m.AvailableBytes),
			UsageBytes: value(m.UsageBytes), RSSBytes: value(m.RssBytes), PageFaults: value(m.PageFaults), MajorPageFaults: value(m.MajorPageFaults),
		}
	}
	if w := u.GetSwap(); w != nil {
		s.Swap = &statsapi.SwapStats{Time: metav1.NewTime(time.Unix(0, w.Timestamp)), SwapAvailableBytes: value(w.SwapAvailableBytes), SwapUsageBytes: value(w.SwapUsageBytes)}
	}
	if l := u.GetWritableLayer(); l != nil {
		s.Rootfs = &statsapi.FsStats{Time: metav1.NewTime(time.Unix(0, l.Timestamp)), UsedBytes: value(l.UsedBytes), InodesUsed: value(l.InodesUsed)}
	}
	return s
}

func value(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return &v.Value
}

// add says of a pod what its containers use together.
func add(pod *statsapi.PodStats) {
	slices.SortFunc(pod.Containers, func(a, b statsapi.ContainerStats) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range pod.Containers {
		if s.CPU != nil {
			if pod.CPU == nil {
				pod.CPU = &statsapi.CPUStats{Time: s.CPU.Time}
			}
			pod.CPU.UsageCoreNanoSeconds = plus(pod.CPU.UsageCoreNanoSeconds, s.CPU.UsageCoreNanoSeconds)
			pod.CPU.UsageNanoCores = plus(pod.CPU.UsageNanoCores, s.CPU.UsageNanoCores)
		}
		if s.Memory != nil {
			if pod.Memory == nil {
				pod.Memory = &statsapi.MemoryStats{Time: s.Memory.Time}
			}
			pod.Memory.WorkingSetBytes = plus(pod.Memory.WorkingSetBytes, s.Memory.WorkingSetBytes)
			pod.Memory.UsageBytes = plus(pod.Memory.UsageBytes, s.Memory.UsageBytes)
			pod.Memory.RSSBytes = plus(pod.Memory.RSSBytes, s.Memory.RSSBytes)
			pod.Memory.PageFaults = plus(pod.Memory.PageFaults, s.Memory.PageFaults)
			pod.Memory.MajorPageFaults = plus(pod.Memory.MajorPageFaults, s.Memory.MajorPageFaults)
		}
		if s.Rootfs != nil {
			if pod.EphemeralStorage == nil {
				pod.EphemeralStorage = &statsapi.FsStats{Time: s.Rootfs.Time}
			}
			pod.EphemeralStorage.UsedBytes = plus(pod.EphemeralStorage.UsedBytes, s.Rootfs.UsedBytes)
			pod.EphemeralStorage.InodesUsed = plus(pod.EphemeralStorage.InodesUsed, s.Rootfs.InodesUsed)
		}
	}
}

// plus is the sum of what is known.
func plus(a, b *uint64) *uint64 {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	sum := *a + *b
	return &sum
}
