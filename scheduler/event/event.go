// Package event is the words in which changes of the cluster are told to pods
// that wait: what has changed, and how.
package event

// Resource is what has changed.
type Resource string

// The resources that can make room for a pod.
const (
	Pod        Resource = "Pod"
	Node       Resource = "Node"
	Namespace  Resource = "Namespace"
	Claim      Resource = "PersistentVolumeClaim"
	Volume     Resource = "PersistentVolume"
	Class      Resource = "StorageClass"
	DriverNode Resource = "CSINode"
	Driver     Resource = "CSIDriver"
	Capacity   Resource = "CSIStorageCapacity"
	Attachment Resource = "VolumeAttachment"
	Everything Resource = "*"
)

// Action is how it has changed; several may be said at once.
type Action int

// The ways in which something changes. Those from Labels on are updates.
const (
	Add Action = 1 << iota
	Delete
	Labels
	Taints
	Allocatable
	Tolerations
	ScaledDown
	Other

	Update = Labels | Taints | Allocatable | Tolerations | ScaledDown | Other
)

// Event is a change.
type Event struct {
	Resource Resource
	Action   Action
	// Before and After are the object; one of them is nil when it was created or
	// deleted.
	Before, After any
}
