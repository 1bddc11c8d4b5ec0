package contract

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apitypes "k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func stats(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 1000")
	id := p.start(t, config)
	var s *runtimeapi.ContainerStats
	b.until(t, "there is something to measure", func() bool {
		var err error
		s, err = b.client.Runtime.ContainerStats(b.ctx, id)
		must(t, err)
		return s.GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0 && s.GetMemory().GetWorkingSetBytes().GetValue() > 0
	})
	if s.GetAttributes().GetId() != id || s.GetCpu().GetTimestamp() == 0 || s.GetMemory().GetTimestamp() == 0 {
		t.Errorf("%v", s)
	}
	if diff := cmp.Diff(config.GetLabels(), s.GetAttributes().GetLabels()); diff != "" {
		t.Error(diff)
	}
	all, err := b.client.Runtime.ListContainerStats(b.ctx, &runtimeapi.ContainerStatsFilter{PodSandboxId: p.id})
	must(t, err)
	if len(all) != 1 || all[0].GetAttributes().GetId() != id {
		t.Errorf("of the pod: %v", all)
	}
	all, err = b.client.Runtime.ListContainerStats(b.ctx, &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{"container": "no"}})
	must(t, err)
	if len(all) != 0 {
		t.Errorf("of others: %v", all)
	}
}

func podStats(t *testing.T, b *bench) {
	p := b.pod(t)
	id := p.start(t, p.shell("sleep 1000"))
	b.until(t, "there is something to measure", func() bool {
		s, err := b.client.Runtime.PodSandboxStats(b.ctx, p.id)
		must(t, err)
		all, err := b.client.Runtime.ListPodSandboxStats(b.ctx, &runtimeapi.PodSandboxStatsFilter{Id: p.id})
		must(t, err)
		if len(all) != 1 || all[0].GetAttributes().GetId() != p.id {
			t.Fatalf("%v", all)
		}
		containers := s.GetLinux().GetContainers()
		return s.GetAttributes().GetId() == p.id && s.GetLinux().GetMemory().GetWorkingSetBytes().GetValue() > 0 &&
			len(containers) == 1 && containers[0].GetAttributes().GetId() == id
	})
}

func memoryLimit(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("tail /dev/zero")
	config.Linux.Resources.MemoryLimitInBytes = 32 << 20
	s := b.ended(t, p.start(t, config))
	if s.GetReason() != "OOMKilled" || s.GetExitCode() != 137 {
		t.Errorf("code %d, reason %s", s.GetExitCode(), s.GetReason())
	}
}

func updateResources(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("sleep 1; tail /dev/zero")
	config.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 1 << 34}
	id := p.start(t, config)
	limits := &runtimeapi.LinuxContainerResources{CpuShares: 256, CpuPeriod: 100000, CpuQuota: 20000, MemoryLimitInBytes: 48 << 20}
	must(t, b.client.Runtime.UpdateContainerResources(b.ctx, id, &runtimeapi.ContainerResources{Linux: limits}))
	if got := b.status(t, id).GetResources().GetLinux(); b.Lacks["resources in status"] == "" &&
		(got.GetCpuShares() != 256 || got.GetCpuQuota() != 20000 || got.GetMemoryLimitInBytes() != 48<<20) {
		t.Errorf("the status says %v", got)
	}
	if s := b.ended(t, id); s.GetReason() != "OOMKilled" {
		t.Errorf("code %d, reason %s", s.GetExitCode(), s.GetReason())
	}
}

func events(t *testing.T, b *bench) {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	ch := make(chan *runtimeapi.ContainerEventResponse, 1000)
	connected, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- b.client.Runtime.GetContainerEvents(ctx, ch, func(runtimeapi.RuntimeService_GetContainerEventsClient) { close(connected) })
	}()
	select {
	case <-connected:
	case err := <-done:
		t.Fatal(err)
	}
	// The stream is there when the runtime has heard of it.
	time.Sleep(200 * time.Millisecond)
	p := b.pod(t)
	id := p.start(t, p.shell("exit 2"))
	b.ended(t, id)
	must(t, b.client.Runtime.RemoveContainer(b.ctx, id))
	var got []runtimeapi.ContainerEventType
	for len(got) < 4 {
		select {
		case e := <-ch:
			if e.GetContainerId() != id {
				continue
			}
			got = append(got, e.GetContainerEventType())
			if e.GetPodSandboxStatus().GetId() != p.id {
				t.Errorf("an event without its pod: %v", e)
			}
			if e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT &&
				(len(e.GetContainersStatuses()) != 1 || e.GetContainersStatuses()[0].GetExitCode() != 2) {
				t.Errorf("the end: %v", e.GetContainersStatuses())
			}
		case <-time.After(patience):
			t.Fatalf("only %v", got)
		}
	}
	want := []runtimeapi.ContainerEventType{
		runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
		runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	cancel()
	<-done
}

