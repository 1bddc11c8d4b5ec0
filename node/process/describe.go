//go:build linux

package process

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/process/cgroup"
	"setpoint.dev/setpoint/node/process/image"
	"setpoint.dev/setpoint/node/process/inside"
	"setpoint.dev/setpoint/node/process/rootfs"
	"setpoint.dev/setpoint/node/process/supervise"
)

// searched is where programs are when nobody says where.
const searched = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// describe turns what CRI asks for into what a supervisor is told.
func (r *Runtime) describe(s *sandbox, c *container) error {
	config := c.Config.P
	im, err := r.imageOf(config.GetImage())
	if err != nil {
		return err
	}
	c.Image, c.Ref = im.ID, im.ref()
	if im.Root != "" && r.mounts == mountsNone {
		return status.Errorf(codes.FailedPrecondition, "image %q needs a root of its own, which this node cannot give: %s", config.GetImage().GetImage(), r.why)
	}
	args := command(config, im.Process)
	if len(args) == 0 {
		return status.Error(codes.InvalidArgument, "failed to generate container spec: no command specified")
	}
	c.Spec = supervise.Spec{
		Dir: c.dir, Args: args, TTY: config.GetTty(), Stdin: config.GetStdin(), StdinOnce: config.GetStdinOnce(),
		WorkDir:  cmp.Or(config.GetWorkingDir(), im.WorkingDir, "/"),
		OOMScore: int(config.GetLinux().GetResources().GetOomScoreAdj()),
	}
	if dir, file := s.Config.P.GetLogDirectory(), config.GetLogPath(); dir != "" && file != "" {
		c.Spec.Log = filepath.Join(dir, file)
	}
	// Compat: a parent that is not given is one of ours, as with other runtimes.
	c.Group = path.Join("/", cmp.Or(s.Config.P.GetLinux().GetCgroupParent(), cgroup.Own), c.ID)
	if c.StopSignal, err = stopSignal(config, im.Process); err != nil {
		return err
	}
	if err := r.identify(c, im); err != nil {
		return err
	}
	if err := r.rights(c); err != nil {
		return err
	}
	c.Spec.Env = environment(s, c, im)
	return r.view(s, c, im)
}

// command is the program and what it is told. Compat: a command replaces both of
// an image's, arguments only the second.
func command(config *runtimeapi.ContainerConfig, p image.Process) []string {
	command, args := config.GetCommand(), config.GetArgs()
	if len(command) == 0 {
		command = p.Entrypoint
		if len(args) == 0 {
			args = p.Cmd
		}
	}
	return slices.Concat(command, args)
}

// stopSignal is what asks a container to end: its own, or its image's.
func stopSignal(config *runtimeapi.ContainerConfig, p image.Process) (int, error) {
	name := config.GetStopSignal().String()
	if config.GetStopSignal() == runtimeapi.Signal_RUNTIME_DEFAULT {
		name = p.StopSignal
	}
	if name == "" {
		return int(unix.SIGTERM), nil
	}
	n, ok := signalNumber(name)
	if !ok {
		return 0, status.Errorf(codes.InvalidArgument, "failed to parse stop signal %q", name)
	}
	return n, nil
}

// signalNumber reads a signal's name, with or without SIG, or its number.
func signalNumber(name string) (int, bool) {
	var n int
	if _, err := fmt.Sscanf(name, "%d", &n); err == nil {
		return n, n > 0 && n <= realTimeMax
	}
	name = strings.TrimPrefix(strings.ToUpper(name), "SIG")
	switch name {
	case "CLD":
		return int(unix.SIGCHLD), true
	case "POLL":
		return int(unix.SIGIO), true
	case "IOT":
		return int(unix.SIGABRT), true
	case "RTMIN":
		return realTimeMin, true
	case "RTMAX":
		return realTimeMax, true
	}
	// Compat: CRI writes RTMINPLUS1, others RTMIN+1.
	name = strings.NewReplacer("MINPLUS", "MIN+", "MAXMINUS", "MAX-").Replace(name)
	if _, err := fmt.Sscanf(name, "RTMIN+%d", &n); err == nil {
		return realTimeMin + n, n >= 0 && realTimeMin+n <= realTimeMax
	}
	if _, err := fmt.Sscanf(name, "RTMAX-%d", &n); err == nil {
		return realTimeMax - n, n >= 0 && realTimeMax-n >= realTimeMin
	}
	sig := unix.SignalNum("SIG" + name)
	return int(sig), sig != 0
}

