// Package static runs pods that a folder on the node declares, and mirrors them
// in the API.
//
// In come manifests in YAML or JSON, one pod or many in a file; out come pods
// that the node runs whether or not the API is there, and mirror pods that show
// them to its users. What always holds: a pod's UID is made from its manifest, its
// file and its node, so that a pod that has not changed is the same pod after a
// restart; a file that cannot be read leaves its pods as they were; mirrors follow
// the folder, never the other way round.
package static

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Annotations that tell static pods and their mirrors from others.
const (
	Source = "kubernetes.io/config.source" // where a pod is from: file or api
	Hash   = "kubernetes.io/config.hash"   // which manifest a pod is
	Mirror = "kubernetes.io/config.mirror" // which manifest a mirror shows
)

const (
	lookEvery = time.Second
	maxFile   = 10 << 20
)

// Is reports whether pod is a static pod of a node's folder.
func Is(pod *corev1.Pod) bool { return pod.Annotations[Source] == "file" }

// IsMirror reports whether pod shows a static pod.
func IsMirror(pod *corev1.Pod) bool { _, ok := pod.Annotations[Mirror]; return ok }

// Config says where manifests are and who hears of them.
type Config struct {
	// Dir holds manifests; those whose names begin with a dot do not count. A
	// folder that is not there holds none.
	Dir string
	// Node is where the pods run. It is needed.
	Node string
	// Default fills in what a manifest leaves out and refuses what is wrong, as
	// the API would. It is needed.
	Default func(*corev1.Pod) error
	// Changed is told all static pods, first when the folder has been read once
	// and then when they change. It is needed.
	Changed func(pods []*corev1.Pod)
	// Logger is told which files cannot be read.
	Logger *slog.Logger
}

// Folder follows a folder of manifests.
type Folder struct {
	cfg   Config
	files map[string]manifest
}

// manifest is what one file held when it was last read.
type manifest struct {
	size int64
	time time.Time
	pods []*corev1.Pod
}

// New returns a folder that has not been read.
func New(cfg Config) *Folder {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Folder{cfg: cfg, files: map[string]manifest{}}
}

// Run looks at the folder every second until ctx ends.
func (f *Folder) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		changed, err := f.look(ctx)
		if err != nil {
			f.cfg.Logger.WarnContext(ctx, "the folder of static pods cannot be read", "folder", f.cfg.Dir, "error", err)
		} else if changed || first {
			f.cfg.Changed(f.pods())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look reads files that are new or have changed, and forgets those that are gone.
func (f *Folder) look(ctx context.Context) (changed bool, err error) {
	entries, err := os.ReadDir(f.cfg.Dir)
	if err != nil && !os.IsNotExist(err) {
		return false, err
	}
	there := map[string]bool{}
	for _, e := range entries {
		path := filepath.Join(f.cfg.Dir, e.Name())
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		there[path] = true
		held, known := f.files[path]
		if known && held.size == info.Size() && held.time.Equal(info.ModTime()) {
			continue
		}
		next := manifest{size: info.Size(), time: info.ModTime(), pods: held.pods}
		if pods, err := f.read(path); err != nil {
			f.cfg.Logger.ErrorContext(ctx, "a manifest cannot be read; its pods stay as they were", "file", path, "error", err)
		} else {
			changed = changed || !same(held.pods, pods)
			next.pods = pods
		}
		f.files[path] = next
	}
	for path, held := range f.files {
		if !there[path] {
			changed = changed || len(held.pods) > 0
			delete(f.files, path)
		}
	}
	return changed, nil
}

func same(a, b []*corev1.Pod) bool {
	return slices.EqualFunc(a, b, func(x, y *corev1.Pod) bool { return x.UID == y.UID })
}

// pods are those of all files. Of two with one name, that of the first file
// counts.
func (f *Folder) pods() []*corev1.Pod {
	paths := make([]string, 0, len(f.files))
	for path := range f.files {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	taken := map[string]bool{}
	pods := []*corev1.Pod{}
	for _, path := range paths {
		for _, pod := range f.files[path].pods {
			if key := pod.Namespace + "/" + pod.Name; !taken[key] {
				taken[key] = true
				pods = append(pods, pod)
			}
		}
	}
	return pods
}
