package log_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/log"
)

// runtime has one running container whose log is at path.
type runtime struct {
	path     string
	reopened int
	fails    error
}

func (r *runtime) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return []*runtimeapi.Container{{Id: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING}}, nil
}

func (r *runtime) ContainerStatus(context.Context, string, bool) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{LogPath: r.path}}, nil
}

func (r *runtime) ReopenContainerLog(context.Context, string) error {
	if r.fails != nil {
		return r.fails
	}
	r.reopened++
	return os.WriteFile(r.path, nil, 0o600)
}

// files are the names of the files in a folder, with the times in them replaced,
// and what is in them.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		var from io.Reader = f
		if strings.HasSuffix(e.Name(), ".gz") {
			if from, err = gzip.NewReader(f); err != nil {
				t.Fatal(err)
			}
		}
		text, err := io.ReadAll(from)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		name := e.Name()
		if strings.HasPrefix(name, "0.log.202") {
			name = "0.log.NOW" + name[len("0.log.20260102-030405"):]
		}
		all[name] = string(text)
	}
	return all
}

func TestRotate(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  map[string]string
	}{
		{"small", map[string]string{"0.log": "12345"}, map[string]string{"0.log": "12345"}},
		{"large", map[string]string{"0.log": "1234567890"}, map[string]string{"0.log": "", "0.log.NOW": "1234567890"}},
		{
			"the last one is compressed",
			map[string]string{"0.log": "1234567890", "0.log.19990101-000000": "old"},
			map[string]string{"0.log": "", "0.log.NOW": "1234567890", "0.log.19990101-000000.gz": "old"},
		},
		{
			"too many",
			map[string]string{"0.log": "1234567890", "0.log.19990101-000000": "a", "0.log.19990102-000000": "b", "0.log.19990103-000000": "c"},
			map[string]string{"0.log": "", "0.log.NOW": "1234567890", "0.log.19990102-000000.gz": "b", "0.log.19990103-000000.gz": "c"},
		},
		{
			"after a crash",
			map[string]string{"0.log": "1234567890", "0.log.19990101-000000": "a", "0.log.19990101-000000.tmp": "a bit of it"},
			map[string]string{"0.log": "", "0.log.NOW": "1234567890", "0.log.19990101-000000.gz": "a"},
		},
		{"renamed and not reopened", map[string]string{"0.log.19990101-000000": "a"}, map[string]string{"0.log": "", "0.log.19990101-000000": "a"}},
		{
			"of others",
			map[string]string{"0.log": "1234567890", "10.log": "x", "0.logs": "y"},
			map[string]string{"0.log": "", "0.log.NOW": "1234567890", "10.log": "x", "0.logs": "y"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r := &log.Rotator{Runtime: &runtime{path: filepath.Join(dir, "0.log")}, MaxSize: 10, MaxFiles: 4}
			if err := r.Round(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, files(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRotateLosesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	if err := os.WriteFile(path, []byte("1234567890"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := &runtime{path: path, fails: errors.New("not now")}
	r := &log.Rotator{Runtime: broken, MaxSize: 10}
	if err := r.Round(t.Context()); !errors.Is(err, broken.fails) {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff(map[string]string{"0.log": "1234567890"}, files(t, dir)); diff != "" {
		t.Error(diff)
	}
	broken.fails = nil
	if err := r.Round(t.Context()); err != nil || broken.reopened != 1 {
		t.Fatalf("got %v, reopened %d times", err, broken.reopened)
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"0.log", "0.log.20260102-030405", "0.log.20260101-030405.gz", "1.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := log.Remove(filepath.Join(dir, "0.log")); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) != 1 || filepath.Base(left[0]) != "1.log" {
		t.Errorf("left: %v", left)
	}
	if err := log.Remove(filepath.Join(dir, "gone", "0.log")); err != nil {
		t.Error(err)
	}
}
