package collect

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels that the node gives to containers.
const (
	labelPod       = "io.kubernetes.pod.uid"
	labelContainer = "io.kubernetes.container.name"
)

func podOf(c *runtimeapi.Container) types.UID { return types.UID(c.Labels[labelPod]) }

// Plan is what to remove, by ID.
type Plan struct{ Containers, Sandboxes []string }

// MakePlan says which containers and sandboxes nobody needs. Those that are not
// a pod's are not looked at: somebody else runs them.
func MakePlan(containers []*runtimeapi.Container, sandboxes []*runtimeapi.PodSandbox, pods map[types.UID]bool) Plan {
	var plan Plan
	containers, sandboxes = slices.Clone(containers), slices.Clone(sandboxes)
	slices.SortStableFunc(containers, func(a, b *runtimeapi.Container) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	slices.SortStableFunc(sandboxes, func(a, b *runtimeapi.PodSandbox) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	kept, full := map[string]bool{}, map[string]bool{}
	for _, c := range containers {
		uid := podOf(c)
		unit := string(uid) + "/" + c.Labels[labelContainer]
		dead := c.State == runtimeapi.ContainerState_CONTAINER_EXITED
		switch {
		case uid == "" || !dead:
			full[c.PodSandboxId] = true
		case !pods[uid] || kept[unit]:
			plan.Containers = append(plan.Containers, c.Id)
		default:
			kept[unit] = true
			full[c.PodSandboxId] = true
		}
	}
	newest := map[string]bool{}
	for _, s := range sandboxes {
		uid := s.Labels[labelPod]
		first := !newest[uid]
		newest[uid] = true
		if uid == "" || s.State == runtimeapi.PodSandboxState_SANDBOX_READY || full[s.Id] || first && pods[types.UID(uid)] {
			continue
		}
		plan.Sandboxes = append(plan.Sandboxes, s.Id)
	}
	return plan
}

// Image is what is known of an image.
type Image struct {
	ID             string
	Size           int64
	Seen, LastUsed time.Time
	// Pinned images are the runtime's own.
	Pinned, Used bool
}

// Observe brings what is known of images up to date: containers run by some and
// have others mounted. An image that was there when the node started counts as seen
// long ago.
func Observe(before map[string]Image, images []*runtimeapi.Image, containers []*runtimeapi.Container, mounted []string, now time.Time) map[string]Image {
	inUse := map[string]bool{}
	for _, id := range mounted {
		inUse[id] = true
	}
	for _, c := range containers {
		inUse[c.ImageRef], inUse[c.ImageId] = true, true
		if c.Image != nil {
			inUse[c.Image.Image] = true
		}
	}
	after := map[string]Image{}
	for _, image := range images {
		known, ok := before[image.Id]
		if !ok && len(before) > 0 {
			known.Seen = now
		}
		known.ID, known.Size, known.Pinned, known.Used = image.Id, int64(image.Size), image.Pinned, inUse[image.Id]
		for _, name := range slices.Concat(image.RepoTags, image.RepoDigests) {
			known.Used = known.Used || inUse[name]
		}
		if known.Used {
			known.LastUsed = now
		}
		after[image.Id] = known
	}
	return after
}

// Unused returns images that may go, the longest unused first. One that was just
// pulled stays: its container is about to start.
func Unused(images map[string]Image, now time.Time) []Image {
	var unused []Image
	for _, image := range images {
		if !image.Used && !image.Pinned && now.Sub(image.Seen) >= minImageAge {
			unused = append(unused, image)
		}
	}
	slices.SortFunc(unused, func(a, b Image) int {
		return cmp.Or(a.LastUsed.Compare(b.LastUsed), a.Seen.Compare(b.Seen), cmp.Compare(a.ID, b.ID))
	})
	return unused
}

func used(d Disk) int64 { return 100 - min(d.Available, d.Capacity)*100/d.Capacity }

// ToFree is how much must go from a disk that is nearly full: 0 when less than
// high percent are used, else what is above low percent.
func ToFree(d Disk, high, low int64) int64 {
	if used(d) < high {
		return 0
	}
	return d.Capacity*(100-low)/100 - min(d.Available, d.Capacity)
}

func size(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }
