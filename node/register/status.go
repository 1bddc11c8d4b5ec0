package register

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/evict"
)

// Compat: at most so many images, and names of one, are told.
const (
	maxImages = 50
	maxNames  = 5
)

// Facts are what was observed of a node.
type Facts struct {
	Machine   Machine
	Addresses []corev1.NodeAddress
	// Runtime and Version are what the runtime says of itself; nil when it says
	// nothing.
	Runtime  *runtimeapi.StatusResponse
	Version  *runtimeapi.VersionResponse
	Images   []*runtimeapi.Image
	Pressure Pressure
	// Unhealthy is why the node is not ready, besides its runtime.
	Unhealthy error

	Kubelet  string
	Port     int32
	MaxPods  int64
	Reserved corev1.ResourceList
	// Thresholds are below what the node evicts pods.
	Thresholds []evict.Threshold
}

// Machine is what a node has.
type Machine struct {
	CPUs            int64
	Memory, Storage int64
	// HugePages are bytes of pages by their size, such as 2Mi.
	HugePages map[string]int64
	// OS and Arch are as Go names them.
	OS, Arch                                      string
	MachineID, SystemUUID, BootID, Kernel, System string
}

// Status says what a node's status is now. Conditions and resources that others
// have put into the status before are kept.
func Status(before *corev1.NodeStatus, f Facts, now metav1.Time) corev1.NodeStatus {
	s := *before.DeepCopy()
	s.Capacity = capacity(before.Capacity, f)
	s.Allocatable = allocatable(s.Capacity, f)
	s.Addresses = f.Addresses
	s.DaemonEndpoints.KubeletEndpoint.Port = f.Port
	s.NodeInfo = info(f)
	s.Images = images(f.Images)
	handlers(&s, f.Runtime)
	set := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) {
		condition(&s, corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now})
	}
	if f.Pressure.Memory {
		set(corev1.NodeMemoryPressure, corev1.ConditionTrue, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available")
	} else {
		set(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available")
	}
	if f.Pressure.Disk {
		set(corev1.NodeDiskPressure, corev1.ConditionTrue, "KubeletHasDiskPressure", "kubelet has disk pressure")
	} else {
		set(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
	}
	if f.Pressure.PID {
		set(corev1.NodePIDPressure, corev1.ConditionTrue, "KubeletHasInsufficientPID", "kubelet has insufficient PID available")
	} else {
		set(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available")
	}
	if err := unready(&s, f); err != nil {
		set(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", err.Error())
	} else {
		set(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status")
	}
	return s
}

// condition puts a condition where one of its type was. It has changed when its
// status has.
func condition(s *corev1.NodeStatus, c corev1.NodeCondition) {
	for i := range s.Conditions {
		if held := &s.Conditions[i]; held.Type == c.Type {
			if held.Status == c.Status {
				c.LastTransitionTime = held.LastTransitionTime
			}
			*held = c
			return
		}
	}
	s.Conditions = append(s.Conditions, c)
}

// unready is why the node cannot run pods, nil when it can.
func unready(s *corev1.NodeStatus, f Facts) error {
	var errs []error
	if f.Runtime == nil || f.Runtime.Status == nil {
		errs = append(errs, errors.New("container runtime is down"))
	} else {
		for _, c := range f.Runtime.Status.Conditions {
			what := map[string]string{runtimeapi.RuntimeReady: "container runtime not ready", runtimeapi.NetworkReady: "container runtime network not ready"}[c.Type]
			if what != "" && !c.Status {
				errs = append(errs, fmt.Errorf("%s: %s=%t reason:%s message:%s", what, c.Type, c.Status, c.Reason, c.Message))
			}
		}
	}
	errs = append(errs, f.Unhealthy)
	var missing []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceEphemeralStorage} {
		if _, ok := s.Capacity[name]; !ok {
			missing = append(missing, string(name))
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("missing node capacity for resources: %s", strings.Join(missing, ", ")))
	}
	return utilerrors.NewAggregate(errs)
}

// capacity is all that the machine has, and what others say that it has.
func capacity(before corev1.ResourceList, f Facts) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, q := range before {
		if strings.Contains(string(name), "/") {
			list[name] = q
		}
	}
	put := func(name corev1.ResourceName, n int64, format resource.Format) {
		if n > 0 {
			list[name] = *resource.NewQuantity(n, format)
		}
	}
	put(corev1.ResourceCPU, f.Machine.CPUs, resource.DecimalSI)
	put(corev1.ResourceMemory, f.Machine.Memory, resource.BinarySI)
	put(corev1.ResourceEphemeralStorage, f.Machine.Storage, resource.BinarySI)
	put(corev1.ResourcePods, f.MaxPods, resource.DecimalSI)
	for size, n := range f.Machine.HugePages {
		list[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)] = *resource.NewQuantity(n, resource.BinarySI)
	}
	return list
}

// allocatable is what pods can have: not what is reserved, and not what is left
// when the node begins to evict some.
func allocatable(capacity corev1.ResourceList, f Facts) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, q := range capacity {
		q = q.DeepCopy()
		if r, ok := f.Reserved[name]; ok {
			q.Sub(r)
		}
		switch name {
		case corev1.ResourceMemory:
			q.Sub(*resource.NewQuantity(kept(f.Thresholds, evict.Memory, capacity[name]), resource.BinarySI))
			for other, pages := range capacity {
				if strings.HasPrefix(string(other), corev1.ResourceHugePagesPrefix) {
					q.Sub(pages)
				}
			}
		case corev1.ResourceEphemeralStorage:
			if least := kept(f.Thresholds, evict.Disk, capacity[name]); least > 0 {
				q = *resource.NewQuantity(q.Value()-least, resource.DecimalSI)
			}
		}
		if q.Sign() < 0 {
			q.Set(0)
		}
		list[name] = q
	}
	return list
}

// kept is how much of something must be left at any time.
func kept(thresholds []evict.Threshold, of evict.Signal, capacity resource.Quantity) int64 {
	for _, t := range thresholds {
		if t.Signal == of && t.Grace == 0 {
			return t.Of(capacity.Value())
		}
	}
	return 0
}

func info(f Facts) corev1.NodeSystemInfo {
	m := f.Machine
	i := corev1.NodeSystemInfo{
		MachineID: m.MachineID, SystemUUID: m.SystemUUID, BootID: m.BootID, KernelVersion: m.Kernel, OSImage: m.System,
		KubeletVersion: f.Kubelet, OperatingSystem: m.OS, Architecture: m.Arch, ContainerRuntimeVersion: "://Unknown",
	}
	if f.Version != nil {
		i.ContainerRuntimeVersion = f.Version.RuntimeName + "://" + f.Version.RuntimeVersion
	}
	return i
}

// images are the largest ones, for schedulers that like images to be there.
func images(all []*runtimeapi.Image) []corev1.ContainerImage {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *runtimeapi.Image) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Id, b.Id)) })
	var out []corev1.ContainerImage
	for _, image := range sorted[:min(len(sorted), maxImages)] {
		names := slices.Concat(image.RepoDigests, image.RepoTags)
		out = append(out, corev1.ContainerImage{Names: names[:min(len(names), maxNames)], SizeBytes: int64(image.Size)})
	}
	return out
}

