//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/process/proc"
)

// RunPodSandbox makes a pod. There is nothing to run for it: its containers share
// what is the host's.
func (r *Runtime) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	config := req.GetConfig()
	if config.GetMetadata() == nil {
		return nil, status.Error(codes.InvalidArgument, "sandbox config must include metadata")
	}
	if err := r.possible(config, req.GetRuntimeHandler()); err != nil {
		return nil, err
	}
	id := newID()
	s := &sandbox{
		ID: id, Config: sandboxConfig{proto.CloneOf(config)}, Handler: req.GetRuntimeHandler(),
		CreatedAt: time.Now(), Boot: proc.Boot(), dir: filepath.Join(r.cfg.Dir, "sandboxes", id),
	}
	if err := r.reserve(s.name(), id, "sandbox"); err != nil {
		return nil, err
	}
	if err := r.prepare(s); err != nil {
		r.release(s.name())
		return nil, errors.Join(fmt.Errorf("failed to create sandbox: %w", err), os.RemoveAll(s.dir))
	}
	r.mu.Lock()
	r.sandboxes[id] = s
	r.mu.Unlock()
	r.emit(s.ID, s.ID, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.emit(s.ID, s.ID, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// possible refuses what a pod on the host's network cannot have.
func (r *Runtime) possible(config *runtimeapi.PodSandboxConfig, handler string) error {
	if handler != "" {
		return status.Errorf(codes.NotFound, "failed to get sandbox runtime: no runtime for %q is configured", handler)
	}
	for name := range config.GetLinux().GetSysctls() {
		return status.Errorf(codes.InvalidArgument, "sysctl %q cannot be set: pods of the process runtime share those of the host", name)
	}
	for _, p := range config.GetPortMappings() {
		if p.GetHostPort() != 0 && p.GetHostPort() != p.GetContainerPort() {
			return status.Errorf(codes.InvalidArgument, "host port %d cannot lead to port %d: pods of the process runtime share the host's network", p.GetHostPort(), p.GetContainerPort())
		}
	}
	if config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions().GetMode() == runtimeapi.NamespaceMode_POD &&
		len(config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions().GetUids()) > 0 {
		return status.Error(codes.InvalidArgument, "the process runtime has no user namespaces of pods")
	}
	return nil
}

// reserve takes a name that one sandbox or container at a time may have.
func (r *Runtime) reserve(name, id, what string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, taken := r.names[name]; taken {
		return status.Errorf(codes.AlreadyExists, "failed to reserve %s name %q: name %q is reserved for %q", what, name, name, other)
	}
	r.names[name] = id
	return nil
}

func (r *Runtime) release(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, name)
}

// prepare writes the files of a pod.
func (r *Runtime) prepare(s *sandbox) error {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return err
	}
	if dir := s.Config.P.GetLogDirectory(); dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if dns := s.Config.P.GetDnsConfig(); dns != nil && len(dns.GetServers())+len(dns.GetSearches())+len(dns.GetOptions()) > 0 {
		if err := writeFor(filepath.Join(s.dir, "resolv.conf"), resolver(dns)); err != nil {
			return err
		}
	}
	if err := writeFor(filepath.Join(s.dir, "hostname"), s.Config.P.GetHostname()+"\n"); err != nil {
		return err
	}
	return s.save()
}

// writeFor writes a file that users of containers read.
func writeFor(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}

// resolver is the text of resolv.conf.
func resolver(dns *runtimeapi.DNSConfig) string {
	var b strings.Builder
	if len(dns.GetSearches()) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(dns.GetSearches(), " "))
	}
	for _, server := range dns.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(dns.GetOptions()) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(dns.GetOptions(), " "))
	}
	return b.String()
}

// findSandbox finds a pod by its ID, or the beginning of one.
func (r *Runtime) findSandbox(id string) (*sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := find(r.sandboxes, id)
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "an error occurred when try to find sandbox %q: not found", id)
	}
	return s, nil
}

// find finds what has an ID, or the only one that has an ID that begins so.
func find[T any](all map[string]*T, id string) *T {
	if one := all[id]; one != nil || id == "" {
		return one
	}
	var found *T
	for have, one := range all {
		if strings.HasPrefix(have, id) {
			if found != nil {
				return nil
			}
			found = one
		}
	}
	return found
}

// of gives the containers of a pod.
func (r *Runtime) of(s *sandbox) []*container {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*container
	for _, c := range r.containers {
		if c.Sandbox == s.ID {
			all = append(all, c)
		}
	}
	return all
}

// StopPodSandbox ends a pod's containers, and the pod. It is no error if it has
// ended, or is gone.
func (r *Runtime) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s, err := r.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return &runtimeapi.StopPodSandboxResponse{}, nil //nolint:nilerr // Compat: what is gone has been stopped
	}
	return &runtimeapi.StopPodSandboxResponse{}, r.stopSandbox(ctx, s)
}

func (r *Runtime) stopSandbox(ctx context.Context, s *sandbox) error {
	// Nothing may start in it from here on.
	r.mu.Lock()
	was := s.ready()
	s.Stopped = true
	err := s.save()
	r.mu.Unlock()
	if err != nil {
		return err
	}
	for _, c := range r.of(s) {
		if err := r.stopAfterStart(ctx, c); err != nil {
			return fmt.Errorf("failed to stop container %q: %w", c.ID, err)
		}
	}
	if was {
		r.emit(s.ID, s.ID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return nil
}

// stopAfterStart ends a container, after a start that is under way.
func (r *Runtime) stopAfterStart(ctx context.Context, c *container) error {
	c.ops.Lock()
	defer c.ops.Unlock()
	r.await(c)
	return r.stop(ctx, c, 0)
}

// RemovePodSandbox removes a pod with its containers.
func (r *Runtime) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s, err := r.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return &runtimeapi.RemovePodSandboxResponse{}, nil //nolint:nilerr // Compat: what is gone has been removed
	}
	if err := r.stopSandbox(ctx, s); err != nil {
		return nil, err
	}
	for _, c := range r.of(s) {
		if err := r.remove(ctx, c); err != nil {
			return nil, err
		}
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return nil, err
	}
	r.emit(s.ID, s.ID, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	r.mu.Lock()
	delete(r.sandboxes, s.ID)
	delete(r.names, s.name())
	r.mu.Unlock()
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// UpdatePodSandboxResources takes note of a pod's resources, which are those of
// its containers and of the control group above them.
func (r *Runtime) UpdatePodSandboxResources(_ context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	_, err := r.findSandbox(req.GetPodSandboxId())
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, err
}
