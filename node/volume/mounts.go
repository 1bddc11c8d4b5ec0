package volume

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/env"
)

// keepMessages is how many termination messages of earlier runs are kept.
const keepMessages = 4

// Hosts is what mounts depend on besides the pod: what is known once it has a
// sandbox.
type Hosts struct {
	// PodIPs, Hostname and Domain are for /etc/hosts.
	PodIPs           []string
	Hostname, Domain string
	// Env is the container's environment, for subPathExpr.
	Env []*runtimeapi.KeyValue
	// Images are the pulled images of image volumes, by volume.
	Images map[string]*runtimeapi.ImageSpec
	// RecursiveReadOnly reports whether the runtime can.
	RecursiveReadOnly bool
}

// Mounts returns what a container mounts. Parts of volumes are made and bound;
// the file for the termination message is new for every call.
func (v *Volumes) Mounts(ctx context.Context, pod *corev1.Pod, c *corev1.Container, hosts Hosts) ([]*runtimeapi.Mount, error) {
	defer v.lock(pod.UID)()
	var mounts []*runtimeapi.Mount
	ownHosts := len(hosts.PodIPs) > 0 || pod.Spec.HostNetwork
	for i := range c.VolumeMounts {
		m, err := v.mount(ctx, pod, c, i, hosts)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, m)
		ownHosts = ownHosts && c.VolumeMounts[i].MountPath != hostsFile
	}
	if ownHosts {
		path := filepath.Join(v.dir(pod.UID), "etc-hosts")
		if err := writeHosts(path, pod, hosts); err != nil {
			return nil, err
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: hostsFile, HostPath: path, SelinuxRelabel: selinux()})
	}
	if c.TerminationMessagePath != "" {
		path, err := v.message(pod, c.Name)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: c.TerminationMessagePath, HostPath: path, SelinuxRelabel: selinux()})
	}
	return mounts, nil
}

func (v *Volumes) mount(ctx context.Context, pod *corev1.Pod, c *corev1.Container, index int, hosts Hosts) (*runtimeapi.Mount, error) {
	m := &c.VolumeMounts[index]
	part, err := subPath(m, hosts.Env)
	if err != nil {
		return nil, err
	}
	propagation, err := propagationOf(m.MountPropagation)
	if err != nil {
		return nil, err
	}
	recursive, err := recursiveReadOnly(m, hosts.RecursiveReadOnly)
	if err != nil {
		return nil, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
	}
	out := &runtimeapi.Mount{ContainerPath: m.MountPath, Readonly: m.ReadOnly, RecursiveReadOnly: recursive, Propagation: propagation}
	if !filepath.IsAbs(out.ContainerPath) {
		out.ContainerPath = "/" + out.ContainerPath
	}
	if image := hosts.Images[m.Name]; image != nil {
		out.Image, out.ImageSubPath = image, part
		return out, nil
	}
	path, readOnly, err := v.locate(ctx, pod, m.Name)
	if err != nil {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", m.Name, c.Name)
	}
	out.HostPath, out.Readonly = path, out.Readonly || readOnly
	out.SelinuxRelabel = selinux() && strings.HasPrefix(path, v.dir(pod.UID)+string(filepath.Separator))
	if part == "" {
		return out, nil
	}
	out.HostPath, err = v.part(pod, path, part, filepath.Join(m.Name, c.Name, fmt.Sprint(index)))
	if err != nil {
		// Compat: the reason could tell about the host, so it is not passed on.
		v.cfg.Logger.WarnContext(ctx, "a part of a volume cannot be mounted", "namespace", pod.Namespace, "pod", pod.Name,
			"container", c.Name, "volume", m.Name, "subPath", part, "error", err)
		return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", m.Name, c.Name)
	}
	return out, nil
}

// subPath is the part of a volume that a mount asks for.
func subPath(m *corev1.VolumeMount, environment []*runtimeapi.KeyValue) (string, error) {
	part := m.SubPath
	if m.SubPathExpr != "" {
		values := map[string]string{}
		for _, e := range environment {
			values[e.Key] = string(e.Value)
		}
		var err error
		if part, err = env.Resolve(m.SubPathExpr, values); err != nil {
			return "", err
		}
	}
	switch {
	case part == "":
	case filepath.IsAbs(part):
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", part)
	case slices.Contains(strings.Split(part, "/"), ".."):
		return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", part)
	}
	return part, nil
}

func propagationOf(mode *corev1.MountPropagationMode) (runtimeapi.MountPropagation, error) {
	switch {
	case mode == nil || *mode == corev1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case *mode == corev1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case *mode == corev1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0, fmt.Errorf("invalid MountPropagation mode: %q", *mode)
}

func recursiveReadOnly(m *corev1.VolumeMount, supported bool) (bool, error) {
	switch {
	case m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled:
		return false, nil
	case !m.ReadOnly:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", m.Name)
	case m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q", m.Name, *m.MountPropagation)
	case *m.RecursiveReadOnly == corev1.RecursiveReadOnlyIfPossible:
		return supported, nil
	case *m.RecursiveReadOnly != corev1.RecursiveReadOnlyEnabled:
		return false, fmt.Errorf("unknown recursive read-only mode %q", *m.RecursiveReadOnly)
	case !supported:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", m.Name)
	}
	return true, nil
}

// message makes an empty file for the last words of a container, and removes
// those of runs long ago.
func (v *Volumes) message(pod *corev1.Pod, container string) (string, error) {
	dir := filepath.Join(v.dir(pod.UID), "containers", container)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	if err := thin(dir); err != nil {
		return "", err
	}
	random := make([]byte, 4)
	_, _ = rand.Read(random) // it does not fail
	path := filepath.Join(dir, hex.EncodeToString(random))
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return "", err
	}
	// Whoever the container runs as writes it, whatever the umask here.
	return path, os.Chmod(path, 0o666)
}

func thin(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) <= keepMessages {
		return err
	}
	infos := make([]fs.FileInfo, 0, len(entries))
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b fs.FileInfo) int { return cmp.Compare(b.ModTime().UnixNano(), a.ModTime().UnixNano()) })
	for _, info := range infos[min(keepMessages, len(infos)):] {
		if err := os.Remove(filepath.Join(dir, info.Name())); err != nil {
			return err
		}
	}
	return nil
}

// selinux reports whether the kernel labels files.
func selinux() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}