// handlers are the ways in which the runtime can run containers.
func handlers(s *corev1.NodeStatus, r *runtimeapi.StatusResponse) {
	s.RuntimeHandlers, s.Features = nil, nil
	if r == nil {
		return
	}
	for _, h := range r.RuntimeHandlers {
		var recursive, users bool
		if h.Features != nil {
			recursive, users = h.Features.RecursiveReadOnlyMounts, h.Features.UserNamespaces
		}
		s.RuntimeHandlers = append(s.RuntimeHandlers, corev1.NodeRuntimeHandler{
			Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &recursive, UserNamespaces: &users},
		})
	}
	slices.SortFunc(s.RuntimeHandlers, func(a, b corev1.NodeRuntimeHandler) int { return cmp.Compare(a.Name, b.Name) })
	if r.Features != nil {
		groups := r.Features.SupplementalGroupsPolicy
		s.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &groups}
	}
}

// Changed reports whether a status says something else than another one, apart
// from when it was written.
func Changed(before, now *corev1.NodeStatus) bool {
	a, b := before.DeepCopy(), now.DeepCopy()
	for _, s := range []*corev1.NodeStatus{a, b} {
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
		slices.SortFunc(s.Conditions, func(x, y corev1.NodeCondition) int { return cmp.Compare(x.Type, y.Type) })
	}
	return !equality.Semantic.DeepEqual(a, b)
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// eventOf names what has happened when a condition changed.
func eventOf(c *corev1.NodeCondition) string {
	return map[string]string{
		"MemoryPressure=True": "NodeHasInsufficientMemory", "MemoryPressure=False": "NodeHasSufficientMemory",
		"DiskPressure=True": "NodeHasDiskPressure", "DiskPressure=False": "NodeHasNoDiskPressure",
		"PIDPressure=True": "NodeHasInsufficientPID", "PIDPressure=False": "NodeHasSufficientPID",
		"Ready=True": "NodeReady", "Ready=False": "NodeNotReady",
	}[string(c.Type)+"="+string(c.Status)]
}