// follow hears of the end of a container, however the runtime tells it, and not of
// what is run in one.
func follow(t *testing.T, b *bench) {
	p := b.pod(t)
	id := p.start(t, p.shell("sleep 1000"))
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	begun, happened, done := make(chan struct{}), make(chan apitypes.UID, 1000), make(chan error, 1)
	go func() {
		done <- b.client.Follow(ctx, func() { close(begun) }, func(uid apitypes.UID) { happened <- uid })
	}()
	select {
	case <-begun:
	case err := <-done:
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // containerd does not say when it listens
	_, _, err := b.client.Runtime.ExecSync(b.ctx, id, []string{"true"}, patience)
	must(t, err)
	select {
	case uid := <-happened:
		t.Errorf("%q is told of what was run in it", uid)
	case <-time.After(time.Second):
	}
	must(t, b.client.Runtime.StopContainer(b.ctx, id, 0))
	for {
		select {
		case uid := <-happened:
			if uid != "" && string(uid) != p.config.GetLabels()["io.kubernetes.pod.uid"] {
				continue
			}
		case <-time.After(patience):
			t.Fatal("nothing was told")
		}
		break
	}
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Errorf("it ended with %v", err)
	}
}

func images(t *testing.T, b *bench) {
	resp, err := b.client.Images.ImageStatus(b.ctx, &runtimeapi.ImageSpec{Image: b.Image}, false)
	must(t, err)
	im := resp.GetImage()
	if im.GetId() == "" || im.GetSize() == 0 || len(im.GetRepoTags()) == 0 {
		t.Errorf("status: %v", im)
	}
	all, err := b.client.Images.ListImages(b.ctx, nil)
	must(t, err)
	if !has(all, im) {
		t.Errorf("%s is not among all images", b.Image)
	}
	one, err := b.client.Images.ListImages(b.ctx, &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: b.Image}})
	must(t, err)
	if !has(one, im) {
		t.Errorf("filtered: %v", one)
	}
	const none = "contract.invalid/no/such:image"
	resp, err = b.client.Images.ImageStatus(b.ctx, &runtimeapi.ImageSpec{Image: none}, false)
	if err != nil || resp.GetImage() != nil {
		t.Errorf("status of an image that is not there: %v %v", resp, err)
	}
	must(t, b.client.Images.RemoveImage(b.ctx, &runtimeapi.ImageSpec{Image: none}))
	if _, err := b.client.Images.PullImage(b.ctx, &runtimeapi.ImageSpec{Image: none}, nil, nil); err == nil || !strings.Contains(err.Error(), "failed to pull and unpack image") {
		t.Errorf("pull: %v", err)
	}
	fs, err := b.client.Images.ImageFsInfo(b.ctx)
	must(t, err)
	if len(fs.GetImageFilesystems()) == 0 || fs.GetImageFilesystems()[0].GetFsId().GetMountpoint() == "" || fs.GetImageFilesystems()[0].GetTimestamp() == 0 {
		t.Errorf("file systems: %v", fs)
	}
}

func has(all []*runtimeapi.Image, im *runtimeapi.Image) bool {
	return slices.ContainsFunc(all, func(one *runtimeapi.Image) bool { return one.GetId() == im.GetId() })
}

func checkpoint(t *testing.T, b *bench) {
	p := b.pod(t)
	id := p.start(t, p.shell("sleep 1000"))
	err := b.client.Runtime.CheckpointContainer(b.ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: b.dir + "/none.tar"})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("%v", err)
	}
}
