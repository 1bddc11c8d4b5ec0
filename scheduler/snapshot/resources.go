package snapshot

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resources "k8s.io/component-helpers/resource"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
)

// What a container is taken to use that does not say. Compat: these are
// upstream's.
const (
	DefaultMilliCPU = 100
	DefaultMemory   = 200 << 20
)

// Resources are amounts of what nodes have and pods ask for.
type Resources struct {
	MilliCPU, Memory, Ephemeral int64
	// Pods is how many pods a node takes.
	Pods int64
	// Scalars are extended resources, huge pages and the like; nil when there
	// are none.
	Scalars map[corev1.ResourceName]int64
}

// ResourcesOf are the amounts of a list.
func ResourcesOf(list corev1.ResourceList) Resources {
	var r Resources
	for name, q := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = q.MilliValue()
		case corev1.ResourceMemory:
			r.Memory = q.Value()
		case corev1.ResourceEphemeralStorage:
			r.Ephemeral = q.Value()
		case corev1.ResourcePods:
			r.Pods = q.Value()
		default:
			if IsScalar(name) {
				if r.Scalars == nil {
					r.Scalars = map[corev1.ResourceName]int64{}
				}
				r.Scalars[name] = q.Value()
			}
		}
	}
	return r
}

// IsScalar says whether a resource is counted by its name.
func IsScalar(name corev1.ResourceName) bool {
	return v1helper.IsExtendedResourceName(name) || v1helper.IsHugePageResourceName(name) ||
		v1helper.IsPrefixedNativeResource(name) || v1helper.IsAttachableVolumeResourceName(name)
}

// None says that nothing is asked for.
func (r *Resources) None() bool {
	return r.MilliCPU == 0 && r.Memory == 0 && r.Ephemeral == 0 && len(r.Scalars) == 0
}

// plus adds times other; the scalars of r are copied, not changed.
func (r *Resources) plus(other *Resources, times int64) {
	r.MilliCPU += times * other.MilliCPU
	r.Memory += times * other.Memory
	r.Ephemeral += times * other.Ephemeral
	if len(other.Scalars) == 0 {
		return
	}
	r.Scalars = maps.Clone(r.Scalars)
	if r.Scalars == nil {
		r.Scalars = map[corev1.ResourceName]int64{}
	}
	for name, amount := range other.Scalars {
		r.Scalars[name] += times * amount
	}
}

// assumed is what containers are taken to use that do not say.
var assumed = corev1.ResourceList{
	corev1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPU, resource.DecimalSI),
	corev1.ResourceMemory: *resource.NewQuantity(DefaultMemory, resource.BinarySI),
}

// Amount is processor time in thousandths and bytes of memory.
type Amount struct{ MilliCPU, Memory int64 }

func amountOf(list corev1.ResourceList) Amount {
	cpu, memory := list[corev1.ResourceCPU], list[corev1.ResourceMemory]
	return Amount{cpu.MilliValue(), memory.Value()}
}

// measure fills in what a pod asks for.
func (p *Pod) measure() {
	pod := p.Object
	running := resources.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	requests := resources.PodRequests(pod, running)
	p.Requests, p.Asked = ResourcesOf(requests), amountOf(requests)

	whole := resources.IsPodLevelRequestsSet(pod)
	running.NonMissingContainerRequests = assumed
	if whole {
		running.NonMissingContainerRequests = missing(requests)
	}
	p.NonZero = p.Asked
	if len(running.NonMissingContainerRequests) > 0 {
		p.NonZero = amountOf(resources.PodRequests(pod, running))
	}
	p.Wanted, p.Weighed = p.Requests, p.NonZero
	if !whole && len(pod.Status.ContainerStatuses) == 0 && len(pod.Status.InitContainerStatuses) == 0 {
		return
	}
	// Compat: what is yet to be placed is measured by its spec, and its score by
	// its containers alone.
	p.Wanted = ResourcesOf(resources.PodRequests(pod, resources.PodResourcesOptions{}))
	p.Weighed = amountOf(resources.PodRequests(pod, resources.PodResourcesOptions{SkipPodLevelResources: true, NonMissingContainerRequests: assumed}))
}

// missing is what a pod with requests of its own does not ask for.
func missing(requests corev1.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, q := range assumed {
		if _, has := requests[name]; !has {
			list[name] = q
		}
	}
	return list
}
