package observe

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// Runtime is what is asked of a runtime; cri-api's RuntimeService has it.
type Runtime interface {
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error)
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
}

// Tail reads the end of a container's log: at most so many lines and bytes.
type Tail func(ctx context.Context, path string, lines int64, bytes int) string

// Read is what a runtime has of a pod. What goes while it is read is left out.
func Read(ctx context.Context, runtime Runtime, uid types.UID, tail Tail) (*Pod, error) {
	of := map[string]string{LabelPodUID: string(uid)}
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: of})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	p := &Pod{UID: string(uid)}
	for _, s := range sandboxes {
		res, err := runtime.PodSandboxStatus(ctx, s.Id, false)
		switch {
		case crierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("sandbox status: %w", err)
		}
		p.Sandboxes = append(p.Sandboxes, res.Status)
		p.Namespace, p.Name = res.Status.GetMetadata().GetNamespace(), res.Status.GetMetadata().GetName()
	}
	slices.SortStableFunc(p.Sandboxes, func(a, b *runtimeapi.PodSandboxStatus) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	if len(p.Sandboxes) > 0 && p.Sandboxes[0].State == runtimeapi.PodSandboxState_SANDBOX_READY {
		p.IPs = addresses(p.Sandboxes[0])
	}
	return p, p.readContainers(ctx, runtime, of, tail)
}

func (p *Pod) readContainers(ctx context.Context, runtime Runtime, of map[string]string, tail Tail) error {
	containers, err := runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: of})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		res, err := runtime.ContainerStatus(ctx, c.Id, false)
		switch {
		case crierrors.IsNotFound(err):
			continue
		case err != nil:
			return fmt.Errorf("container status: %w", err)
		}
		seen := container(res.Status, c.PodSandboxId)
		if seen.State == Exited {
			seen.addMessage(ctx, res.Status, tail)
		}
		p.Containers = append(p.Containers, seen)
	}
	slices.SortStableFunc(p.Containers, func(a, b *Container) int { return b.Created.Compare(a.Created) })
	return nil
}

// addresses are those of a sandbox: none when one of them makes no sense.
func addresses(s *runtimeapi.PodSandboxStatus) []string {
	var all []string
	if ip := s.GetNetwork().GetIp(); ip != "" {
		all = append(all, ip)
	}
	for _, more := range s.GetNetwork().GetAdditionalIps() {
		all = append(all, more.Ip)
	}
	if slices.ContainsFunc(all, func(ip string) bool { _, err := netip.ParseAddr(ip); return err != nil }) {
		return nil
	}
	return all
}
