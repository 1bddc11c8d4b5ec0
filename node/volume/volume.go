// Package volume keeps the volumes of a node's pods on disk and says what a
// container mounts.
//
// In come pods and what their volumes refer to; out come folders with content,
// and mounts for the runtime:
//
//	<dir>/<uid>/volumes/kubernetes.io~<kind>/<name>           a volume
//	<dir>/<uid>/plugins/kubernetes.io~empty-dir/<name>/ready  says that it was made to the end
//	<dir>/<uid>/volume-subpaths/<volume>/<container>/N        a part of one, bound for mount N
//	<dir>/<uid>/containers/<container>/<hash>                 termination message of one run
//	<dir>/<uid>/etc-hosts
//
// What always holds: content changes at once or not at all, and only when it
// differs; no link that a container makes leads out of its volume; nothing is
// removed while something is still mounted below it. All of it can be done again,
// by this process or the next one.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Sources gives what volumes refer to.
type Sources interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Token(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, error)
}

// Plugin has volumes of kinds that this package does not know.
type Plugin interface {
	// SetUp makes a volume available on this node, again if it is already, and
	// returns where. Whoever calls it sees to the group that the pod wants.
	SetUp(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (path string, readOnly bool, err error)
	// TearDown undoes all SetUps of a pod, also those of an earlier process.
	TearDown(ctx context.Context, uid types.UID) error
}

// Config says where volumes are and what they hold.
type Config struct {
	// Dir is where pods have their folders. It is needed.
	Dir string
	// Sources is needed for volumes with content.
	Sources Sources
	// NodeAllocatable is what pods can have of the node.
	NodeAllocatable func() corev1.ResourceList
	// Event tells a pod's owner what is not as the pod asks for.
	Event func(pod *corev1.Pod, kind, reason, message string)
	// Other has the volumes of other kinds; nil is none.
	Other Plugin
	// Logger is told the details that are not for a pod's owner.
	Logger *slog.Logger
}

// Volumes are those of a node's pods.
type Volumes struct {
	cfg Config
	// tmpfs reports whether file systems in memory can be mounted.
	tmpfs bool

	mu   sync.Mutex // guards pods
	pods map[types.UID]*sync.Mutex
}

// Error is a volume that could not be set up.
type Error struct {
	Volume string
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// New returns the volumes below a folder.
func New(cfg Config) *Volumes {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Event == nil {
		cfg.Event = func(*corev1.Pod, string, string, string) {}
	}
	if cfg.NodeAllocatable == nil {
		cfg.NodeAllocatable = func() corev1.ResourceList { return nil }
	}
	return &Volumes{cfg: cfg, tmpfs: mayMount(), pods: map[types.UID]*sync.Mutex{}}
}

// Prepare makes the volumes that containers of pod use, or brings them up to
// date. It tries all of them; the error joins an *Error for each that failed.
func (v *Volumes) Prepare(ctx context.Context, pod *corev1.Pod) error {
	defer v.lock(pod.UID)()
	if err := os.MkdirAll(filepath.Join(v.dir(pod.UID), "volumes"), 0o750); err != nil {
		return err
	}
	used := uses(pod)
	var failed []error
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if !used[volume.Name] {
			continue
		}
		if err := v.prepare(ctx, pod, volume); err != nil {
			failed = append(failed, &Error{Volume: volume.Name, Err: err})
		}
	}
	return errors.Join(failed...)
}

func (v *Volumes) prepare(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) error {
	switch {
	case volume.EmptyDir != nil:
		return v.empty(pod, volume)
	case volume.HostPath != nil:
		return checkHostPath(volume.HostPath)
	case volume.Image != nil:
		return nil // the runtime has it
	case kindOf(volume) != "":
		return v.content(ctx, pod, volume)
	case v.cfg.Other != nil:
		path, readOnly, err := v.cfg.Other.SetUp(ctx, pod, volume)
		if err != nil {
			return err
		}
		return own(path, fsGroup(pod), readOnly, onMismatch(pod))
	case volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil:
		return errors.New("persistent volumes are not supported by this node")
	}
	return errors.New("no volume plugin matched")
}

// kindOf returns the name of the folder of volumes with content like this one,
// or "" when there is no such folder.
func kindOf(volume *corev1.Volume) string {
	switch {
	case volume.EmptyDir != nil:
		return "kubernetes.io~empty-dir"
	case volume.ConfigMap != nil:
		return "kubernetes.io~configmap"
	case volume.Secret != nil:
		return "kubernetes.io~secret"
	case volume.DownwardAPI != nil:
		return "kubernetes.io~downward-api"
	case volume.Projected != nil:
		return "kubernetes.io~projected"
	}
	return ""
}

// Path returns where a volume of pod lies on this node.
func (v *Volumes) Path(ctx context.Context, pod *corev1.Pod, name string) (string, error) {
	path, _, err := v.locate(ctx, pod, name)
	return path, err
}

// locate also reports whether the volume may be mounted for reading only.
func (v *Volumes) locate(ctx context.Context, pod *corev1.Pod, name string) (path string, readOnly bool, err error) {
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		switch {
		case volume.Name != name:
		case volume.HostPath != nil:
			return volume.HostPath.Path, false, nil
		case kindOf(volume) != "":
			return v.place(pod, volume), volume.EmptyDir == nil, nil
		case v.cfg.Other != nil:
			return v.cfg.Other.SetUp(ctx, pod, volume)
		}
	}
	return "", false, fs.ErrNotExist
}

