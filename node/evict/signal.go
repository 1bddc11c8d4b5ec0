package evict

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Signal is something that a node can run out of.
type Signal string

// The signals, as kubelets name them.
const (
	Memory      Signal = "memory.available"
	Disk        Signal = "nodefs.available"
	Inodes      Signal = "nodefs.inodesFree"
	ImageDisk   Signal = "imagefs.available"
	ImageInodes Signal = "imagefs.inodesFree"
	PIDs        Signal = "pid.available"
)

// Condition is what a node says of itself when a signal is low.
func (s Signal) Condition() corev1.NodeConditionType {
	switch s {
	case Memory:
		return corev1.NodeMemoryPressure
	case PIDs:
		return corev1.NodePIDPressure
	}
	return corev1.NodeDiskPressure
}

// Resource is what messages say that is short.
func (s Signal) Resource() corev1.ResourceName {
	switch s {
	case Memory:
		return corev1.ResourceMemory
	case PIDs:
		return "pids"
	case Inodes, ImageInodes:
		return "inodes"
	}
	return corev1.ResourceEphemeralStorage
}

// first sorts memory before others: it runs out fastest.
func (s Signal) first() string {
	if s == Memory {
		return "1"
	}
	return ""
}

// Threshold is how little of something is too little: a quantity, or a part of
// all there is.
type Threshold struct {
	Signal   Signal
	Quantity int64
	Percent  float32
	// Grace is how long it may be too little; 0 is not at all.
	Grace time.Duration
}

// DefaultHard are the thresholds that kubelets have when nobody says anything.
const DefaultHard = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"

// Of is the threshold where there is so much in all. Compat: parts are rounded as
// kubelets do it.
func (t Threshold) Of(capacity int64) int64 {
	if t.Percent > 0 {
		return int64(float64(capacity) * float64(t.Percent/100))
	}
	return t.Quantity
}

// Observation is how much of something there is.
type Observation struct{ Available, Capacity int64 }

// Observe takes the signals from a summary. One that the summary does not tell
// is not there.
func Observe(s *statsapi.Summary) map[Signal]Observation {
	seen := map[Signal]Observation{}
	put := func(signal Signal, available, capacity *uint64) {
		if available != nil && capacity != nil {
			seen[signal] = Observation{Available: int64(*available), Capacity: int64(*capacity)}
		}
	}
	if m := s.Node.Memory; m != nil && m.AvailableBytes != nil && m.WorkingSetBytes != nil {
		all := *m.AvailableBytes + *m.WorkingSetBytes
		put(Memory, m.AvailableBytes, &all)
	}
	if f := s.Node.Fs; f != nil {
		put(Disk, f.AvailableBytes, f.CapacityBytes)
		put(Inodes, f.InodesFree, f.Inodes)
	}
	if r := s.Node.Runtime; r != nil && r.ImageFs != nil {
		put(ImageDisk, r.ImageFs.AvailableBytes, r.ImageFs.CapacityBytes)
		put(ImageInodes, r.ImageFs.InodesFree, r.ImageFs.Inodes)
	}
	if r := s.Node.Rlimit; r != nil && r.MaxPID != nil && r.NumOfRunningProcesses != nil {
		seen[PIDs] = Observation{Available: *r.MaxPID - *r.NumOfRunningProcesses, Capacity: *r.MaxPID}
	}
	return seen
}

// Met returns the thresholds that what was seen is below.
func Met(thresholds []Threshold, seen map[Signal]Observation) []Threshold {
	var met []Threshold
	for _, t := range thresholds {
		if o, ok := seen[t.Signal]; ok && o.Capacity > 0 && o.Available < t.Of(o.Capacity) {
			met = append(met, t)
		}
	}
	return met
}

// Stats are what pods use.
type Stats map[types.UID]*statsapi.PodStats

// ByPod finds the pods of a summary.
func ByPod(s *statsapi.Summary) Stats {
	stats := Stats{}
	for i := range s.Pods {
		stats[types.UID(s.Pods[i].PodRef.UID)] = &s.Pods[i]
	}
	return stats
}

func binary(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }
