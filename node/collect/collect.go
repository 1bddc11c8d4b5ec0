// Package collect removes what a node no longer needs: dead containers, empty
// sandboxes, folders and logs of pods that are gone, and images that nobody uses.
//
// In come what the runtime has and which pods there are; out come removals. What
// always holds: what to remove is a pure function of what was observed; of a
// container of a pod that is there the last dead run stays, so that its state and
// logs can be read; an image that a container uses is never removed; as long as
// the node does not know its pods, nothing of theirs is removed.
package collect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// Compat: the paces and thresholds are a kubelet's.
const (
	containersEvery = time.Minute
	imagesEvery     = 5 * time.Minute
	minImageAge     = 2 * time.Minute
	highPercent     = 85
	lowPercent      = 80
	never           = 100
)

// Runtime is what is asked of the container runtime.
type Runtime interface {
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	RemoveContainer(ctx context.Context, id string) error
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	StopPodSandbox(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
}

// Images is what is asked about images.
type Images interface {
	ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error)
	RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error
}

// Folders are pods' folders.
type Folders interface {
	Known() ([]types.UID, error)
	Remove(ctx context.Context, uid types.UID) error
}

// Disk is how large the file system of images is and how much of it is free.
type Disk struct{ Capacity, Available int64 }

// Config says what to look after.
type Config struct {
	Runtime Runtime
	Images  Images
	Folders Folders
	// Logs is the folder of pods' logs; "" is none.
	Logs string
	// Pods are those that the node has, ended ones too; it is false until the
	// node knows them.
	Pods func() (map[types.UID]bool, bool)
	// ImageDisk looks at the file system that images are on.
	ImageDisk func(ctx context.Context) (Disk, error)
	// High is how full, in percent, the disk of images is when unused ones go, and
	// Low how full it is then: 85 and 80 when they are 0. With a High of 100 no
	// image goes.
	High, Low int64
	// Event tells what has become of the node.
	Event func(kind, reason, message string)
	// Logger is told what could not be removed.
	Logger *slog.Logger
}

// Collector removes what is not needed.
type Collector struct {
	cfg Config

	mu     sync.Mutex // guards images
	images map[string]Image
}

// New returns a collector that has removed nothing.
func New(cfg Config) *Collector {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Event == nil {
		cfg.Event = func(string, string, string) {}
	}
	if cfg.High == 0 {
		cfg.High = highPercent
	}
	if cfg.Low == 0 {
		cfg.Low = min(lowPercent, cfg.High)
	}
	return &Collector{cfg: cfg, images: map[string]Image{}}
}

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { c.every(ctx, containersEvery, "containers", c.Containers); return nil })
	g.Go(func() error { c.every(ctx, imagesEvery, "images", c.OldImages); return nil })
	return g.Wait()
}

func (c *Collector) every(ctx context.Context, pace time.Duration, what string, collect func(context.Context) error) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := collect(ctx); err != nil && ctx.Err() == nil {
			c.cfg.Logger.WarnContext(ctx, "not everything could be collected", "what", what, "error", err)
		}
	}
}

// Containers removes dead containers and sandboxes, and what is left of pods
// that are gone.
func (c *Collector) Containers(ctx context.Context) error {
	pods, known := c.cfg.Pods()
	if !known {
		return nil
	}
	sandboxes, err := c.cfg.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	containers, err := c.cfg.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return err
	}
	plan := MakePlan(containers, sandboxes, pods)
	var failed []error
	for _, id := range plan.Containers {
		failed = append(failed, c.cfg.Runtime.RemoveContainer(ctx, id))
	}
	for _, id := range plan.Sandboxes {
		if err := c.cfg.Runtime.StopPodSandbox(ctx, id); err != nil {
			failed = append(failed, err)
			continue
		}
		failed = append(failed, c.cfg.Runtime.RemovePodSandbox(ctx, id))
	}
	return errors.Join(append(failed, c.folders(ctx, containers, pods), c.logs(pods))...)
}