func (v *Volumes) dir(uid types.UID) string { return filepath.Join(v.cfg.Dir, string(uid)) }

func (v *Volumes) place(pod *corev1.Pod, volume *corev1.Volume) string {
	return filepath.Join(v.dir(pod.UID), "volumes", kindOf(volume), volume.Name)
}

// lock keeps others away from a pod's folder until the result is called.
func (v *Volumes) lock(uid types.UID) (unlock func()) {
	v.mu.Lock()
	mu := v.pods[uid]
	if mu == nil {
		mu = &sync.Mutex{}
		v.pods[uid] = mu
	}
	v.mu.Unlock()
	mu.Lock()
	return mu.Unlock
}

// Remove unmounts and removes all that a pod has here. It removes nothing while
// something stays mounted, so files of the host are never in danger.
func (v *Volumes) Remove(ctx context.Context, uid types.UID) error {
	if uid == "" || filepath.Base(string(uid)) != string(uid) {
		return fmt.Errorf("%q is not a pod's folder", uid)
	}
	defer func() {
		v.mu.Lock()
		delete(v.pods, uid)
		v.mu.Unlock()
	}()
	defer v.lock(uid)()
	dir := v.dir(uid)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if v.cfg.Other != nil {
		if err := v.cfg.Other.TearDown(ctx, uid); err != nil {
			return err
		}
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// Known returns the pods that have folders.
func (v *Volumes) Known() ([]types.UID, error) {
	entries, err := os.ReadDir(v.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var uids []types.UID
	for _, e := range entries {
		if e.IsDir() {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, err
}

// uses are the volumes that some container of pod mounts or reads.
func uses(pod *corev1.Pod) map[string]bool {
	used := map[string]bool{}
	for c := range containers(pod) {
		for _, m := range c.VolumeMounts {
			used[m.Name] = true
		}
		for _, d := range c.VolumeDevices {
			used[d.Name] = true
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.FileKeyRef != nil {
				used[e.ValueFrom.FileKeyRef.VolumeName] = true
			}
		}
	}
	return used
}

// containers yields all containers of pod, those for debugging, too.
func containers(pod *corev1.Pod) func(yield func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for i := range pod.Spec.InitContainers {
			if !yield(&pod.Spec.InitContainers[i]) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i]) {
				return
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			if !yield(&c) {
				return
			}
		}
	}
}
