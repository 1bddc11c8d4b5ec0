package observe

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Relister tells which pods have changed in the runtime since it last looked. It
// is for one goroutine.
type Relister struct {
	Runtime Runtime
	// Owner is whose pods are looked at.
	Owner string
	seen  map[types.UID]string
}

// Changed lists everything once and returns the pods of which something came,
// went or changed its state, and all pods that there are.
func (r *Relister) Changed(ctx context.Context) (changed, all []types.UID, err error) {
	ours := map[string]string{LabelOwner: r.Owner}
	sandboxes, err := r.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: ours})
	if err != nil {
		return nil, nil, err
	}
	containers, err := r.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: ours})
	if err != nil {
		return nil, nil, err
	}
	now := states(sandboxes, containers)
	for uid, state := range now {
		if r.seen[uid] != state {
			changed = append(changed, uid)
		}
	}
	for uid := range r.seen {
		if _, still := now[uid]; !still {
			changed = append(changed, uid)
		}
	}
	r.seen = now
	return changed, slices.Collect(maps.Keys(now)), nil
}

// states has one line for each pod that differs when anything about it does.
func states(sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container) map[types.UID]string {
	parts := map[types.UID][]string{}
	for _, s := range sandboxes {
		if uid := types.UID(s.Labels[LabelPodUID]); uid != "" {
			parts[uid] = append(parts[uid], s.Id+strconv.Itoa(int(s.State)))
		}
	}
	for _, c := range containers {
		if uid := types.UID(c.Labels[LabelPodUID]); uid != "" {
			parts[uid] = append(parts[uid], c.Id+strconv.Itoa(int(c.State)))
		}
	}
	lines := make(map[types.UID]string, len(parts))
	for uid, p := range parts {
		slices.Sort(p)
		lines[uid] = strings.Join(p, " ")
	}
	return lines
}
