package collect_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/collect"
)

// machine has containers, images and folders, and notes what is removed.
type machine struct {
	containers []*runtimeapi.Container
	sandboxes  []*runtimeapi.PodSandbox
	images     []*runtimeapi.Image
	folders    []types.UID
	removed    []string
	refuses    string
	mounted    string // an image that every container has as a volume
}

func (m *machine) remove(what string) error {
	if what == m.refuses {
		return errors.New("no")
	}
	m.removed = append(m.removed, what)
	return nil
}

func (m *machine) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return m.containers, nil
}

func (m *machine) ContainerStatus(context.Context, string, bool) (*runtimeapi.ContainerStatusResponse, error) {
	s := &runtimeapi.ContainerStatus{}
	if m.mounted != "" {
		s.Mounts = []*runtimeapi.Mount{{HostPath: "/"}, {Image: &runtimeapi.ImageSpec{Image: m.mounted}}}
	}
	return &runtimeapi.ContainerStatusResponse{Status: s}, nil
}

func (m *machine) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return m.sandboxes, nil
}

func (m *machine) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return m.images, nil
}
func (m *machine) RemoveContainer(_ context.Context, id string) error  { return m.remove(id) }
func (m *machine) StopPodSandbox(_ context.Context, id string) error   { return m.remove("stop:" + id) }
func (m *machine) RemovePodSandbox(_ context.Context, id string) error { return m.remove(id) }
func (m *machine) Known() ([]types.UID, error)                         { return m.folders, nil }
func (m *machine) Remove(_ context.Context, uid types.UID) error {
	return m.remove("folder:" + string(uid))
}

func (m *machine) RemoveImage(_ context.Context, image *runtimeapi.ImageSpec) error {
	m.images = slices.DeleteFunc(m.images, func(i *runtimeapi.Image) bool { return i.Id == image.Image })
	return m.remove(image.Image)
}

const (
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	exited  = runtimeapi.ContainerState_CONTAINER_EXITED
	ready   = runtimeapi.PodSandboxState_SANDBOX_READY
	down    = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
)

func container(id, pod, name, sandbox string, created int64, state runtimeapi.ContainerState) *runtimeapi.Container {
	return &runtimeapi.Container{Id: id, PodSandboxId: sandbox, CreatedAt: created, State: state, Labels: map[string]string{"io.kubernetes.pod.uid": pod, "io.kubernetes.container.name": name}}
}

func sandbox(id, pod string, created int64, state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{Id: id, CreatedAt: created, State: state, Labels: map[string]string{"io.kubernetes.pod.uid": pod}}
}

