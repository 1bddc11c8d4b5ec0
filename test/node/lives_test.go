package node_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// once is how every container begins: it takes a lock of its name, or says that
// another has it, and writes that it runs (test/node/once).
func once(name, script string) []string { return []string{"/once", "/data", name, "sh", "-c", script} }

// life is a kind of pod, and what is to come of it.
type life struct {
	policy corev1.RestartPolicy
	// script is what the main container does, once it has begun.
	script string
	// around adds an init container and a sidecar.
	around bool
	// end is the last phase; "" for one that runs until it is deleted.
	end corev1.PodPhase
	// code is how the main container ends.
	code int32
	// runs is how often the main container runs.
	runs int
}

var kinds = map[string]life{
	"done":   {policy: corev1.RestartPolicyNever, script: "exit 0", end: corev1.PodSucceeded, runs: 1},
	"fails":  {policy: corev1.RestartPolicyNever, script: "exit 1", end: corev1.PodFailed, code: 1, runs: 1},
	"again":  {policy: corev1.RestartPolicyOnFailure, script: "test $(wc -l </data/main) -gt 1", end: corev1.PodSucceeded, runs: 2},
	"serves": {policy: corev1.RestartPolicyAlways, script: "trap 'exit 0' TERM; sleep 1000 & wait", runs: 1},
	"around": {policy: corev1.RestartPolicyNever, script: "grep -q run /data/init && grep -q run /data/side", around: true, end: corev1.PodSucceeded, runs: 1},
}

// pod is a pod of a kind, with a folder of its own.
func (l *life) pod(name, folder string, chance *rand.Rand) *corev1.Pod {
	grace := int64(1)
	container := func(name, script string) corev1.Container {
		return corev1.Container{
			Name: name, Image: "busybox:once", Command: once(name, script),
			VolumeMounts: []corev1.VolumeMount{{Name: "work", MountPath: "/data"}},
		}
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		RestartPolicy: l.policy, TerminationGracePeriodSeconds: &grace,
		Volumes:    []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}}}},
		Containers: []corev1.Container{container("main", fmt.Sprintf("sleep 0.%02d; %s", chance.IntN(100), l.script))},
	}}
	if l.around {
		always := corev1.ContainerRestartPolicyAlways
		side := container("side", "trap 'exit 0' TERM; sleep 1000 & wait")
		side.RestartPolicy = &always
		// One that is slow on a busy machine must not end the sidecar.
		side.StartupProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 20, FailureThreshold: 100, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"grep", "run", "/data/side"}}}}
		p.Spec.InitContainers = []corev1.Container{container("init", "sleep 0.1"), side}
	}
	return p
}

// live has a pod live, from its declaration until nothing is left of it.
func (s *site) live(t *testing.T, i int, chance *rand.Rand) {
	names := []string{"done", "fails", "again", "serves", "around"}
	kind := names[i%len(names)]
	l := kinds[kind]
	name := fmt.Sprintf("%s-%d", kind, i)
	folder := filepath.Join(s.work, name)
	if err := os.MkdirAll(folder, 0o777); err != nil {
		t.Error(err)
		return
	}
	pods := s.client.CoreV1().Pods("default")
	ctx := t.Context()
	pod := l.pod(name, folder, chance)
	// A server that is killed may have done what it was asked.
	if !s.until(t, name, "declared", func() string {
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return ""
		}
		return text(err)
	}) {
		return
	}
	var last corev1.PodStatus
	if !s.until(t, name, "as declared", func() string {
		now, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		last = now.Status
		return l.wrong(&last)
	}) {
		return
	}
	if l.end == "" {
		time.Sleep(time.Duration(chance.IntN(1000)) * time.Millisecond)
	}
	s.until(t, name, "gone", func() string {
		if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("it is there: %v", err)
		}
		return ""
	})
	s.mu.Lock()
	killed := s.killed[name]
	s.ends[kind+" "+string(last.Phase)]++
	s.mu.Unlock()
	off := s.calledOff(t, name)
	s.mu.Lock()
	for _, n := range off {
		s.off += n
	}
	s.mu.Unlock()
	for _, wrong := range l.judge(&last, folder, killed, off) {
		t.Errorf("%s, whose holders were killed %d times, and starts called off %v: %s\n%+v", name, killed, off, wrong, last)
	}
}

