package contract

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func version(t *testing.T, b *bench) {
	v, err := b.client.Runtime.Version(b.ctx, "v1")
	must(t, err)
	if v.GetRuntimeName() != b.Name || v.GetRuntimeVersion() == "" || v.GetRuntimeApiVersion() != "v1" {
		t.Errorf("version: %v", v)
	}
	if b.client.Name != v.GetRuntimeName() || b.client.Version != v.GetRuntimeVersion() {
		t.Errorf("the client says %s %s", b.client.Name, b.client.Version)
	}
}

func runtimeStatus(t *testing.T, b *bench) {
	must(t, b.client.Ready(b.ctx))
	s, err := b.client.Runtime.Status(b.ctx, true)
	must(t, err)
	if len(s.GetInfo()) == 0 {
		t.Error("a verbose status has no more to say")
	}
}

func sandboxLife(t *testing.T, b *bench) {
	before := time.Now().UnixNano()
	p := b.pod(t)
	get := func() *runtimeapi.PodSandboxStatus {
		resp, err := b.client.Runtime.PodSandboxStatus(b.ctx, p.id, false)
		must(t, err)
		return resp.GetStatus()
	}
	s := get()
	if s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || s.GetId() != p.id {
		t.Errorf("status: %v", s)
	}
	if s.GetCreatedAt() < before || s.GetCreatedAt() > time.Now().UnixNano() {
		t.Errorf("created at %d, which is no time in nanoseconds between %d and now", s.GetCreatedAt(), before)
	}
	if s.GetNetwork().GetIp() == "" {
		t.Error("the pod has no address")
	}
	if diff := cmp.Diff(p.config.GetLabels(), s.GetLabels()); diff != "" {
		t.Errorf("labels: %s", diff)
	}
	if diff := cmp.Diff(p.config.GetAnnotations(), s.GetAnnotations()); diff != "" {
		t.Errorf("annotations: %s", diff)
	}
	if m := s.GetMetadata(); m.GetName() != "pod" || m.GetNamespace() != "contract" || m.GetUid() != p.config.GetMetadata().GetUid() {
		t.Errorf("metadata: %v", m)
	}
	for range 2 { // stopping twice is stopping once
		must(t, b.client.Runtime.StopPodSandbox(b.ctx, p.id))
	}
	if s := get(); s.GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("a stopped sandbox is %v", s.GetState())
	}
	for range 2 {
		must(t, b.client.Runtime.RemovePodSandbox(b.ctx, p.id))
	}
	_, err := b.client.Runtime.PodSandboxStatus(b.ctx, p.id, false)
	if status.Code(err) != codes.NotFound {
		t.Errorf("status of a sandbox that was removed: %v", err)
	}
}

func sandboxFilters(t *testing.T, b *bench) {
	live, dead := b.pod(t), b.pod(t)
	must(t, b.client.Runtime.StopPodSandbox(b.ctx, dead.id))
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	notReady := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}
	filters(t, b, b.client.Runtime.ListPodSandbox, map[string]filtered[*runtimeapi.PodSandboxFilter]{
		"id":               {&runtimeapi.PodSandboxFilter{Id: live.id}, []string{live.id}},
		"id and state":     {&runtimeapi.PodSandboxFilter{Id: live.id, State: notReady}, nil},
		"label":            {&runtimeapi.PodSandboxFilter{LabelSelector: dead.config.GetLabels()}, []string{dead.id}},
		"label and state":  {&runtimeapi.PodSandboxFilter{LabelSelector: dead.config.GetLabels(), State: notReady}, []string{dead.id}},
		"another state":    {&runtimeapi.PodSandboxFilter{LabelSelector: dead.config.GetLabels(), State: ready}, nil},
		"label of another": {&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"test": "no"}}, nil},
		"two labels":       {&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"test": live.config.GetLabels()["test"], "more": "no"}}, nil},
	})
}

// filtered is what a list with a filter has, by ID.
type filtered[F any] struct {
	filter F
	want   []string
}