// Signals beyond the named ones, without the two that C libraries keep.
const (
	realTimeMin = 34
	realTimeMax = 64
)

// environment is what the process is told in variables: the image's, then those
// that were asked for.
func environment(s *sandbox, c *container, im *img) []string {
	env := slices.Clone(im.Env)
	set := func(name, value string) {
		env = slices.DeleteFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
		env = append(env, name+"="+value)
	}
	if name := s.Config.P.GetHostname(); name != "" {
		set("HOSTNAME", name)
	}
	for _, kv := range c.Config.P.GetEnvs() {
		set(kv.GetKey(), string(kv.GetValue()))
	}
	for name, value := range map[string]string{"PATH": searched, "HOME": im.home(c.User.UID)} {
		if !slices.ContainsFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") }) {
			set(name, value)
		}
	}
	return env
}

// rights says which capabilities the process may have. Profiles cannot be applied;
// one that somebody wrote is asked for on purpose.
func (r *Runtime) rights(c *container) error {
	security := c.Config.P.GetLinux().GetSecurityContext()
	if profile := security.GetSeccomp(); profile.GetProfileType() == runtimeapi.SecurityProfile_Localhost && !security.GetPrivileged() {
		return status.Errorf(codes.FailedPrecondition, "the seccomp profile %q cannot be applied by the process runtime", profile.GetLocalhostRef())
	}
	c.Spec.NoNewPrivileges = security.GetNoNewPrivs()
	if security.GetPrivileged() || r.mounts == mountsNone && os.Geteuid() != 0 {
		return nil
	}
	c.Spec.KeepCapabilities = capabilities(security.GetCapabilities())
	return nil
}

// view says what the container sees, where it can see anything but the host's
// files.
func (r *Runtime) view(s *sandbox, c *container, im *img) error {
	mounts, err := r.mountsOf(s, c, im)
	if err != nil {
		return err
	}
	security := c.Config.P.GetLinux().GetSecurityContext()
	readOnly := security.GetReadonlyRootfs()
	if r.mounts == mountsNone {
		if readOnly {
			return status.Errorf(codes.FailedPrecondition, "a read-only root cannot be given here: %s", r.why)
		}
		return r.given(mounts)
	}
	c.Spec.Root = &rootfs.Plan{
		At: filepath.Join(c.dir, "root"), Image: im.Root, Mounts: mounts, ReadOnly: readOnly, User: r.mounts == mountsAsUser,
		Masked: security.GetMaskedPaths(), Fixed: security.GetReadonlyPaths(),
	}
	if im.Root != "" {
		c.Spec.Root.Upper, c.Spec.Root.Work = filepath.Join(c.dir, "upper"), filepath.Join(c.dir, "work")
	}
	if s.Config.P.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		c.Spec.OwnName, c.Spec.Hostname = true, s.Config.P.GetHostname()
	}
	return nil
}

// given refuses mounts that would have to be made. What is asked for at the very
// path that it has on the host is there.
func (r *Runtime) given(mounts []rootfs.Mount) error {
	for _, m := range mounts {
		source, err := filepath.EvalSymlinks(m.Source)
		if err != nil {
			return status.Errorf(codes.Unknown, "failed to resolve mount %q: %v", m.Source, err)
		}
		target, err := filepath.EvalSymlinks(m.Target)
		if err != nil || source != target {
			return status.Errorf(codes.FailedPrecondition, "%s cannot be mounted at %s: %s", m.Source, m.Target, r.why)
		}
		if m.ReadOnly {
			return status.Errorf(codes.FailedPrecondition, "%s cannot be made read-only: %s", m.Target, r.why)
		}
	}
	return nil
}