// folders removes folders of pods that are gone and of which nothing runs.
func (c *Collector) folders(ctx context.Context, containers []*runtimeapi.Container, pods map[types.UID]bool) error {
	if c.cfg.Folders == nil {
		return nil
	}
	uids, err := c.cfg.Folders.Known()
	if err != nil {
		return err
	}
	runs := map[types.UID]bool{}
	for _, container := range containers {
		if container.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			runs[podOf(container)] = true
		}
	}
	var failed []error
	for _, uid := range uids {
		if !pods[uid] && !runs[uid] {
			failed = append(failed, c.cfg.Folders.Remove(ctx, uid))
		}
	}
	return errors.Join(failed...)
}

// logs removes logs of pods that are gone. Their folders are named
// <namespace>_<name>_<uid>; others are left alone.
func (c *Collector) logs(pods map[types.UID]bool) error {
	if c.cfg.Logs == "" {
		return nil
	}
	entries, err := os.ReadDir(c.cfg.Logs)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var failed []error
	for _, e := range entries {
		parts := strings.Split(e.Name(), "_")
		if e.IsDir() && len(parts) == 3 && !pods[types.UID(parts[2])] {
			failed = append(failed, os.RemoveAll(filepath.Join(c.cfg.Logs, e.Name())))
		}
	}
	return errors.Join(append(failed, err)...)
}

// OldImages removes unused images, the longest unused first, when the disk is
// nearly full, until enough of it is free.
func (c *Collector) OldImages(ctx context.Context) error {
	if c.cfg.High >= never {
		return nil
	}
	if err := c.observe(ctx, time.Now()); err != nil {
		return err
	}
	disk, err := c.cfg.ImageDisk(ctx)
	if err != nil {
		return err
	}
	if disk.Capacity <= 0 {
		err := errors.New("invalid capacity 0 on image filesystem")
		c.cfg.Event(corev1.EventTypeWarning, "InvalidDiskCapacity", err.Error())
		return err
	}
	wanted := ToFree(disk, c.cfg.High, c.cfg.Low)
	if wanted <= 0 {
		return nil
	}
	freed, err := c.free(ctx, wanted)
	if err == nil && freed < wanted {
		err = fmt.Errorf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+ //nolint:staticcheck // Compat: the text is an event's, too.
			"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.", used(disk), size(disk.Capacity), freed)
		c.cfg.Event(corev1.EventTypeWarning, "FreeDiskSpaceFailed", err.Error())
	}
	return err
}

// AllImages removes every image that nobody uses, for a node that is short of
// disk now. It returns how many bytes that freed.
func (c *Collector) AllImages(ctx context.Context) (int64, error) {
	if err := c.observe(ctx, time.Now()); err != nil {
		return 0, err
	}
	return c.free(ctx, 1<<62)
}

// observe notes which images there are and which are used.
func (c *Collector) observe(ctx context.Context, now time.Time) error {
	images, err := c.cfg.Images.ListImages(ctx, nil)
	if err != nil {
		return err
	}
	containers, err := c.cfg.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return err
	}
	mounted, err := c.mounted(ctx, containers)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.images = Observe(c.images, images, containers, mounted, now)
	return nil
}

// mounted are the images that containers have as volumes.
func (c *Collector) mounted(ctx context.Context, containers []*runtimeapi.Container) ([]string, error) {
	var all []string
	for _, one := range containers {
		res, err := c.cfg.Runtime.ContainerStatus(ctx, one.Id, false)
		if crierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, m := range res.GetStatus().GetMounts() {
			if image := m.GetImage().GetImage(); image != "" {
				all = append(all, image)
			}
		}
	}
	return all, nil
}

func (c *Collector) free(ctx context.Context, wanted int64) (freed int64, err error) {
	c.mu.Lock()
	images := Unused(c.images, time.Now())
	c.mu.Unlock()
	var failed []error
	for _, image := range images {
		if freed >= wanted {
			break
		}
		if err := c.cfg.Images.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: image.ID}); err != nil {
			failed = append(failed, err)
			continue
		}
		freed += image.Size
	}
	if err := errors.Join(failed...); err != nil {
		return freed, fmt.Errorf("wanted to free %d bytes, but freed %d bytes space with errors in image deletion: %w", wanted, freed, err)
	}
	return freed, nil
}
