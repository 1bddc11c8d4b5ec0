package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"setpoint.dev/setpoint/node/hook"
	"setpoint.dev/setpoint/node/image"
	"setpoint.dev/setpoint/node/observe"
)

// startContainer pulls, creates and starts a container, and runs its hook. The
// error says with which words it waits.
func (o *round) startContainer(ctx context.Context, c *corev1.Container, target string) error {
	switch last := o.seen.Container(c.Name); {
	case last == nil:
	case last.BrokenOff:
		if err := o.cfg.Runtime.RemoveContainer(ctx, last.ID); err != nil && !crierrors.IsNotFound(err) {
			return o.fail(c, last.ID, createError, plain(err))
		}
	case last.State == observe.Created && last.Sandbox == o.plan.SandboxID && last.Hash == observe.Hash(c):
		return o.startMade(ctx, c, last.ID)
	}
	ref, err := o.ensureImage(ctx, c, c, c.Image, c.ImagePullPolicy)
	if err != nil {
		return err
	}
	volumes, err := o.imageVolumes(ctx, c)
	if err != nil {
		return err
	}
	cfg, err := o.containerConfig(ctx, c, ref, target, volumes)
	if err != nil {
		return o.fail(c, "", configError, plain(err))
	}
	id, err := o.cfg.Runtime.CreateContainer(ctx, o.plan.SandboxID, cfg, o.sandbox)
	if err != nil {
		return o.fail(c, id, createError, plain(err))
	}
	o.cfg.Say(o.pod, c, corev1.EventTypeNormal, "Created", "Container created")
	if err := o.cfg.Runtime.StartContainer(ctx, id); err != nil {
		return o.fail(c, id, runError, plain(err))
	}
	o.cfg.Say(o.pod, c, corev1.EventTypeNormal, "Started", "Container started")
	return o.postStart(ctx, c, id)
}

// startMade starts a container that was made by an agent which ended before it
// knew of a start. Another in its place could run beside it: the start may be under
// way.
func (o *round) startMade(ctx context.Context, c *corev1.Container, id string) error {
	failed := o.cfg.Runtime.StartContainer(ctx, id)
	if failed == nil {
		o.cfg.Say(o.pod, c, corev1.EventTypeNormal, "Started", "Container started")
		return o.postStart(ctx, c, id)
	}
	now, err := o.cfg.Runtime.ContainerStatus(ctx, id, false)
	if err == nil && now.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil // it was started meanwhile
	}
	return o.fail(c, id, runError, plain(failed))
}

// postStart runs the hook of a container that has just started, and stops the
// container when it fails.
func (o *round) postStart(ctx context.Context, c *corev1.Container, id string) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	err := o.hooks.Run(ctx, o.call(o.pod, c, c.Lifecycle.PostStart, id, o.ips))
	if err == nil {
		return nil
	}
	o.cfg.Say(o.pod, c, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	if stopped := o.stop(ctx, o.pod, o.seen, Stop{ID: id, Name: c.Name, Message: "FailedPostStartHook"}, nil, nil); stopped != nil {
		o.cfg.Logger.Warn("a container whose hook failed is not stopped yet", "container", id, "error", stopped)
	}
	return &startError{postStartError, err.Error()}
}

// call is a hook that is to run.
func (r *Runner) call(pod *corev1.Pod, c *corev1.Container, h *corev1.LifecycleHandler, id string, ips []string) hook.Call {
	call := hook.Call{Handler: h, Pod: pod, Container: c, ContainerID: id, Say: func(kind, reason, message string) { r.cfg.Say(pod, nil, kind, reason, message) }}
	if len(ips) > 0 {
		call.IP = ips[0]
	}
	return call
}

// ensureImage is the reference of an image that a container needs. about is whom
// it is told of: the container, or nil for the pod.
func (o *round) ensureImage(ctx context.Context, c, about *corev1.Container, name string, policy corev1.PullPolicy) (string, error) {
	ref, err := o.cfg.Images.Ensure(ctx, image.Want{
		Pod: o.pod, Image: name, Policy: policy, Secrets: o.cfg.Data.PullSecrets(ctx, o.pod), Sandbox: o.sandbox,
		Say: func(kind, reason, message string) { o.cfg.Say(o.pod, about, kind, reason, message) },
	})
	if why, ok := errors.AsType[*image.Error](err); ok {
		o.cfg.Say(o.pod, c, corev1.EventTypeWarning, "Failed", "Error: "+why.Reason)
		return "", &startError{why.Reason, why.Message}
	}
	return ref, err
}

