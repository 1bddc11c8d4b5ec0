//go:build linux

package process

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// matches says whether labels have all that a selector asks for.
func matches(labels, selector map[string]string) bool {
	for key, value := range selector {
		if have, ok := labels[key]; !ok || have != value {
			return false
		}
	}
	return true
}

// all gives the values of a map for which want holds, oldest first.
func all[T any](from map[string]*T, want func(*T) bool, made func(*T) time.Time) []*T {
	var out []*T
	for one := range maps.Values(from) {
		if want(one) {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b *T) int { return made(a).Compare(made(b)) })
	return out
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.ready() {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (s *sandbox) made() time.Time   { return s.CreatedAt }
func (c *container) made() time.Time { return c.CreatedAt }

// sandboxesLocked gives the pods of a filter.
func (r *Runtime) sandboxesLocked(id string, state *runtimeapi.PodSandboxStateValue, labels map[string]string) []*sandbox {
	one := find(r.sandboxes, id)
	return all(r.sandboxes, func(s *sandbox) bool {
		return (id == "" || s == one) && (state == nil || s.state() == state.GetState()) && matches(s.Config.P.GetLabels(), labels)
	}, (*sandbox).made)
}

// containersLocked gives the containers of a filter.
func (r *Runtime) containersLocked(id, sandbox string, state *runtimeapi.ContainerStateValue, labels map[string]string) []*container {
	one, in := find(r.containers, id), find(r.sandboxes, sandbox)
	return all(r.containers, func(c *container) bool {
		return (id == "" || c == one) && (sandbox == "" || in != nil && c.Sandbox == in.ID) &&
			(state == nil || c.state() == state.GetState()) && matches(c.Config.P.GetLabels(), labels)
	}, (*container).made)
}

// ListPodSandbox lists pods.
func (r *Runtime) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &runtimeapi.ListPodSandboxResponse{}
	f := req.GetFilter()
	for _, s := range r.sandboxesLocked(f.GetId(), f.GetState(), f.GetLabelSelector()) {
		resp.Items = append(resp.Items, &runtimeapi.PodSandbox{
			Id: s.ID, Metadata: s.Config.P.GetMetadata(), State: s.state(), CreatedAt: s.CreatedAt.UnixNano(),
			Labels: s.Config.P.GetLabels(), Annotations: s.Config.P.GetAnnotations(), RuntimeHandler: s.Handler,
		})
	}
	return resp, nil
}

// ListContainers lists containers.
func (r *Runtime) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &runtimeapi.ListContainersResponse{}
	f := req.GetFilter()
	for _, c := range r.containersLocked(f.GetId(), f.GetPodSandboxId(), f.GetState(), f.GetLabelSelector()) {
		resp.Containers = append(resp.Containers, &runtimeapi.Container{
			Id: c.ID, PodSandboxId: c.Sandbox, Metadata: c.Config.P.GetMetadata(), Image: c.Config.P.GetImage(), ImageRef: c.Ref, ImageId: c.Image,
			State: c.state(), CreatedAt: c.CreatedAt.UnixNano(), Labels: c.Config.P.GetLabels(), Annotations: c.Config.P.GetAnnotations(),
		})
	}
	return resp, nil
}

// PodSandboxStatus says how a pod is.
func (r *Runtime) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s, err := r.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &runtimeapi.PodSandboxStatusResponse{
		Status: r.sandboxStatusLocked(s), ContainersStatuses: r.statusesLocked(s.ID), Timestamp: time.Now().UnixNano(),
	}
	if req.GetVerbose() {
		resp.Info = map[string]string{"info": verbose(map[string]any{"dir": s.dir, "network": "host"})}
	}
	return resp, nil
}

func (r *Runtime) sandboxStatusLocked(s *sandbox) *runtimeapi.PodSandboxStatus {
	options := s.Config.P.GetLinux().GetSecurityContext().GetNamespaceOptions()
	network := &runtimeapi.PodSandboxNetworkStatus{}
	// Compat: a pod on the host's network, by its own wish, has no address of its own.
	if options.GetNetwork() != runtimeapi.NamespaceMode_NODE {
		network.Ip = r.cfg.Address
	}
	return &runtimeapi.PodSandboxStatus{
		Id: s.ID, Metadata: s.Config.P.GetMetadata(), State: s.state(), CreatedAt: s.CreatedAt.UnixNano(), Network: network,
		Linux:  &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: options}},
		Labels: s.Config.P.GetLabels(), Annotations: s.Config.P.GetAnnotations(), RuntimeHandler: s.Handler,
	}
}

func (r *Runtime) statusesLocked(sandbox string) []*runtimeapi.ContainerStatus {
	var statuses []*runtimeapi.ContainerStatus
	for _, c := range r.containersLocked("", sandbox, nil, nil) {
		statuses = append(statuses, c.statusLocked())
	}
	return statuses
}

// ContainerStatus says how a container is.
func (r *Runtime) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &runtimeapi.ContainerStatusResponse{Status: c.statusLocked()}
	if req.GetVerbose() {
		info := map[string]any{"dir": c.dir, "sandboxID": c.Sandbox, "args": c.Spec.Args}
		if c.started != nil {
			info["pid"] = c.started.PID
		}
		resp.Info = map[string]string{"info": verbose(info)}
	}
	return resp, nil
}

func verbose(info map[string]any) string {
	b, err := json.Marshal(info)
	if err != nil {
		return ""
	}
	return string(b)
}

func (c *container) statusLocked() *runtimeapi.ContainerStatus {
	config := c.Config.P
	out := &runtimeapi.ContainerStatus{
		Id: c.ID, Metadata: config.GetMetadata(), State: c.state(), CreatedAt: c.CreatedAt.UnixNano(),
		Image: config.GetImage(), ImageRef: c.Ref, ImageId: c.Image, Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		Mounts: config.GetMounts(), LogPath: c.Spec.Log, StopSignal: config.GetStopSignal(),
		Resources: &runtimeapi.ContainerResources{Linux: config.GetLinux().GetResources()},
		User:      &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{Uid: int64(c.User.UID), Gid: int64(c.User.GID)}},
	}
	for _, gid := range c.User.Groups {
		out.User.Linux.SupplementalGroups = append(out.User.Linux.SupplementalGroups, int64(gid))
	}
	if c.started != nil {
		out.StartedAt = c.started.At.UnixNano()
	}
	if c.exit == nil {
		return out
	}
	out.FinishedAt, out.ExitCode, out.Message = c.exit.At.UnixNano(), int32(c.exit.Code), c.exit.Message
	switch {
	case c.exit.Reason != "":
		out.Reason = c.exit.Reason
	case c.exit.OOMKilled:
		out.Reason = "OOMKilled"
	default:
		out.Reason = cmp.Or(map[bool]string{true: "Completed"}[c.exit.Code == 0], "Error")
	}
	return out
}
