package pod

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/hook"
)

// What of /proc and /sys containers do not see, or cannot write. Compat: it is
// what all runtimes hide.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
		"/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// namespaces are those that containers of a pod share.
func namespaces(pod *corev1.Pod) *runtimeapi.NamespaceOption {
	n := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if pod.Spec.HostIPC {
		n.Ipc = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostNetwork {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		n.Pid = runtimeapi.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		n.Pid = runtimeapi.NamespaceMode_POD
	}
	return n
}

// sandboxSecurity is who a sandbox runs as and what it may.
func sandboxSecurity(pod *corev1.Pod) *runtimeapi.LinuxSandboxSecurityContext {
	s := &runtimeapi.LinuxSandboxSecurityContext{
		Privileged:       slices.ContainsFunc(slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers), privileged),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		NamespaceOptions: namespaces(pod),
	}
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return s
	}
	s.RunAsUser, s.RunAsGroup, s.SelinuxOptions = number(sc.RunAsUser), number(sc.RunAsGroup), selinux(sc.SELinuxOptions)
	s.SupplementalGroups, s.SupplementalGroupsPolicy = groups(sc), groupsPolicy(sc)
	return s
}

func privileged(c corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}

func number(n *int64) *runtimeapi.Int64Value {
	if n == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *n}
}

func selinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// groups are those that every container of a pod is in.
func groups(sc *corev1.PodSecurityContext) []int64 {
	var all []int64
	if sc.FSGroup != nil {
		all = append(all, *sc.FSGroup)
	}
	return append(all, sc.SupplementalGroups...)
}

func groupsPolicy(sc *corev1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if sc.SupplementalGroupsPolicy == nil {
		return runtimeapi.SupplementalGroupsPolicy_Merge
	}
	return runtimeapi.SupplementalGroupsPolicy(runtimeapi.SupplementalGroupsPolicy_value[string(*sc.SupplementalGroupsPolicy)])
}

// effective is a container's security context, with the pod's where it says
// nothing.
func effective(pod *corev1.Pod, c *corev1.Container) *corev1.SecurityContext {
	sc := &corev1.SecurityContext{}
	if c.SecurityContext != nil {
		sc = c.SecurityContext.DeepCopy()
	}
	of := pod.Spec.SecurityContext
	if of == nil {
		return sc
	}
	inherit(&sc.SELinuxOptions, of.SELinuxOptions)
	inherit(&sc.RunAsUser, of.RunAsUser)
	inherit(&sc.RunAsGroup, of.RunAsGroup)
	inherit(&sc.RunAsNonRoot, of.RunAsNonRoot)
	inherit(&sc.SeccompProfile, of.SeccompProfile)
	inherit(&sc.AppArmorProfile, of.AppArmorProfile)
	return sc
}

func inherit[T any](to **T, from *T) {
	if *to == nil {
		*to = from
	}
}

// security is who a container runs as and what it may. target is the container
// whose processes it sees, for one that is put beside others.
func (o *round) security(ctx context.Context, c *corev1.Container, target string) (*runtimeapi.LinuxContainerSecurityContext, error) {
	res, err := o.cfg.ImageService.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: c.Image}, false)
	if err != nil {
		return nil, err
	}
	sc := effective(o.pod, c)
	uid, name := res.GetImage().GetUid(), res.GetImage().GetUsername()
	if uid == nil && name == "" { // an image that says nothing runs as root
		uid = &runtimeapi.Int64Value{}
	}
	if err := o.checkNonRoot(c, sc, uid, name); err != nil {
		return nil, err
	}
	s := &runtimeapi.LinuxContainerSecurityContext{
		RunAsUser: number(sc.RunAsUser), RunAsGroup: number(sc.RunAsGroup), SelinuxOptions: selinux(sc.SELinuxOptions), NamespaceOptions: namespaces(o.pod),
		Privileged: sc.Privileged != nil && *sc.Privileged, ReadonlyRootfs: sc.ReadOnlyRootFilesystem != nil && *sc.ReadOnlyRootFilesystem,
		NoNewPrivs: sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation, Capabilities: capabilities(sc.Capabilities),
	}
	if s.RunAsUser == nil {
		s.RunAsUser, s.RunAsUsername = uid, name
	}
	if sc.ProcMount == nil || *sc.ProcMount != corev1.UnmaskedProcMount {
		s.MaskedPaths, s.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	if of := o.pod.Spec.SecurityContext; of != nil {
		s.SupplementalGroups, s.SupplementalGroupsPolicy = groups(of), groupsPolicy(of)
	}
	if s.Seccomp, err = o.seccomp(sc.SeccompProfile); err != nil {
		return nil, err
	}
	if s.Apparmor, err = apparmor(sc.AppArmorProfile); err != nil {
		return nil, err
	}
	return s, o.aim(s, target)
}

// aim lets a container see the processes of another.
func (o *round) aim(s *runtimeapi.LinuxContainerSecurityContext, target string) error {
	if target == "" {
		return nil
	}
	seen := o.seen.Container(target)
	if seen == nil {
		return fmt.Errorf("unable to find target container %v", target)
	}
	if s.NamespaceOptions.Pid == runtimeapi.NamespaceMode_CONTAINER {
		s.NamespaceOptions.Pid, s.NamespaceOptions.TargetId = runtimeapi.NamespaceMode_TARGET, seen.ID
	}
	return nil
}

// checkNonRoot refuses a container that must not be root and may be.
func (o *round) checkNonRoot(c *corev1.Container, sc *corev1.SecurityContext, uid *runtimeapi.Int64Value, name string) error {
	at := fmt.Sprintf("(pod: %q, container: %s)", hook.PodName(o.pod), c.Name)
	switch {
	case sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot:
	case sc.RunAsUser != nil && *sc.RunAsUser == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy %s", at)
	case sc.RunAsUser != nil:
	case uid == nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", name, at)
	case uid.Value == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", at)
	default:
		if errs := validation.IsValidUserID(uid.Value); len(errs) > 0 {
			return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-(%d)): %s %s", uid.Value, math.MaxInt32, strings.Join(errs, "; "), at)
		}
	}
	return nil
}

func capabilities(c *corev1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	texts := func(all []corev1.Capability) []string {
		var out []string
		for _, one := range all {
			out = append(out, string(one))
		}
		return out
	}
	return &runtimeapi.Capability{AddCapabilities: texts(c.Add), DropCapabilities: texts(c.Drop)}
}

func (o *round) seccomp(p *corev1.SeccompProfile) (*runtimeapi.SecurityProfile, error) {
	switch {
	case p == nil || p.Type == corev1.SeccompProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case p.Type == corev1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, errors.New("localhostProfile must be set if seccompProfile type is Localhost.") //nolint:revive,staticcheck // Compat: users see it
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(o.cfg.Seccomp, *p.LocalhostProfile)}, nil
	default:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	}
}

func apparmor(p *corev1.AppArmorProfile) (*runtimeapi.SecurityProfile, error) {
	switch {
	case p == nil:
		return nil, nil
	case p.Type == corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case p.Type == corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil {
			return nil, errors.New("missing localhost apparmor profile name")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}, nil
	default:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	}
}