// imageVolumes are the images that a container mounts, by volume.
func (o *round) imageVolumes(ctx context.Context, c *corev1.Container) (map[string]*runtimeapi.ImageSpec, error) {
	all := map[string]*runtimeapi.ImageSpec{}
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(o.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && v.Image != nil })
		if i < 0 || all[m.Name] != nil {
			continue
		}
		v := o.pod.Spec.Volumes[i].Image
		ref, err := o.ensureImage(ctx, c, nil, v.Reference, v.PullPolicy)
		if err != nil {
			return nil, err
		}
		all[m.Name] = &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: v.Reference, Annotations: o.pod.Annotations}
	}
	return all, nil
}

// containerConfig is a container as a runtime is told.
func (o *round) containerConfig(ctx context.Context, c *corev1.Container, ref, target string, images map[string]*runtimeapi.ImageSpec) (*runtimeapi.ContainerConfig, error) {
	env, err := o.cfg.Data.Env(ctx, o.pod, c, o.ips)
	if err != nil {
		return nil, err
	}
	handler, err := o.Handler(o.pod)
	if err != nil {
		return nil, err
	}
	mounts, err := o.cfg.Data.Mounts(ctx, o.pod, c, Given{Env: env, IPs: o.ips, Images: images, Features: o.cfg.Features(handler)})
	if err != nil {
		return nil, err
	}
	security, err := o.security(ctx, c, target)
	if err != nil {
		return nil, err
	}
	logs := filepath.Join(o.sandbox.LogDirectory, c.Name)
	restarts := o.restarts(c, logs)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, fmt.Errorf("create container log directory for container %s failed: %w", c.Name, err)
	}
	values := map[string]string{}
	for _, e := range env {
		values[e.Key] = string(e.Value)
	}
	expand := func(texts []string) []string {
		var all []string
		for _, t := range texts {
			all = append(all, o.cfg.Data.Expand(t, values))
		}
		return all
	}
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: uint32(restarts)},
		Image:    &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: c.Image},
		Command:  expand(c.Command), Args: expand(c.Args), WorkingDir: c.WorkingDir, Envs: env, Mounts: mounts,
		Labels: observe.ContainerLabels(o.pod, c, o.cfg.Owner), Annotations: observe.Annotations(o.pod, c, restarts),
		LogPath: filepath.Join(c.Name, strconv.Itoa(int(restarts))+".log"),
		Stdin:   c.Stdin, StdinOnce: c.StdinOnce, Tty: c.TTY,
		Linux:      &runtimeapi.LinuxContainerConfig{Resources: o.cfg.Data.Resources(o.pod, c), SecurityContext: security},
		StopSignal: stopSignal(c),
	}, nil
}

// stopSignal is the one that a container wants to be stopped with.
func stopSignal(c *corev1.Container) runtimeapi.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return runtimeapi.Signal_RUNTIME_DEFAULT
	}
	return runtimeapi.Signal(runtimeapi.Signal_value[string(*c.Lifecycle.StopSignal)])
}

// restarts is the number of a container's next try. Where the runtime has forgotten
// the ones before, as after a reboot, their logs have not.
func (o *round) restarts(c *corev1.Container, logs string) int32 {
	switch last := o.seen.Container(c.Name); {
	case last == nil:
	case last.BrokenOff: // this is the same try
		return last.Restarts
	default:
		return last.Restarts + 1
	}
	files, err := os.ReadDir(logs)
	if err != nil {
		return 0
	}
	next := 0
	for _, f := range files {
		number, rest, _ := strings.Cut(f.Name(), ".")
		if n, err := strconv.Atoi(number); err == nil && strings.HasPrefix(rest, "log") && !f.IsDir() {
			next = max(next, n+1)
		}
	}
	return int32(next)
}

// update gives containers that run the resources that are declared.
func (o *round) update(ctx context.Context) {
	for _, u := range o.plan.Update {
		err := o.cfg.Runtime.UpdateContainerResources(ctx, u.ID, &runtimeapi.ContainerResources{Linux: o.cfg.Data.Resources(o.pod, u.Container)})
		if err != nil {
			o.result.ResizeError = errors.Join(o.result.ResizeError, err)
			continue
		}
		o.result.Actuated = append(o.result.Actuated, u.Container)
	}
}