func TestPlan(t *testing.T) {
	for _, test := range []struct {
		name       string
		containers []*runtimeapi.Container
		sandboxes  []*runtimeapi.PodSandbox
		want       string
	}{
		{name: "nothing"},
		{name: "runs", containers: []*runtimeapi.Container{container("c1", "p", "a", "s", 1, running)}, sandboxes: []*runtimeapi.PodSandbox{sandbox("s", "p", 1, ready)}},
		{
			name: "the last dead one of each stays",
			containers: []*runtimeapi.Container{
				container("c1", "p", "a", "s", 1, exited), container("c2", "p", "a", "s", 3, exited), container("c3", "p", "a", "s", 2, exited),
				container("c4", "p", "b", "s", 1, exited),
			},
			sandboxes: []*runtimeapi.PodSandbox{sandbox("s", "p", 1, ready)}, want: "c3 c1",
		},
		{
			name:       "a pod that is gone",
			containers: []*runtimeapi.Container{container("c1", "gone", "a", "s", 1, exited), container("c2", "gone", "a", "s", 2, running)},
			sandboxes:  []*runtimeapi.PodSandbox{sandbox("s", "gone", 1, down)}, want: "c1",
		},
		{name: "an empty sandbox of a pod that is gone", sandboxes: []*runtimeapi.PodSandbox{sandbox("s", "gone", 1, down)}, want: "s"},
		{name: "older sandboxes", sandboxes: []*runtimeapi.PodSandbox{sandbox("s1", "p", 1, down), sandbox("s2", "p", 2, down)}, want: "s1"},
		{
			name:       "an older sandbox with a container",
			containers: []*runtimeapi.Container{container("c1", "p", "a", "s1", 1, exited)},
			sandboxes:  []*runtimeapi.PodSandbox{sandbox("s1", "p", 1, down), sandbox("s2", "p", 2, ready)},
		},
		{name: "of somebody else's", containers: []*runtimeapi.Container{container("c1", "", "", "s", 1, exited)}, sandboxes: []*runtimeapi.PodSandbox{sandbox("s", "", 1, down)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan := collect.MakePlan(test.containers, test.sandboxes, map[types.UID]bool{"p": true})
			if diff := cmp.Diff(test.want, strings.Join(slices.Concat(plan.Containers, plan.Sandboxes), " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestContainers collects what is left of a pod that is gone, and only when the
// node knows its pods.
func TestContainers(t *testing.T) {
	logs := t.TempDir()
	for _, name := range []string{"default_web_p", "default_old_gone", "lost+found"} {
		if err := os.Mkdir(filepath.Join(logs, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m := &machine{
		containers: []*runtimeapi.Container{container("c1", "gone", "a", "s", 1, exited), container("c2", "busy", "a", "s2", 1, running)},
		sandboxes:  []*runtimeapi.PodSandbox{sandbox("s", "gone", 1, down)}, folders: []types.UID{"p", "gone", "busy"},
	}
	known := false
	c := collect.New(collect.Config{Runtime: m, Folders: m, Logs: logs, Pods: func() (map[types.UID]bool, bool) { return map[types.UID]bool{"p": true}, known }})
	if err := c.Containers(t.Context()); err != nil || len(m.removed) != 0 {
		t.Errorf("a node that does not know its pods removes %v, %v", m.removed, err)
	}
	known = true
	if err := c.Containers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c1", "stop:s", "s", "folder:gone"}, m.removed); diff != "" {
		t.Error(diff)
	}
	entries, err := os.ReadDir(logs)
	if err != nil || len(entries) != 2 || entries[0].Name() != "default_web_p" {
		t.Errorf("logs are %v, %v", entries, err)
	}
}

func TestToFree(t *testing.T) {
	for _, test := range []struct {
		name string
		disk collect.Disk
		want int64
	}{
		{"empty", collect.Disk{Capacity: 1000, Available: 1000}, 0},
		{"nearly", collect.Disk{Capacity: 1000, Available: 160}, 0},
		{"full", collect.Disk{Capacity: 1000, Available: 150}, 50},
		{"very full", collect.Disk{Capacity: 1000}, 200},
		{"more is free than there is", collect.Disk{Capacity: 1000, Available: 2000}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := collect.ToFree(test.disk, 85, 80); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// TestImages fills a disk, and sees the right images go.
func TestImages(t *testing.T) {
	begin := time.Now().Add(-time.Hour)
	image := func(id string) *runtimeapi.Image {
		return &runtimeapi.Image{Id: id, Size: 100, RepoTags: []string{id + ":1"}}
	}
	pinned := image("pause")
	pinned.Pinned = true
	all := []*runtimeapi.Image{image("used"), image("named"), image("old"), image("older"), pinned}
	uses := func(ids ...string) (list []*runtimeapi.Container) {
		for _, id := range ids {
			list = append(list, &runtimeapi.Container{ImageRef: id, Image: &runtimeapi.ImageSpec{Image: id + ":1"}})
		}
		return list
	}
	known := collect.Observe(nil, all, uses("older", "used", "named"), nil, begin)
	known = collect.Observe(known, all, uses("old", "used", "named"), nil, begin.Add(time.Minute))
	known = collect.Observe(known, append(all, image("new")), []*runtimeapi.Container{{ImageRef: "used"}, {ImageId: "x", Image: &runtimeapi.ImageSpec{Image: "named:1"}}}, nil, begin.Add(time.Hour))
	var got []string
	for _, i := range collect.Unused(known, begin.Add(time.Hour)) {
		got = append(got, i.ID)
	}
	if diff := cmp.Diff([]string{"older", "old"}, got); diff != "" {
		t.Error(diff)
	}

	var events []string
	m := &machine{images: []*runtimeapi.Image{image("a"), image("b"), image("c"), image("d"), image("0")}, containers: uses("a"), mounted: "0"}
	disk := collect.Disk{Capacity: 1000, Available: 100}
	c := collect.New(collect.Config{
		Runtime: m, Images: m, ImageDisk: func(context.Context) (collect.Disk, error) { return disk, nil },
		Event: func(kind, reason, message string) { events = append(events, kind+" "+reason+" "+message) },
	})
	if err := c.OldImages(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b"}, m.removed); diff != "" {
		t.Error(diff)
	}
	disk.Available = 0
	careful := collect.New(collect.Config{Runtime: m, Images: m, High: 100, ImageDisk: func(context.Context) (collect.Disk, error) { return disk, nil }})
	if err := careful.OldImages(t.Context()); err != nil || len(m.removed) != 1 {
		t.Errorf("images that are to stay are removed: %v, %v", m.removed, err)
	}
	m.refuses = "c"
	if err := c.OldImages(t.Context()); err == nil {
		t.Error("an image that stays is not told of")
	}
	m.refuses, m.images = "", []*runtimeapi.Image{image("a")}
	if err := c.OldImages(t.Context()); err == nil || len(events) != 1 || !strings.HasPrefix(events[0], "Warning FreeDiskSpaceFailed Insufficient free disk space on the node's image filesystem (100% of 1k used). Failed to free") {
		t.Errorf("error is %v, events are %v", err, events)
	}
}
