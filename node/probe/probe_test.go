package probe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilexec "k8s.io/utils/exec"

	"setpoint.dev/setpoint/node/probe"
)

// containers answer commands by their first word: what comes next for it.
type containers struct {
	mu     sync.Mutex
	says   map[string]error
	asked  map[string]int
	events []string
}

func (c *containers) ExecSync(_ context.Context, _ string, command []string, _ time.Duration) (stdout, stderr []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[command[0]]++
	return []byte("out"), nil, c.says[command[0]]
}

func (c *containers) set(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.says[what] = err
}

func (c *containers) count(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[what]
}

func ask(what string, change ...func(*corev1.Probe)) *corev1.Probe {
	p := &corev1.Probe{PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3}
	p.Exec = &corev1.ExecAction{Command: []string{what}}
	for _, c := range change {
		c(p)
	}
	return p
}

var failed = utilexec.CodeExitError{Err: errors.New("exit 1"), Code: 1}

// in runs a test with probes of a pod with one container, which began just now.
func in(t *testing.T, c corev1.Container, test func(s *probe.Set, all *containers, update func(id string, started bool))) {
	t.Helper()
	states(t, c, func(s *probe.Set, all *containers, update func(string, bool, corev1.ContainerState)) {
		begun := metav1.Now()
		test(s, all, func(id string, started bool) {
			update(id, started, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: begun}})
		})
	})
}

// states runs one in which the container has a state that the test gives it.
func states(t *testing.T, c corev1.Container, test func(s *probe.Set, all *containers, update func(id string, started bool, now corev1.ContainerState))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		all := &containers{says: map[string]error{}, asked: map[string]int{}}
		s := probe.New(probe.Config{
			Exec: all, Expand: func(text string, _ map[string]string) string { return text }, Changed: func(types.UID) {},
			Say: func(_ *corev1.Pod, _ *corev1.Container, _, reason, message string) {
				all.mu.Lock()
				defer all.mu.Unlock()
				all.events = append(all.events, reason+" "+message)
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid"}, Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
		test(s, all, func(id string, started bool, now corev1.ContainerState) {
			s.Update(pod, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
				Name: c.Name, ContainerID: "containerd://" + id, Started: &started, State: now,
			}}})
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func state(s *probe.Set) string {
	const id = "one"
	ready, known := s.Ready(id)
	started, _ := s.Started(id)
	return fmt.Sprintf("alive %v, started %v, start failed %v, ready %v of %v", s.Alive(id), started, s.StartFailed(id), ready, known)
}

func TestReadiness(t *testing.T) {
	in(t, corev1.Container{Name: "c", ReadinessProbe: ask("ready")}, func(s *probe.Set, all *containers, update func(string, bool)) {
		all.set("ready", failed)
		update("one", true)
		synctest.Wait()
		if got := state(s); got != "alive true, started false, start failed false, ready false of true" {
			t.Error(got)
		}
		all.set("ready", nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if ready, _ := s.Ready("one"); !ready {
			t.Error("it is not ready")
		}
		all.set("ready", failed)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if ready, _ := s.Ready("one"); !ready {
			t.Error("two failures of three made it unready")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if ready, _ := s.Ready("one"); ready {
			t.Error("three failures did not make it unready")
		}
		if got := strings.Join(all.events, ", "); !strings.Contains(got, "Unhealthy Readiness probe failed: out") {
			t.Error(got)
		}
	})
}

func TestLivenessIsAskedNoMoreOnceItFailed(t *testing.T) {
	in(t, corev1.Container{Name: "c", LivenessProbe: ask("live", func(p *corev1.Probe) { p.FailureThreshold, p.InitialDelaySeconds = 2, 15 })}, func(s *probe.Set, all *containers, update func(string, bool)) {
		all.set("live", failed)
		update("one", true)
		time.Sleep(12 * time.Second)
		if n := all.count("live"); n != 0 {
			t.Errorf("asked %d times before the delay was over", n)
		}
		time.Sleep(time.Minute)
		if s.Alive("one") || all.count("live") != 2 {
			t.Errorf("alive %v after %d", s.Alive("one"), all.count("live"))
		}
		update("two", true)
		time.Sleep(11 * time.Second)
		if !s.Alive("two") || all.count("live") != 3 {
			t.Errorf("the next one: alive %v after %d", s.Alive("two"), all.count("live"))
		}
	})
}

func TestStartupHoldsUpOthers(t *testing.T) {
	in(t, corev1.Container{Name: "c", StartupProbe: ask("start"), LivenessProbe: ask("live")}, func(s *probe.Set, all *containers, update func(string, bool)) {
		all.set("start", failed)
		update("one", false)
		time.Sleep(15 * time.Second)
		if all.count("live") != 0 || all.count("start") == 0 {
			t.Errorf("asked %v", all.asked)
		}
		all.set("start", nil)
		time.Sleep(10 * time.Second)
		if started, _ := s.Started("one"); !started {
			t.Error("it has not started")
		}
		update("one", true)
		n := all.count("start")
		time.Sleep(time.Minute)
		if all.count("live") == 0 || all.count("start") != n {
			t.Errorf("asked %v", all.asked)
		}
		s.Remove("uid")
		if got := state(s); got != "alive true, started false, start failed false, ready false of false" {
			synctest.Wait()
			if got = state(s); got != "alive true, started false, start failed false, ready false of false" {
				t.Error(got)
			}
		}
	})
}

// TestWaitingIsNoFailure has a container looked at between its making and its start:
// it is not stopped for that once it runs.
func TestWaitingIsNoFailure(t *testing.T) {
	c := corev1.Container{Name: "c", StartupProbe: ask("start"), LivenessProbe: ask("live"), ReadinessProbe: ask("ready")}
	states(t, c, func(s *probe.Set, _ *containers, update func(string, bool, corev1.ContainerState)) {
		for _, step := range []struct {
			now  corev1.ContainerState
			want string
		}{
			{corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}, "alive true, started false, start failed false, ready false of true"},
			{corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}, "alive true, started true, start failed false, ready false of true"},
			{corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}, "alive false, started false, start failed true, ready false of true"},
		} {
			update("one", false, step.now)
			time.Sleep(11 * time.Second)
			synctest.Wait()
			if got := state(s); got != step.want {
				t.Errorf("%+v: %s", step.now, got)
			}
		}
	})
}