// mountsOf are the mounts of a container: files of its pod, and what was asked
// for, those further up first.
func (r *Runtime) mountsOf(s *sandbox, c *container, im *img) ([]rootfs.Mount, error) {
	var all []rootfs.Mount
	for _, m := range c.Config.P.GetMounts() {
		one, err := r.mount(m)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if r.mounts != mountsNone {
		all = append(podFiles(s, im, all), all...)
	}
	depth := func(m rootfs.Mount) int { return strings.Count(path.Clean(m.Target), "/") }
	slices.SortStableFunc(all, func(a, b rootfs.Mount) int { return cmp.Compare(depth(a), depth(b)) })
	return all, nil
}

// podFiles are the files of /etc that a pod has, unless they were asked for
// otherwise.
func podFiles(s *sandbox, im *img, asked []rootfs.Mount) []rootfs.Mount {
	files := map[string]string{"/etc/resolv.conf": filepath.Join(s.dir, "resolv.conf")}
	if im.Root != "" {
		files["/etc/hostname"] = filepath.Join(s.dir, "hostname")
		files["/etc/hosts"] = "/etc/hosts"
		if _, err := os.Stat(files["/etc/resolv.conf"]); err != nil {
			files["/etc/resolv.conf"] = "/etc/resolv.conf"
		}
	}
	var all []rootfs.Mount
	for target, source := range files {
		_, err := os.Stat(source)
		if err != nil || slices.ContainsFunc(asked, func(m rootfs.Mount) bool { return path.Clean(m.Target) == target }) {
			continue
		}
		all = append(all, rootfs.Mount{Source: source, Target: target})
	}
	return all
}

// mount is one mount that was asked for. Compat: a folder of the host that is
// missing is made.
func (r *Runtime) mount(m *runtimeapi.Mount) (rootfs.Mount, error) {
	target := m.GetContainerPath()
	if !path.IsAbs(target) || path.Clean(target) == "/" {
		return rootfs.Mount{}, status.Errorf(codes.InvalidArgument, "invalid mount path %q", target)
	}
	one := rootfs.Mount{
		Source: m.GetHostPath(), Target: target, ReadOnly: m.GetReadonly(), Deep: m.GetRecursiveReadOnly(),
		Follow: m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	}
	if m.GetImage().GetImage() != "" {
		return r.imageMount(m, one)
	}
	if one.Deep && !one.ReadOnly {
		return one, status.Errorf(codes.InvalidArgument, "recursive read-only mount conflicts with RO=%v: %q", one.ReadOnly, target)
	}
	if one.Deep && m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
		return one, status.Errorf(codes.InvalidArgument, "recursive read-only mount conflicts with propagation %v: %q", m.GetPropagation(), target)
	}
	if m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL {
		return one, status.Errorf(codes.FailedPrecondition, "mounts of a container cannot be shown to the host: %q asks for bidirectional propagation", target)
	}
	if _, err := os.Stat(one.Source); os.IsNotExist(err) {
		if err := os.MkdirAll(one.Source, 0o755); err != nil {
			return one, status.Errorf(codes.Unknown, "failed to mkdir %q: %v", one.Source, err)
		}
	}
	return one, nil
}

// imageMount mounts the files of an image, or a folder of them.
func (r *Runtime) imageMount(m *runtimeapi.Mount, one rootfs.Mount) (rootfs.Mount, error) {
	im, err := r.imageOf(m.GetImage())
	if err != nil {
		return one, err
	}
	if im.Root == "" {
		return one, status.Errorf(codes.InvalidArgument, "image %q has no files to mount", m.GetImage().GetImage())
	}
	one.Source, one.ReadOnly = im.Root, true
	sub := m.GetImageSubPath()
	if sub == "" {
		return one, nil
	}
	root, err := inside.Open(im.Root)
	if err != nil {
		return one, err
	}
	defer root.Close() //nolint:errcheck // only a handle to a folder
	f, err := root.At(sub, unix.O_PATH)
	if err != nil {
		return one, status.Errorf(codes.NotFound, "failed to mount image sub path %q: %v", sub, err)
	}
	defer f.Close() //nolint:errcheck // only a handle to a file
	one.Source, err = os.Readlink(inside.Handle(f))
	return one, err
}
