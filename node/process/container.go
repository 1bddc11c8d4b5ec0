//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/process/cgroup"
	"setpoint.dev/setpoint/node/process/proc"
	"setpoint.dev/setpoint/node/process/supervise"
)

// CreateContainer makes the record of a container, and of what its supervisor
// will be told.
func (r *Runtime) CreateContainer(_ context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	config := req.GetConfig()
	if config.GetMetadata() == nil {
		return nil, status.Error(codes.InvalidArgument, "container config must include metadata")
	}
	s, err := r.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "failed to find sandbox id %q: not found", req.GetPodSandboxId())
	}
	id := newID()
	name := containerName(config.GetMetadata(), s)
	if err := r.reserve(name, id, "container"); err != nil {
		return nil, err
	}
	c := &container{
		ID: id, Sandbox: s.ID, Config: containerConfig{proto.CloneOf(config)}, CreatedAt: time.Now(),
		dir: filepath.Join(r.cfg.Dir, "containers", id), done: make(chan struct{}),
	}
	if err := r.create(s, c); err != nil {
		r.release(name)
		_ = os.RemoveAll(c.dir)
		return nil, err
	}
	r.emit(c.ID, s.ID, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

func (r *Runtime) create(s *sandbox, c *container) error {
	if err := r.describe(s, c); err != nil {
		return err
	}
	for _, dir := range []string{"", "root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(c.dir, dir), 0o700); err != nil {
			return err
		}
	}
	// The root is for the container's user to enter, who may be any.
	for _, dir := range []string{"root", "upper"} {
		if err := os.Chmod(filepath.Join(c.dir, dir), 0o755); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !s.ready() || r.sandboxes[s.ID] == nil {
		return status.Errorf(codes.FailedPrecondition, "failed to create container: sandbox %q is not running", s.ID)
	}
	if err := c.save(); err != nil {
		return err
	}
	r.containers[c.ID] = c
	return nil
}

// findContainer finds a container by its ID, or the beginning of one.
func (r *Runtime) findContainer(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := find(r.containers, id)
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "an error occurred when try to find container %q: not found", id)
	}
	return c, nil
}

// starting bounds how long a container's start may take.
const starting = 2 * time.Minute

// StartContainer starts a container that was made and has not run.
func (r *Runtime) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.ops.Lock()
	defer c.ops.Unlock()
	r.await(c)
	r.mu.Lock()
	state, s := c.state(), r.sandboxes[c.Sandbox]
	ready := s != nil && s.ready()
	r.mu.Unlock()
	if state != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, status.Errorf(codes.FailedPrecondition, "failed to start container %q: container is in %s state", c.ID, state)
	}
	if !ready {
		return nil, status.Errorf(codes.FailedPrecondition, "sandbox container %q is not running", c.Sandbox)
	}
	// Once begun it is not broken off by a caller who no longer waits.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), starting)
	defer cancel()
	if err := r.start(ctx, c); err != nil {
		// Compat: containerd's words and code for a container that did not start.
		r.finish(c, supervise.Exit{Code: 128, At: time.Now(), Reason: "StartError", Message: err.Error()})
		return nil, status.Errorf(codes.Unknown, "failed to start container %q: unable to start container process: %v", c.ID, err)
	}
	started, err := supervise.ReadStarted(c.dir)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	c.started = started
	r.mu.Unlock()
	r.emit(c.ID, c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	r.watch(c)
	return &runtimeapi.StartContainerResponse{}, nil
}

func (r *Runtime) start(ctx context.Context, c *container) error {
	spec := c.Spec
	group, err := r.group(c)
	if err != nil {
		return err
	}
	spec.Group = group
	if err := supervise.Start(ctx, spec); err != nil {
		if group != nil {
			err = errors.Join(err, group.Remove())
		}
		return err
	}
	return nil
}