// filters lists with one filter after the other.
func filters[F any, T interface{ GetId() string }](t *testing.T, b *bench, list func(context.Context, F) ([]T, error), cases map[string]filtered[F]) {
	t.Helper()
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			items, err := list(b.ctx, test.filter)
			must(t, err)
			var got []string
			for _, i := range items {
				got = append(got, i.GetId())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func sandboxNames(t *testing.T, b *bench) {
	p := b.pod(t)
	_, err := b.client.Runtime.RunPodSandbox(b.ctx, p.config, "")
	if err == nil || !strings.Contains(err.Error(), "is reserved for") {
		t.Errorf("a second sandbox of the same name: %v", err)
	}
	next := b.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.Metadata.Uid, c.Metadata.Attempt = p.config.GetMetadata().GetUid(), 1
	})
	if next.id == p.id {
		t.Error("another attempt has the same ID")
	}
}

func containerLife(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("sleep 1000")
	before := time.Now().UnixNano()
	id := p.create(t, config)
	s := b.status(t, id)
	if s.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED || s.GetStartedAt() != 0 || s.GetFinishedAt() != 0 {
		t.Errorf("after create: %v", s)
	}
	if s.GetCreatedAt() < before || s.GetMetadata().GetAttempt() != 2 || s.GetMetadata().GetName() != config.GetMetadata().GetName() {
		t.Errorf("after create: %v", s)
	}
	if diff := cmp.Diff(config.GetLabels(), s.GetLabels()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(config.GetAnnotations(), s.GetAnnotations()); diff != "" {
		t.Error(diff)
	}
	if s.GetImageRef() == "" || s.GetImage().GetImage() == "" || s.GetLogPath() != filepath.Join(p.config.GetLogDirectory(), config.GetLogPath()) {
		t.Errorf("image %q (%v), log %q", s.GetImageRef(), s.GetImage(), s.GetLogPath())
	}
	must(t, b.client.Runtime.StartContainer(b.ctx, id))
	if s = b.status(t, id); s.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || s.GetStartedAt() < s.GetCreatedAt() || s.GetFinishedAt() != 0 {
		t.Errorf("after start: %v", s)
	}
	if err := b.client.Runtime.StartContainer(b.ctx, id); err == nil {
		t.Error("a container was started twice")
	}
	for range 2 {
		must(t, b.client.Runtime.StopContainer(b.ctx, id, 0))
	}
	if s = b.status(t, id); s.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || s.GetFinishedAt() < s.GetStartedAt() || s.GetExitCode() != 137 || s.GetReason() != "Error" {
		t.Errorf("after stop: %v", s)
	}
	if err := b.client.Runtime.StartContainer(b.ctx, id); err == nil {
		t.Error("a container was started again")
	}
	for range 2 {
		must(t, b.client.Runtime.RemoveContainer(b.ctx, id))
	}
	_, err := b.client.Runtime.ContainerStatus(b.ctx, id, false)
	if status.Code(err) != codes.NotFound {
		t.Errorf("status of a container that was removed: %v", err)
	}
}

func containerExits(t *testing.T, b *bench) {
	p := b.pod(t)
	for name, test := range map[string]struct {
		script string
		code   int32
		reason string
	}{
		"well":     {"exit 0", 0, "Completed"},
		"badly":    {"exit 3", 3, "Error"},
		"killed":   {"kill -9 $$", 137, "Error"},
		"signaled": {"kill -TERM $$; sleep 10", 143, "Error"},
	} {
		t.Run(name, func(t *testing.T) {
			if why := b.Lacks["exit "+name]; why != "" {
				t.Skip(why)
			}
			s := b.ended(t, p.start(t, p.shell(test.script)))
			if s.GetExitCode() != test.code || s.GetReason() != test.reason {
				t.Errorf("code %d, reason %s", s.GetExitCode(), s.GetReason())
			}
		})
	}
}

func startFails(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("")
	config.Command, config.Args = []string{"no-such-program"}, nil
	id := p.create(t, config)
	err := b.client.Runtime.StartContainer(b.ctx, id)
	if err == nil || !strings.Contains(err.Error(), `exec: "no-such-program": executable file not found in $PATH`) {
		t.Errorf("start: %v", err)
	}
	if s := b.status(t, id); s.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 128 || s.GetReason() != "StartError" {
		t.Errorf("status: %v", s)
	}
}

func containerFilters(t *testing.T, b *bench) {
	p, other := b.pod(t), b.pod(t)
	config := p.shell("sleep 1000")
	live, made, ended, others := p.start(t, config), p.create(t, p.shell("true")), p.start(t, p.shell("true")), other.create(t, other.shell("true"))
	b.ended(t, ended)
	state := func(s runtimeapi.ContainerState) *runtimeapi.ContainerStateValue {
		return &runtimeapi.ContainerStateValue{State: s}
	}
	filters(t, b, b.client.Runtime.ListContainers, map[string]filtered[*runtimeapi.ContainerFilter]{
		"id":                {&runtimeapi.ContainerFilter{Id: live}, []string{live}},
		"sandbox":           {&runtimeapi.ContainerFilter{PodSandboxId: other.id}, []string{others}},
		"running":           {&runtimeapi.ContainerFilter{PodSandboxId: p.id, State: state(runtimeapi.ContainerState_CONTAINER_RUNNING)}, []string{live}},
		"created":           {&runtimeapi.ContainerFilter{PodSandboxId: p.id, State: state(runtimeapi.ContainerState_CONTAINER_CREATED)}, []string{made}},
		"exited":            {&runtimeapi.ContainerFilter{PodSandboxId: p.id, State: state(runtimeapi.ContainerState_CONTAINER_EXITED)}, []string{ended}},
		"label":             {&runtimeapi.ContainerFilter{LabelSelector: config.GetLabels()}, []string{live}},
		"id in another pod": {&runtimeapi.ContainerFilter{Id: live, PodSandboxId: other.id}, nil},
	})
}

func containerNames(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("true")
	id := p.create(t, config)
	_, err := b.client.Runtime.CreateContainer(b.ctx, p.id, config, p.config)
	if err == nil || !strings.Contains(err.Error(), "is reserved for") {
		t.Errorf("a second container of the same name: %v", err)
	}
	must(t, b.client.Runtime.RemoveContainer(b.ctx, id))
	p.create(t, config) // the name is free again
}

func deadSandbox(t *testing.T, b *bench) {
	p := b.pod(t)
	running, made := p.start(t, p.shell("sleep 1000")), p.create(t, p.shell("true"))
	must(t, b.client.Runtime.StopPodSandbox(b.ctx, p.id))
	if s := b.status(t, running); s.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("a container outlived its sandbox: %v", s.GetState())
	}
	if err := b.client.Runtime.StartContainer(b.ctx, made); err == nil {
		t.Error("a container was started in a sandbox that was stopped")
	}
	if _, err := b.client.Runtime.CreateContainer(b.ctx, p.id, p.shell("true"), p.config); err == nil {
		t.Error("a container was created in a sandbox that was stopped")
	}
}