// until waits for a step of a life, and says whether it was reached.
func (s *site) until(t *testing.T, name, step string, wrong func() string) bool {
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		what := wrong()
		if what == "" {
			return true
		}
		if time.Since(begun) > longest {
			t.Errorf("%s is not %s after %v: %s", name, step, longest, what)
			return false
		}
	}
}

// wrong says how far a pod is from where it is left to itself no longer.
func (l *life) wrong(s *corev1.PodStatus) string {
	ready := slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	if ended := s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed; ended || l.end == "" && s.Phase == corev1.PodRunning && ready {
		return ""
	}
	return fmt.Sprintf("it is %+v", s)
}

// Lines of containerd's log: which sandbox is a pod's, which container a sandbox's,
// and which start was called off when it may have been made.
var (
	sandboxLine   = regexp.MustCompile(`msg="RunPodSandbox for &PodSandboxMetadata{Name:([^,]+),.* returns sandbox id \\"(\w+)\\"`)
	containerLine = regexp.MustCompile(`msg="CreateContainer within sandbox \\"(\w+)\\" for &ContainerMetadata{Name:([^,]+),.* returns container id \\"(\w+)\\"`)
	calledOffLine = regexp.MustCompile(`msg="StartContainer for \\"(\w+)\\" failed" error=".*failed to start containerd task.*context canceled`)
)

// calledOff counts, for each container of a pod, the starts that containerd called
// off because the agent that had asked for them was killed. Such a container may have
// run: one that is never started again has failed, others are started once more, as
// under a kubelet. A pod's status has only the last of them, the log has all.
func (s *site) calledOff(t *testing.T, pod string) map[string]int {
	t.Helper()
	off := map[string]int{}
	if s.containerd == nil {
		return off
	}
	log, err := os.ReadFile(s.containerd.Log)
	if err != nil {
		t.Error(err)
	}
	sandboxes, containers := map[string]bool{}, map[string]string{}
	for line := range strings.Lines(string(log)) {
		if m := sandboxLine.FindStringSubmatch(line); m != nil {
			sandboxes[m[2]] = m[1] == pod
		} else if m := containerLine.FindStringSubmatch(line); m != nil && sandboxes[m[1]] {
			containers[m[3]] = m[2]
		} else if m := calledOffLine.FindStringSubmatch(line); m != nil && containers[m[1]] != "" {
			off[containers[m[1]]]++
		}
	}
	return off
}

// judge says what is not as declared in the end. Who holds a container and is
// killed takes the container along: one that is never started again has failed,
// others are started once more for each time, and for each start that was called off.
func (l *life) judge(s *corev1.PodStatus, folder string, killed int, off map[string]int) []string {
	var all []string
	want := func(good bool, format string, args ...any) {
		if !good {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	runs := func(name string) int {
		b, _ := os.ReadFile(filepath.Join(folder, name)) // it may not have run
		return strings.Count(string(b), "run\n")
	}
	clash, err := os.ReadFile(filepath.Join(folder, "clash"))
	want(os.IsNotExist(err), "it ran twice at the same time: %s", clash)
	phase := l.end
	if phase == "" {
		phase = corev1.PodRunning
	}
	disturbed := killed > 0 || len(off) > 0
	mayFail := l.policy == corev1.RestartPolicyNever && disturbed
	want(s.Phase == phase || mayFail && s.Phase == corev1.PodFailed, "it is %s, not %s", s.Phase, phase)
	most := l.runs
	if l.policy != corev1.RestartPolicyNever {
		most += killed + off["main"]
	}
	want(runs("main") <= most, "its container ran %d times, not %d", runs("main"), most)
	want(runs("main") >= l.runs || mayFail, "its container ran %d times, not %d", runs("main"), l.runs)
	if !disturbed {
		for _, c := range s.ContainerStatuses {
			// A start that is broken off with the agent counts, too.
			want(int(c.RestartCount) >= l.runs-1, "it counts %d restarts, not %d", c.RestartCount, l.runs-1)
			want(l.end == "" || c.State.Terminated != nil && c.State.Terminated.ExitCode == l.code, "its container is %+v", c.State)
		}
	}
	if l.around {
		want(runs("init") <= 1 && runs("side") <= 1+killed+off["side"], "its init container ran %d times, its sidecar %d times", runs("init"), runs("side"))
	}
	return all
}
