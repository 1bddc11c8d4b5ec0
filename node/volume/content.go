package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"setpoint.dev/setpoint/node/downward"
)

// file is one file of a volume.
type file struct {
	data []byte
	mode os.FileMode
	// user owns the file, if not nobody in particular.
	user *int64
}

// files are the content of a volume, by path.
type files map[string]file

// content writes what a volume is to hold.
func (v *Volumes) content(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) error {
	c := collector{ctx: ctx, pod: pod, volumes: v}
	want, err := c.collect(volume)
	if err != nil {
		return err
	}
	dir := v.place(pod, volume)
	// Compat: what may be secret lies in memory where that can be had.
	if memory := volume.ConfigMap == nil; memory && v.tmpfs {
		err = v.memory(pod, dir, 0)
	} else {
		err = makeDir(dir)
	}
	if err != nil {
		return err
	}
	if err := makeNested(pod, volume.Name, dir); err != nil {
		return err
	}
	return write(dir, want, func() error { return own(dir, fsGroup(pod), true, false) })
}

// collector gathers the files of one volume.
type collector struct {
	ctx     context.Context
	pod     *corev1.Pod
	volumes *Volumes
}

func (c *collector) collect(volume *corev1.Volume) (files, error) {
	switch {
	case volume.ConfigMap != nil:
		s := volume.ConfigMap
		return c.configMap(s.Name, s.Items, s.DefaultMode, s.Optional)
	case volume.Secret != nil:
		s := volume.Secret
		return c.secret(s.SecretName, s.Items, s.DefaultMode, s.Optional)
	case volume.DownwardAPI != nil:
		return c.downward(volume.DownwardAPI.Items, volume.DownwardAPI.DefaultMode)
	}
	want := files{}
	var failed []error
	for i := range volume.Projected.Sources {
		part, err := c.project(&volume.Projected.Sources[i], volume.Projected.DefaultMode)
		failed = append(failed, err)
		maps.Copy(want, part)
	}
	return want, utilerrors.NewAggregate(failed)
}

func (c *collector) project(s *corev1.VolumeProjection, mode *int32) (files, error) {
	switch {
	case s.ConfigMap != nil:
		return c.configMap(s.ConfigMap.Name, s.ConfigMap.Items, mode, s.ConfigMap.Optional)
	case s.Secret != nil:
		return c.secret(s.Secret.Name, s.Secret.Items, mode, s.Secret.Optional)
	case s.DownwardAPI != nil:
		return c.downward(s.DownwardAPI.Items, mode)
	case s.ServiceAccountToken != nil:
		return c.token(s.ServiceAccountToken, mode)
	case s.ClusterTrustBundle != nil:
		return nil, errors.New("ClusterTrustBundle projection is not supported by this node")
	case s.PodCertificate != nil:
		return nil, errors.New("PodCertificate projection is not supported by this node")
	}
	return nil, nil
}

func (c *collector) configMap(name string, items []corev1.KeyToPath, mode *int32, optional *bool) (files, error) {
	held, err := c.volumes.cfg.Sources.ConfigMap(c.ctx, c.pod.Namespace, name)
	if is(optional) && apierrors.IsNotFound(err) {
		held, err = &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return nil, err
	}
	data := maps.Clone(held.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for k, v := range held.Data {
		data[k] = []byte(v)
	}
	return pick(data, items, mode, is(optional), "configmap references non-existent config key: %s")
}

func (c *collector) secret(name string, items []corev1.KeyToPath, mode *int32, optional *bool) (files, error) {
	held, err := c.volumes.cfg.Sources.Secret(c.ctx, c.pod.Namespace, name)
	if is(optional) && apierrors.IsNotFound(err) {
		held, err = &corev1.Secret{}, nil
	}
	if err != nil {
		return nil, err
	}
	return pick(held.Data, items, mode, is(optional), "references non-existent secret key: %s")
}

// pick makes files of the keys that items name, of all when there are none.
func pick(data map[string][]byte, items []corev1.KeyToPath, mode *int32, optional bool, missing string) (files, error) {
	if mode == nil {
		return nil, errNoMode
	}
	want := files{}
	if len(items) == 0 {
		for name, d := range data {
			want[name] = file{data: d, mode: os.FileMode(*mode)}
		}
		return want, nil
	}
	for _, item := range items {
		d, ok := data[item.Key]
		if !ok && optional {
			continue
		}
		if !ok {
			return nil, fmt.Errorf(missing, item.Key)
		}
		want[filepath.Clean(item.Path)] = file{data: d, mode: modeOf(item.Mode, mode)}
	}
	return want, nil
}

func (c *collector) downward(items []corev1.DownwardAPIVolumeFile, mode *int32) (files, error) {
	if mode == nil {
		return nil, errNoMode
	}
	want := files{}
	var failed []error
	for i := range items {
		item := &items[i]
		var text string
		var err error
		switch {
		case item.FieldRef != nil:
			text, err = downward.Field(c.pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			text, err = downward.Resource(item.ResourceFieldRef, c.pod, nil, c.volumes.cfg.NodeAllocatable())
		}
		failed = append(failed, err)
		want[filepath.Clean(item.Path)] = file{data: []byte(text), mode: modeOf(item.Mode, mode)}
	}
	return want, utilerrors.NewAggregate(failed)
}

// token writes a token that only the pod's own user or group may read, where
// the pod says who that is.
func (c *collector) token(p *corev1.ServiceAccountTokenProjection, mode *int32) (files, error) {
	if mode == nil {
		return nil, errNoMode
	}
	text, err := c.volumes.cfg.Sources.Token(c.ctx, c.pod, p)
	if err != nil {
		return nil, err
	}
	f := file{data: []byte(text), mode: os.FileMode(*mode), user: fsUser(c.pod)}
	if f.user != nil || fsGroup(c.pod) != nil {
		f.mode = 0o600
	}
	return files{filepath.Clean(p.Path): f}, nil
}

var errNoMode = errors.New("no defaultMode used, not even the default value for it")

func modeOf(own, fallback *int32) os.FileMode {
	if own != nil {
		return os.FileMode(*own)
	}
	return os.FileMode(*fallback)
}

func is(flag *bool) bool { return flag != nil && *flag }