func unknown(t *testing.T, b *bench) {
	r, id := b.client.Runtime, strings.Repeat("0123456789abcdef", 4)
	p := b.pod(t)
	for name, err := range map[string]error{
		"sandbox status": second(r.PodSandboxStatus(b.ctx, id, false)),
		"status":         second(r.ContainerStatus(b.ctx, id, false)),
		"start":          r.StartContainer(b.ctx, id),
		"exec":           second(r.Exec(b.ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})),
		"attach":         second(r.Attach(b.ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdout: true})),
		"stats":          second(r.ContainerStats(b.ctx, id)),
		"create":         second(r.CreateContainer(b.ctx, id, p.shell("true"), p.config)),
		"reopen":         r.ReopenContainerLog(b.ctx, id),
	} {
		if status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, r.RemoveContainer(b.ctx, id))
	must(t, r.RemovePodSandbox(b.ctx, id))
}

func second[T any](_ T, err error) error { return err }

// stopGrace: what ends in time is not killed, what does not is.
func stopGrace(t *testing.T, b *bench) {
	p := b.pod(t)
	heeds, deaf := p.shell("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done"), p.shell("trap '' TERM; echo ready; while :; do sleep 0.05; done")
	for _, test := range []struct {
		config *runtimeapi.ContainerConfig
		grace  int64
		code   int32
	}{{heeds, 20, 7}, {deaf, 1, 137}} {
		id := p.start(t, test.config)
		b.until(t, "the trap is set", func() bool { return logged(p, test.config, "ready") })
		must(t, b.client.Runtime.StopContainer(b.ctx, id, test.grace))
		if s := b.status(t, id); s.GetExitCode() != test.code {
			t.Errorf("grace %d: code %d", test.grace, s.GetExitCode())
		}
	}
	if !logged(p, heeds, "bye") {
		t.Error("the last words are not in the log")
	}
}

