package app

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/node"
	"setpoint.dev/setpoint/node/collect"
	"setpoint.dev/setpoint/node/cri"
	"setpoint.dev/setpoint/node/evict"
	"setpoint.dev/setpoint/node/register"
)

// errShared is why images are left alone.
var errShared = errors.New("the runtime has pods of others")

// imageDisk looks at the file system that images are on. Where others use the
// runtime, too, their images are not ours to judge.
func imageDisk(agent *node.Agent, runtime *cri.Client) func(ctx context.Context) (collect.Disk, error) {
	return func(ctx context.Context) (collect.Disk, error) {
		if err := alone(ctx, agent); err != nil {
			return collect.Disk{}, err
		}
		folder, err := imageFolder(ctx, runtime)
		if err != nil {
			return collect.Disk{}, err
		}
		var s unix.Statfs_t
		if err := unix.Statfs(folder, &s); err != nil {
			return collect.Disk{}, err
		}
		block := int64(s.Bsize) //nolint:unconvert // it has another type on other systems
		return collect.Disk{Capacity: int64(s.Blocks) * block, Available: int64(s.Bavail) * block}, nil
	}
}

// alone says why the runtime's images are not ours to judge, nil when they are.
func alone(ctx context.Context, agent *node.Agent) error {
	alone, err := agent.Alone(ctx)
	if err == nil && !alone {
		err = errShared
	}
	return err
}

// imageFolder is where the runtime has its images.
func imageFolder(ctx context.Context, runtime *cri.Client) (string, error) {
	info, err := runtime.Images.ImageFsInfo(ctx)
	if err != nil {
		return "", err
	}
	if len(info.GetImageFilesystems()) == 0 {
		return "", errors.New("the runtime does not say where images are")
	}
	return info.GetImageFilesystems()[0].GetFsId().GetMountpoint(), nil
}

// apart says whether images are on another disk than what pods are given; where
// that is not known, they are not.
func apart(ctx context.Context, runtime *cri.Client, dir string) bool {
	folder, err := imageFolder(ctx, runtime)
	if err != nil {
		return false
	}
	var images, pods unix.Stat_t
	return unix.Stat(folder, &images) == nil && unix.Stat(dir, &pods) == nil && images.Dev != pods.Dev
}

// reclaim frees disk that no pod uses: dead containers, and images.
func reclaim(agent *node.Agent, garbage *collect.Collector) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		err := garbage.Containers(ctx)
		if shared := alone(ctx, agent); shared != nil {
			return errors.Join(err, shared)
		}
		_, failed := garbage.AllImages(ctx)
		return errors.Join(err, failed)
	}
}

// pressure is what a node is short of.
func pressure(e *evict.Manager) register.Pressure {
	return register.Pressure{Memory: e.Short(corev1.NodeMemoryPressure), Disk: e.Short(corev1.NodeDiskPressure), PID: e.Short(corev1.NodePIDPressure)}
}
