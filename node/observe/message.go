package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// How much of a container's last words is kept. Compat: they are kubelet's.
const (
	messageBytes = 4096
	logBytes     = 2048
	logLines     = 80
)

// addMessage adds what a container that has ended wrote into its termination
// message file, or the end of its log where that is asked for instead.
func (c *Container) addMessage(ctx context.Context, s *runtimeapi.ContainerStatus, tail Tail) {
	policy := corev1.TerminationMessagePolicy(s.Annotations[annotationMessagePolicy])
	logs := policy == corev1.TerminationMessageFallbackToLogsOnError && c.ExitCode != 0 && c.Reason != "ContainerCannotRun"
	text, found := written(s.Mounts, s.Annotations[annotationMessagePath])
	if text == "" && !found && logs && tail != nil {
		text = tail(ctx, s.LogPath, logLines, logBytes)
	}
	if text == "" {
		return
	}
	if c.Message != "" {
		c.Message += ": "
	}
	c.Message += text
}

// written is what stands in the file that is mounted at path, and whether that is
// the last word: an empty file, or none, is not.
func written(mounts []*runtimeapi.Mount, path string) (text string, found bool) {
	if path == "" {
		return "", false
	}
	for _, m := range mounts {
		if m.ContainerPath != path {
			continue
		}
		data, err := readEnd(m.HostPath, messageBytes)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", false
		case err != nil:
			return fmt.Sprintf("Error on reading termination log %s: %v", m.HostPath, err), true
		}
		return string(data), len(data) > 0
	}
	return "", false
}

// readEnd is the last part of a file.
func readEnd(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if skip := info.Size() - most; skip > 0 {
		if _, err := f.Seek(skip, io.SeekStart); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, most))
}