// group makes the control group of a container; nil where there is none to have.
func (r *Runtime) group(c *container) (*cgroup.Group, error) {
	if r.groups == nil {
		return nil, nil
	}
	group, err := r.groups.Create(c.Group)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EBUSY) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := group.Set(limits(c.Config.P.GetLinux().GetResources())); err != nil {
		return nil, errors.Join(fmt.Errorf("set limits: %w", err), group.Remove())
	}
	return group, nil
}

// limits are those of a control group.
func limits(l *runtimeapi.LinuxContainerResources) cgroup.Limits {
	return cgroup.Limits{
		Shares: l.GetCpuShares(), Quota: l.GetCpuQuota(), Period: l.GetCpuPeriod(),
		Memory: l.GetMemoryLimitInBytes(), Swap: l.GetMemorySwapLimitInBytes(),
		CPUs: l.GetCpusetCpus(), Memories: l.GetCpusetMems(), Unified: l.GetUnified(),
	}
}

// watch waits for a container's end, for as long as the runtime lives.
func (r *Runtime) watch(c *container) {
	r.watches.Go(func() {
		if r.life.Err() != nil {
			return
		}
		r.await(c)
		if supervise.Wait(r.life, c.dir) == nil {
			r.settle(c)
		}
	})
}

// await waits until a supervisor that an earlier runtime met its end with says
// that its container has started.
func (r *Runtime) await(c *container) {
	for r.life.Err() == nil {
		r.mu.Lock()
		known := c.started != nil || c.exit != nil
		r.mu.Unlock()
		if known || !supervise.Alive(c.dir) {
			return
		}
		if started, err := supervise.ReadStarted(c.dir); err == nil {
			r.mu.Lock()
			c.started = started
			r.mu.Unlock()
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// settle notes how a container ended whose supervisor has.
func (r *Runtime) settle(c *container) {
	exit, err := supervise.ReadExit(c.dir)
	if err == nil {
		r.finish(c, *exit)
		return
	}
	r.sweep(c)
	// Compat: what containerd says of a container that it lost sight of.
	r.finish(c, supervise.Exit{Code: 255, At: time.Now(), Reason: "Unknown"})
}

// finish writes and tells how a container ended.
func (r *Runtime) finish(c *container, exit supervise.Exit) {
	if err := supervise.WriteExit(c.dir, exit); err != nil {
		r.logger.Error("how a container ended cannot be written", "container", c.ID, "err", err)
	}
	r.mu.Lock()
	ended := c.exit == nil
	c.exit = &exit
	r.mu.Unlock()
	if ended {
		close(c.done)
		r.emit(c.ID, c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
}

// sweep ends what is left of a container whose supervisor was killed: those in
// its control group, and those of its session.
func (r *Runtime) sweep(c *container) {
	var spec supervise.Spec
	if err := supervise.ReadFile(filepath.Join(c.dir, "spec.json"), &spec); err == nil && spec.Group != nil {
		for range 100 {
			pids, err := spec.Group.Processes()
			if err != nil || len(pids) == 0 {
				break
			}
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err := spec.Group.Remove(); err != nil {
			r.logger.Warn("a control group is left", "container", c.ID, "err", err)
		}
	}
	started, err := supervise.ReadStarted(c.dir)
	if err != nil {
		return
	}
	all, err := proc.All()
	if err != nil {
		return
	}
	for _, p := range all {
		// A pid that was given anew began later than the session did, or is its leader.
		if p.Session == started.PID && p.Began >= started.Began && (p.PID != started.PID || p.Began == started.Began) {
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
	}
}

// StopContainer asks a container to end, and ends it after a while.
func (r *Runtime) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if err != nil {
		return &runtimeapi.StopContainerResponse{}, nil //nolint:nilerr // Compat: what is gone has been stopped
	}
	return &runtimeapi.StopContainerResponse{}, r.stop(ctx, c, time.Duration(req.GetTimeout())*time.Second)
}

// killing bounds how long processes may take to go that were killed.
const killing = 15 * time.Second

// stop ends a container that runs, with a grace that may be 0.
func (r *Runtime) stop(ctx context.Context, c *container, grace time.Duration) error {
	r.mu.Lock()
	state := c.state()
	r.mu.Unlock()
	if state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil
	}
	if grace > 0 {
		if err := supervise.Signal(ctx, c.dir, unix.Signal(c.StopSignal)); err != nil && !errors.Is(err, supervise.ErrGone) {
			return fmt.Errorf("failed to stop container %q: %w", c.ID, err)
		}
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-time.After(grace):
		}
	}
	kill, cancel := context.WithTimeout(ctx, killing)
	defer cancel()
	err := supervise.Kill(kill, c.dir)
	if err != nil && !errors.Is(err, supervise.ErrGone) && ctx.Err() == nil {
		// A supervisor that does not answer goes itself, and its child with it.
		r.mu.Lock()
		pid := c.started.Supervisor
		r.mu.Unlock()
		if supervise.Alive(c.dir) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(killing):
		return status.Errorf(codes.DeadlineExceeded, "an error occurs during waiting for container %q to be killed", c.ID)
	}
}

// RemoveContainer removes a container, and ends it first if it runs. It is no
// error if it is gone.
func (r *Runtime) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if err != nil {
		return &runtimeapi.RemoveContainerResponse{}, nil //nolint:nilerr // Compat: what is gone has been removed
	}
	return &runtimeapi.RemoveContainerResponse{}, r.remove(ctx, c)
}

func (r *Runtime) remove(ctx context.Context, c *container) error {
	c.ops.Lock()
	defer c.ops.Unlock()
	r.await(c)
	if err := r.stop(ctx, c, 0); err != nil {
		return err
	}
	r.mu.Lock()
	_, there := r.containers[c.ID]
	r.mu.Unlock()
	if !there {
		return nil
	}
	// Without its record it is no container, should this be broken off.
	if err := os.Remove(filepath.Join(c.dir, "container.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return err
	}
	r.emit(c.ID, c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	r.mu.Lock()
	delete(r.containers, c.ID)
	if s := r.sandboxes[c.Sandbox]; s != nil {
		delete(r.names, containerName(c.Config.P.GetMetadata(), s))
	}
	r.mu.Unlock()
	return nil
}

// UpdateContainerResources sets other limits. Where limits are not enforced, it
// takes note of them.
func (r *Runtime) UpdateContainerResources(_ context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state() == runtimeapi.ContainerState_CONTAINER_EXITED {
		return nil, status.Errorf(codes.FailedPrecondition, "failed to update resources: container %q is in %s state", c.ID, c.state())
	}
	if c.state() == runtimeapi.ContainerState_CONTAINER_RUNNING {
		var spec supervise.Spec
		if err := supervise.ReadFile(filepath.Join(c.dir, "spec.json"), &spec); err != nil {
			return nil, err
		}
		if spec.Group != nil {
			if err := spec.Group.Set(limits(req.GetLinux())); err != nil {
				return nil, fmt.Errorf("failed to update resources: %w", err)
			}
		}
	}
	changed := proto.CloneOf(c.Config.P)
	if changed.Linux == nil {
		changed.Linux = &runtimeapi.LinuxContainerConfig{}
	}
	if changed.Linux.Resources == nil {
		changed.Linux.Resources = &runtimeapi.LinuxContainerResources{}
	}
	proto.Merge(changed.Linux.Resources, req.GetLinux())
	old := c.Config
	c.Config = containerConfig{changed}
	if err := c.save(); err != nil {
		c.Config = old
		return nil, err
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// ReopenContainerLog has a container's log go on in a new file.
func (r *Runtime) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := r.running(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, supervise.Reopen(ctx, c.dir)
}

// running finds a container that runs.
func (r *Runtime) running(id string) (*container, error) {
	c, err := r.findContainer(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.FailedPrecondition, "container is in %s state", c.state())
	}
	return c, nil
}

// CheckpointContainer is not to be had.
func (r *Runtime) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return nil, status.Error(codes.Unimplemented, "method CheckpointContainer not implemented")
}
