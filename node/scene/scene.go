// Package scene reads pods in some state from a few words, for tests of what is
// decided about them.
//
// In comes text such as
//
//	# A sidecar that has started lets the next init container begin.
//	pod OnFailure init:proxy*,setup main:web
//	sandbox ready
//	proxy running started
//	----
//	start init 1
//
// A star marks a sidecar. After a container's name comes its newest try, a second
// line of the same name is an older one: running, created, unknown, or exited with
// a code. Words behind that: changed (its image is another), dead (its liveness
// probe failed), started, ready, unstartable (its startup probe failed), startup
// and readiness (it has such a probe). Out come cases; what is below the line is
// what a test expects. With -rewrite it is written anew.
package scene

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/observe"
)

var rewrite = flag.Bool("rewrite", false, "write down what came out")

// Now is when every scene takes place.
var Now = time.Unix(1_700_000_000, 0).UTC()

// Scene is a pod in some state.
type Scene struct {
	Name string
	Pod  *corev1.Pod
	Seen *observe.Pod
	// Words are those of each container, by ID.
	Words map[string][]string
	// Extra are lines that mean something to one test only.
	Extra [][]string
}

// Alive is false where a liveness probe failed.
func (s *Scene) Alive(id string) bool { return !slices.Contains(s.Words[id], "dead") }

// StartFailed says that a startup probe failed.
func (s *Scene) StartFailed(id string) bool { return slices.Contains(s.Words[id], "unstartable") }

// Started says whether a startup probe succeeded.
func (s *Scene) Started(id string) (yes, known bool) {
	yes = slices.Contains(s.Words[id], "started")
	return yes, yes || s.StartFailed(id) || slices.Contains(s.Words[id], "startup")
}

// Ready says whether a readiness probe succeeded.
func (s *Scene) Ready(id string) (yes, known bool) {
	yes = slices.Contains(s.Words[id], "ready")
	return yes, yes || slices.Contains(s.Words[id], "readiness")
}

// Run compares what decide makes of each scene of a file with what stands there.
func Run(t *testing.T, file string, decide func(*Scene) string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for i, text := range strings.Split(strings.TrimSpace(string(data)), "\n\n") {
		above, want, _ := strings.Cut(text, "\n----\n")
		s := read(t, above)
		got := strings.TrimSpace(decide(s))
		if i > 0 {
			out.WriteString("\n")
		}
		fmt.Fprintf(&out, "%s\n----\n%s\n", above, got)
		if got != strings.TrimSpace(want) && !*rewrite {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", s.Name, got, want)
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, text string) *Scene {
	t.Helper()
	s := &Scene{Seen: &observe.Pod{}, Words: map[string][]string{}, Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "default", UID: "uid", Generation: 2},
	}}
	for line := range strings.SplitSeq(text, "\n") {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "#"):
			s.Name += strings.TrimPrefix(line, "# ") + "\n"
		case words[0] == "pod":
			s.declare(words[1:])
		case words[0] == "sandbox":
			s.sandbox(words[1:])
		case words[0] == "deleted":
			s.Pod.DeletionTimestamp = &metav1.Time{Time: Now}
		case s.declared(words[0]) != nil && len(words) > 1 && slices.Contains([]string{"running", "created", "unknown", "exited"}, words[1]):
			s.container(words)
		default:
			s.Extra = append(s.Extra, words)
		}
	}
	return s
}

func (s *Scene) declare(words []string) {
	s.Pod.Spec.RestartPolicy = corev1.RestartPolicy(words[0])
	for _, w := range words[1:] {
		part, names, _ := strings.Cut(w, ":")
		for name := range strings.SplitSeq(names, ",") {
			c := corev1.Container{Name: strings.TrimSuffix(name, "*"), Image: "image"}
			switch part {
			case "init":
				if strings.HasSuffix(name, "*") {
					always := corev1.ContainerRestartPolicyAlways
					c.RestartPolicy = &always
				}
				s.Pod.Spec.InitContainers = append(s.Pod.Spec.InitContainers, c)
			case "main":
				s.Pod.Spec.Containers = append(s.Pod.Spec.Containers, c)
			case "ephemeral":
				s.Pod.Spec.EphemeralContainers = append(s.Pod.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c.Name, Image: c.Image}})
			}
		}
	}
}

func (s *Scene) declared(name string) *corev1.Container {
	for _, all := range [][]corev1.Container{s.Pod.Spec.Containers, s.Pod.Spec.InitContainers} {
		for i := range all {
			if all[i].Name == name {
				return &all[i]
			}
		}
	}
	for i := range s.Pod.Spec.EphemeralContainers {
		if e := &s.Pod.Spec.EphemeralContainers[i]; e.Name == name {
			return (*corev1.Container)(&e.EphemeralContainerCommon)
		}
	}
	return nil
}

func (s *Scene) sandbox(words []string) {
	state := runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	if words[0] == "ready" {
		state = runtimeapi.PodSandboxState_SANDBOX_READY
		s.Seen.IPs = []string{"10.0.0.1"}
	}
	s.Seen.Sandboxes = append(s.Seen.Sandboxes, &runtimeapi.PodSandboxStatus{
		Id: fmt.Sprintf("sandbox%d", len(s.Seen.Sandboxes)), State: state, Metadata: &runtimeapi.PodSandboxMetadata{}, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
	})
}

func (s *Scene) container(words []string) {
	declared := s.declared(words[0])
	tries := 0
	for _, c := range s.Seen.Containers {
		if c.Name == words[0] {
			tries++
		}
	}
	c := &observe.Container{
		ID: fmt.Sprintf("%s-%d", words[0], tries), Name: words[0], Sandbox: "sandbox0", Hash: observe.Hash(declared), Image: declared.Image,
		Created: Now.Add(-time.Duration(tries+1) * time.Minute), Started: Now.Add(-time.Duration(tries+1) * time.Minute),
	}
	c.State = map[string]observe.State{"running": observe.Running, "created": observe.Created, "unknown": observe.Unknown, "exited": observe.Exited}[words[1]]
	rest := words[2:]
	if c.State == observe.Exited {
		code, _ := strconv.Atoi(words[2])
		c.ExitCode, c.Finished, rest = int32(code), c.Started.Add(time.Second), words[3:]
		if c.Reason = "Completed"; code != 0 {
			c.Reason = "Error"
		}
	}
	s.Words[c.ID] = rest
	for _, w := range rest {
		switch w {
		case "changed":
			c.Hash = "another"
		case "startup", "started", "unstartable":
			declared.StartupProbe = &corev1.Probe{}
		case "dead":
			declared.LivenessProbe = &corev1.Probe{}
		case "readiness", "ready":
			declared.ReadinessProbe = &corev1.Probe{}
		}
	}
	s.Seen.Containers = append(s.Seen.Containers, c)
}