func logged(p *pod, config *runtimeapi.ContainerConfig, text string) bool {
	data, err := os.ReadFile(filepath.Join(p.config.GetLogDirectory(), config.GetLogPath()))
	return err == nil && strings.Contains(string(data), " "+text+"\n")
}

func stopSignal(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("trap 'exit 9' USR1; trap 'exit 8' TERM; echo ready; while :; do sleep 0.05; done")
	config.StopSignal = runtimeapi.Signal_SIGUSR1
	id := p.start(t, config)
	b.until(t, "the trap is set", func() bool { return logged(p, config, "ready") })
	if s := b.status(t, id); s.GetStopSignal() != runtimeapi.Signal_SIGUSR1 {
		t.Errorf("the status says %v", s.GetStopSignal())
	}
	must(t, b.client.Runtime.StopContainer(b.ctx, id, 20))
	if s := b.status(t, id); s.GetExitCode() != 9 {
		t.Errorf("code %d", s.GetExitCode())
	}
}

// nothingLeft: what a container started goes with it, in whatever session it is.
func nothingLeft(t *testing.T, b *bench) {
	p := b.pod(t)
	mark := unique("mark")
	for name, test := range map[string]struct {
		script string
		stop   bool
	}{
		"stopped": {"setsid sh -c 'sleep 1000; : " + mark + "' & sh -c 'sleep 1000; : " + mark + "' & echo ready; sleep 1000; : " + mark, true},
		"ended":   {"setsid sh -c 'sleep 1000; : " + mark + "' & (sh -c 'sleep 1000; : " + mark + "' &) ; sleep 0.2; echo ready; exit 0", false},
	} {
		t.Run(name, func(t *testing.T) {
			config := p.shell(test.script)
			id := p.start(t, config)
			b.until(t, "it runs", func() bool { return logged(p, config, "ready") })
			if test.stop {
				must(t, b.client.Runtime.StopContainer(b.ctx, id, 0))
			}
			b.ended(t, id)
			if left := processes(mark); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// processes gives the command lines that have a mark.
func processes(mark string) []string {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var found []string
	for _, path := range paths {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), mark) {
			found = append(found, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

func removeRunning(t *testing.T, b *bench) {
	p := b.pod(t)
	mark := unique("mark")
	id := p.start(t, p.shell("sleep 1000; : "+mark))
	must(t, b.client.Runtime.RemoveContainer(b.ctx, id))
	if left := processes(mark); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// restart: containers do not notice that the runtime was killed.
func restart(t *testing.T, b *bench) {
	if b.Restart == nil {
		t.Skip("the test cannot restart this runtime")
	}
	p := b.pod(t)
	config := p.shell("i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done")
	goes, ends := p.start(t, config), p.start(t, p.shell("sleep 0.5; exit 5"))
	made, ended := p.create(t, p.shell("exit 4")), p.start(t, p.shell("exit 6"))
	b.ended(t, ended)
	before := b.status(t, goes)
	b.Restart(t)
	b.dial(t)
	after := b.status(t, goes)
	if after.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || after.GetStartedAt() != before.GetStartedAt() {
		t.Errorf("after the restart: %v", after)
	}
	if got := b.sh(t, goes, "echo still here"); got != "still here" {
		t.Errorf("exec: %q", got)
	}
	if s := b.ended(t, ends); s.GetExitCode() != 5 && b.Lacks["end without the runtime"] == "" {
		t.Errorf("one that ended meanwhile: %v", s)
	}
	if s := b.status(t, ended); s.GetExitCode() != 6 || s.GetReason() != "Error" {
		t.Errorf("one that had ended: %v", s)
	}
	must(t, b.client.Runtime.StartContainer(b.ctx, made))
	if s := b.ended(t, made); s.GetExitCode() != 4 {
		t.Errorf("one that had not started: %v", s)
	}
	n := len(p.log(t, config))
	b.until(t, "the log goes on", func() bool { return len(p.log(t, config)) > n })
	for i, l := range p.log(t, config) {
		if l.text != strconv.Itoa(i+1) {
			t.Fatalf("line %d of the log is %q", i+1, l.text)
		}
	}
	must(t, b.client.Runtime.StopContainer(b.ctx, goes, 0))
	if s := b.status(t, goes); s.GetExitCode() != 137 {
		t.Errorf("stopped after the restart: %v", s)
	}
}
