package log

import (
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Rotator keeps the logs of running containers from growing without end:
//
//	0.log                        what the runtime writes to
//	0.log.20261115-203100        what it wrote to before, which readers may still read
//	0.log.20261115-202000.gz     older ones, the oldest of which goes when there are too many
//
// A crash in between leaves a file that the next round sees to.
type Rotator struct {
	// Runtime has the containers.
	Runtime Runtime
	// MaxSize is how large a log may grow; 0 means 10 MiB, less than that that
	// nothing is rotated.
	MaxSize int64
	// MaxFiles is how many files of one log there may be; 0 means 5.
	MaxFiles int
	// Every is how often logs are looked at; 0 means every 10 seconds.
	Every time.Duration
	// Logger hears what goes wrong; nil means slog.Default.
	Logger *slog.Logger

	paths map[string]string // of the logs of running containers
}

// Runtime is what a Rotator asks of a container runtime.
type Runtime interface {
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	ReopenContainerLog(ctx context.Context, id string) error
}

// Bounds of logs that nothing else is said of.
const (
	maxSize  = 10 << 20
	maxFiles = 5
	every    = 10 * time.Second
)

// Ends of file names.
const (
	zipped    = ".gz"
	unsettled = ".tmp"
	stamp     = "20060102-150405"
)

// Run rotates logs until ctx ends.
func (r *Rotator) Run(ctx context.Context) error {
	if r.MaxSize < 0 {
		return nil
	}
	if r.Logger == nil {
		r.Logger = slog.Default()
	}
	tick := time.NewTicker(cmp.Or(r.Every, every))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := r.Round(ctx); err != nil && ctx.Err() == nil {
				r.Logger.Error("logs of containers are not rotated yet", "error", err)
			}
		}
	}
}

// Round looks at the log of every running container, and rotates those that are
// too large.
func (r *Rotator) Round(ctx context.Context) error {
	running, err := r.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		return err
	}
	paths := make(map[string]string, len(running))
	var errs []error
	for _, c := range running {
		path, err := r.path(ctx, c.Id)
		if err == nil && path != "" {
			paths[c.Id] = path
			err = r.look(ctx, c.Id, path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("container %s: %w", c.Id, err))
		}
	}
	r.paths = paths
	return errors.Join(errs...)
}

// path is where the log of a container is, which never changes.
func (r *Rotator) path(ctx context.Context, id string) (string, error) {
	if path, known := r.paths[id]; known {
		return path, nil
	}
	is, err := r.Runtime.ContainerStatus(ctx, id, false)
	if err != nil {
		return "", err
	}
	return is.GetStatus().GetLogPath(), nil
}

// look rotates a log that is too large. One that is not there was renamed by a
// round that did not get further.
func (r *Rotator) look(ctx context.Context, id, path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return r.Runtime.ReopenContainerLog(ctx, id)
	}
	if err != nil || info.Size() < cmp.Or(r.MaxSize, maxSize) {
		return err
	}
	return r.rotate(ctx, id, path)
}

// rotate makes room, then gives the log another name and has the runtime make a
// new one.
func (r *Rotator) rotate(ctx context.Context, id, path string) error {
	old, err := settle(path)
	if err != nil {
		return err
	}
	// The one that is written, and the one that it becomes, count too.
	room := max(0, cmp.Or(r.MaxFiles, maxFiles)-2)
	for len(old) > room {
		if err := os.Remove(old[0]); err != nil {
			return err
		}
		old = old[1:]
	}
	for _, name := range old {
		if strings.HasSuffix(name, zipped) {
			continue
		}
		if err := zip(name); err != nil {
			return fmt.Errorf("failed to compress log %q: %w", name, err)
		}
	}
	renamed := path + "." + time.Now().Format(stamp)
	if err := os.Rename(path, renamed); err != nil {
		return err
	}
	if err := r.Runtime.ReopenContainerLog(ctx, id); err != nil {
		// It is tried again, with nothing lost.
		return errors.Join(fmt.Errorf("failed to reopen container log %q: %w", id, err), os.Rename(renamed, path))
	}
	return nil
}

// settle removes what a crash has left behind, and returns the older files of a
// log, the oldest first.
func settle(path string) ([]string, error) {
	all, err := older(path)
	if err != nil {
		return nil, err
	}
	var kept []string
	for _, name := range all {
		if strings.HasSuffix(name, unsettled) || slices.Contains(all, name+zipped) {
			if err := os.Remove(name); err != nil {
				return nil, err
			}
			continue
		}
		kept = append(kept, name)
	}
	return kept, nil
}

// older are the files beside a log that are made of it, in the order of their
// names, which is that of their age.
func older(path string) ([]string, error) {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), base+".") {
			names = append(names, dir+e.Name())
		}
	}
	return names, nil
}

// zip compresses a file; its name gets the ending.
func zip(name string) (err error) {
	from, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // it is only read
	info, err := from.Stat()
	if err != nil {
		return err
	}
	to, err := os.OpenFile(name+unsettled, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode())
	if err != nil {
		return err
	}
	packed := gzip.NewWriter(to)
	_, err = io.Copy(packed, from)
	if err = errors.Join(err, packed.Close(), to.Close()); err != nil {
		return errors.Join(err, os.Remove(name+unsettled))
	}
	if err := os.Rename(name+unsettled, name+zipped); err != nil {
		return err
	}
	return os.Remove(name)
}

// Remove removes the log at path and all that was made of it. What is gone
// already is no error.
func Remove(path string) error {
	all, err := older(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range append(all, path) {
		if err := os.Remove(name); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
