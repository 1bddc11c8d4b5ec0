package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/node"
	"setpoint.dev/setpoint/node/cri"
	"setpoint.dev/setpoint/node/nodetest"
)

const nodeName = "here"

// site is an API, a runtime and an agent between them.
type site struct {
	t     *testing.T
	admin kubernetes.Interface
	agent func() *node.Agent
	stop  func()
	// runtime is the version of the runtime.
	runtime string
}

// start runs an agent on a containerd of its own.
func start(t *testing.T) *site {
	t.Helper()
	machine := nodetest.Containerd(t)
	plane := apptest.Start(t)
	admin, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("20")}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: corev1.NodeStatus{Allocatable: room, Capacity: room}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	self, err := client.New(client.Config{
		Handler: plane.Handler, UserAgent: "kubelet/setpoint",
		User: &user.DefaultInfo{Name: "system:node:" + nodeName, Groups: []string{user.NodesGroup, user.AllAuthenticated}},
	}).Kubernetes()
	if err != nil {
		t.Fatal(err)
	}
	runtime, err := cri.Dial(t.Context(), "unix://"+machine.Socket)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &site{t: t, admin: admin, runtime: runtime.Version}
	s.agent = func() *node.Agent {
		return node.New(node.Config{
			Client: self, Name: nodeName, Runtime: runtime.Runtime, Images: runtime.Images, Tells: runtime.Follow, RuntimeName: "containerd", Dir: dir,
			HostIPs: func() []string { return []string{"127.0.0.1"} }, Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
	}
	s.begin()
	t.Cleanup(func() { s.stop() })
	return s
}

// begin runs an agent until stop.
func (s *site) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	a := s.agent()
	go func() { ended <- a.Run(ctx) }()
	s.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("the agent ended with %v", err)
		}
		s.stop = func() {}
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// pod declares a pod of one busybox container on the node.
func (s *site) pod(name, script string, change ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	grace := int64(1)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: nodeName, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36", Command: []string{"sh", "-c", script}}},
	}}
	for _, c := range change {
		c(p)
	}
	made, err := s.admin.CoreV1().Pods("default").Create(s.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return made
}

// until waits for a pod to be as wanted: wrong says what is not, "" for nothing.
func (s *site) until(name string, wrong func(*corev1.Pod) string) *corev1.Pod {
	s.t.Helper()
	var last *corev1.Pod
	apptest.Eventually(s.t, func(ctx context.Context) string {
		p, err := s.admin.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		last = p
		if what := wrong(p); what != "" {
			return fmt.Sprintf("%s; the pod is %+v", what, p.Status)
		}
		return ""
	})
	return last
}

func (s *site) untilGone(name string) {
	s.t.Helper()
	apptest.Eventually(s.t, func(ctx context.Context) string {
		p, err := s.admin.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("it is still there: %v %+v", err, p.Status)
	})
}

func phase(want corev1.PodPhase) func(*corev1.Pod) string {
	return func(p *corev1.Pod) string {
		if p.Status.Phase != want {
			return fmt.Sprintf("the phase is %s, not %s", p.Status.Phase, want)
		}
		return ""
	}
}

// resources are requests and limits alike.
func resources(cpu, memory string) corev1.ResourceRequirements {
	all := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	return corev1.ResourceRequirements{Requests: all, Limits: all}
}

// resizes says what is wrong with how a resize goes: it is to be pending for a
// reason, with a message that begins so, or over when the reason is "".
func resizes(p *corev1.Pod, reason, message string) string {
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type == corev1.PodResizePending && reason != "" && c.Reason == reason && strings.HasPrefix(c.Message, message):
			return ""
		case c.Type == corev1.PodResizePending, c.Type == corev1.PodResizeInProgress:
			return fmt.Sprintf("it is %s: %s: %s", c.Type, c.Reason, c.Message)
		}
	}
	if reason != "" {
		return "nothing is pending"
	}
	return ""
}

func TestPods(t *testing.T) {
	s := start(t)
	t.Run("one runs to its end", func(t *testing.T) {
		s.t = t
		s.pod("ends", "exit 0")
		p := s.until("ends", phase(corev1.PodSucceeded))
		end := p.Status.ContainerStatuses[0].State.Terminated
		if end == nil || end.Reason != "Completed" || end.ExitCode != 0 {
			t.Errorf("it ended as %+v", p.Status.ContainerStatuses)
		}
	})
	t.Run("one fails", func(t *testing.T) {
		s.t = t
		s.pod("fails", "exit 3")
		p := s.until("fails", phase(corev1.PodFailed))
		if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "Error" || end.ExitCode != 3 {
			t.Errorf("it ended as %+v", p.Status.ContainerStatuses)
		}
	})
	t.Run("one that crashes is started again, and has to wait", func(t *testing.T) {
		s.t = t
		s.pod("crashes", "exit 1", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways })
		s.until("crashes", func(p *corev1.Pod) string {
			if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].RestartCount == 0 {
				return "it was not started again"
			}
			if w := p.Status.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CrashLoopBackOff" {
				return "it does not wait"
			}
			return ""
		})
	})
	t.Run("one that is deleted goes", func(t *testing.T) {
		s.t = t
		s.pod("goes", "sleep 1000")
		s.until("goes", phase(corev1.PodRunning))
		if err := s.admin.CoreV1().Pods("default").Delete(t.Context(), "goes", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.untilGone("goes")
	})
	t.Run("config maps are environment and files, and a last word is kept", func(t *testing.T) {
		s.t = t
		if _, err := s.admin.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "words"}, Data: map[string]string{"greeting": "hello"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.pod("reads", `echo -n "$GREETING $(cat /words/greeting) $(ARG)" > /dev/termination-log`, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "words", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "words"}}}}}
			c := &p.Spec.Containers[0]
			c.VolumeMounts = []corev1.VolumeMount{{Name: "words", MountPath: "/words"}}
			c.Env = []corev1.EnvVar{{Name: "ARG", Value: "expanded"}, {Name: "GREETING", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "words"}, Key: "greeting"}}}}
		})
		p := s.until("reads", phase(corev1.PodSucceeded))
		if end := p.Status.ContainerStatuses[0].State.Terminated; end.Message != "hello hello expanded" {
			t.Errorf("it said %q", end.Message)
		}
	})
	t.Run("what it needs may come later", func(t *testing.T) {
		s.t = t
		s.pod("waits", "exit 0", func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "later"}}}}
		})
		s.until("waits", func(p *corev1.Pod) string {
			if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Waiting == nil || p.Status.ContainerStatuses[0].State.Waiting.Reason != "CreateContainerConfigError" {
				return "it does not say what it misses"
			}
			return ""
		})
		if _, err := s.admin.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.until("waits", phase(corev1.PodSucceeded))
	})
	t.Run("init containers come first, sidecars stay as long as they are needed", func(t *testing.T) {
		s.t = t
		always := corev1.ContainerRestartPolicyAlways
		s.pod("ordered", "test -f /made/proxy && sleep 1", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			mounts := []corev1.VolumeMount{{Name: "work", MountPath: "/made"}}
			p.Spec.Containers[0].VolumeMounts = mounts
			p.Spec.InitContainers = []corev1.Container{
				{Name: "setup", Image: "busybox:1.36", Command: []string{"touch", "/made/setup"}, VolumeMounts: mounts},
				{
					Name: "proxy", Image: "busybox:1.36", Command: []string{"sh", "-c", "test -f /made/setup && touch /made/proxy && sleep 1000"}, VolumeMounts: mounts, RestartPolicy: &always,
					StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-f", "/made/proxy"}}}, PeriodSeconds: 1},
				},
			}
		})
		p := s.until("ordered", phase(corev1.PodSucceeded))
		if p.Status.InitContainerStatuses[1].State.Terminated == nil {
			t.Errorf("the sidecar is %+v", p.Status.InitContainerStatuses[1])
		}
	})
	t.Run("probes decide who is ready and who is started again", func(t *testing.T) {
		s.t = t
		s.pod("probed", "touch /tmp/ready; sleep 2; touch /tmp/dead; sleep 1000", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyAlways
			c := &p.Spec.Containers[0]
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-f", "/tmp/ready"}}}, PeriodSeconds: 1}
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "!", "-f", "/tmp/dead"}}}, PeriodSeconds: 1, FailureThreshold: 1}
		})
		s.until("probed", func(p *corev1.Pod) string {
			if len(p.Status.ContainerStatuses) == 0 || !p.Status.ContainerStatuses[0].Ready {
				return "it is not ready"
			}
			return ""
		})
		s.until("probed", func(p *corev1.Pod) string {
			if p.Status.ContainerStatuses[0].RestartCount == 0 {
				return "it was not started again"
			}
			return ""
		})
	})
	t.Run("a pod has its time", func(t *testing.T) {
		s.t = t
		deadline := int64(2)
		s.pod("late", "sleep 1000", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = &deadline })
		if p := s.until("late", phase(corev1.PodFailed)); p.Status.Reason != "DeadlineExceeded" || p.Status.ContainerStatuses[0].State.Terminated == nil {
			t.Errorf("it failed as %+v", p.Status)
		}
	})
	t.Run("a pod that there is no room for fails", func(t *testing.T) {
		s.t = t
		s.pod("large", "sleep 1000", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100")}
		})
		if p := s.until("large", phase(corev1.PodFailed)); p.Status.Reason != "OutOfcpu" {
			t.Errorf("it failed as %+v", p.Status)
		}
		if err := s.admin.CoreV1().Pods("default").Delete(t.Context(), "large", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.untilGone("large")
	})
	t.Run("a grace that is shortened counts at once", func(t *testing.T) {
		s.t = t
		long, now := int64(600), int64(1)
		s.pod("slow", "trap '' TERM; while true; do sleep 1; done", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &long })
		s.until("slow", phase(corev1.PodRunning))
		for _, grace := range []*int64{nil, &now} {
			if err := s.admin.CoreV1().Pods("default").Delete(t.Context(), "slow", metav1.DeleteOptions{GracePeriodSeconds: grace}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		s.untilGone("slow")
	})
	t.Run("a container beside others starts", func(t *testing.T) {
		s.t = t
		made := s.pod("seen", "sleep 1000")
		s.until("seen", phase(corev1.PodRunning))
		now, err := s.admin.CoreV1().Pods("default").Get(t.Context(), made.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		now.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "busybox:1.36", Command: []string{"sleep", "1000"}}, TargetContainerName: "main"}}
		if _, err := s.admin.CoreV1().Pods("default").UpdateEphemeralContainers(t.Context(), made.Name, now, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.until("seen", func(p *corev1.Pod) string {
			if all := p.Status.EphemeralContainerStatuses; len(all) == 0 || all[0].State.Running == nil {
				return "it does not run"
			}
			return ""
		})
	})
	t.Run("resources change while a container runs", func(t *testing.T) {
		s.t = t
		s.pod("grows", "sleep 1000", func(p *corev1.Pod) { p.Spec.Containers[0].Resources = resources("100m", "64Mi") })
		before := s.until("grows", phase(corev1.PodRunning))
		for _, cpu := range []string{"200m", "50m"} {
			now, err := s.admin.CoreV1().Pods("default").Get(t.Context(), "grows", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			now.Spec.Containers[0].Resources = resources(cpu, "64Mi")
			if _, err := s.admin.CoreV1().Pods("default").UpdateResize(t.Context(), "grows", now, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			s.until("grows", func(p *corev1.Pod) string {
				c := p.Status.ContainerStatuses[0]
				if c.Resources == nil || c.Resources.Limits.Cpu().String() != cpu || c.AllocatedResources.Cpu().String() != cpu {
					return fmt.Sprintf("it has %+v of %+v", c.Resources, c.AllocatedResources)
				}
				for _, condition := range p.Status.Conditions {
					if condition.Type == corev1.PodResizeInProgress || condition.Type == corev1.PodResizePending {
						return "the resize goes on"
					}
				}
				if c.ContainerID != before.Status.ContainerStatuses[0].ContainerID {
					return "it is another container"
				}
				return ""
			})
		}
	})
	t.Run("a resize may want a new container, or more than is left", func(t *testing.T) {
		s.t = t
		resized := func(name, cpu, memory string) {
			t.Helper()
			now, err := s.admin.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			now.Spec.Containers[0].Resources = resources(cpu, memory)
			if _, err := s.admin.CoreV1().Pods("default").UpdateResize(t.Context(), name, now, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		has := func(cpu, memory string, restarts int32) func(p *corev1.Pod) string {
			return func(p *corev1.Pod) string {
				c := p.Status.ContainerStatuses[0]
				if c.Resources == nil || c.Resources.Limits.Cpu().String() != cpu || c.Resources.Limits.Memory().String() != memory || c.RestartCount != restarts || c.State.Running == nil {
					return fmt.Sprintf("it does not have %s and %s after %d restarts", cpu, memory, restarts)
				}
				return resizes(p, "", "")
			}
		}
		s.pod("resized", "sleep 1000", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyAlways
			p.Spec.Containers[0].Resources = resources("100m", "64Mi")
			p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
				{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}, {ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
			}
		})
		s.pod("beside", "sleep 1000", func(p *corev1.Pod) { p.Spec.Containers[0].Resources = resources("1", "64Mi") })
		for _, name := range []string{"resized", "beside"} {
			s.until(name, phase(corev1.PodRunning))
		}
		resized("resized", "100m", "96Mi")
		s.until("resized", has("100m", "96Mi", 1))
		resized("resized", "1500m", "96Mi")
		s.until("resized", func(p *corev1.Pod) string {
			return resizes(p, corev1.PodReasonDeferred, "Node didn't have enough resource: cpu, requested: 1500, used: ")
		})
		if err := s.admin.CoreV1().Pods("default").Delete(t.Context(), "beside", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.until("resized", has("1500m", "96Mi", 1))
		if err := s.admin.CoreV1().Pods("default").Delete(t.Context(), "resized", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("an image is a volume where the runtime can", func(t *testing.T) {
		s.t = t
		s.pod("mounts", "test -x /image/bin/busybox", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "busybox:1.36", PullPolicy: corev1.PullNever}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "image", MountPath: "/image"}}
		})
		if !strings.HasPrefix(s.runtime, "1.") { // containerd can since 2.1
			s.until("mounts", phase(corev1.PodSucceeded))
			return
		}
		s.until("mounts", func(p *corev1.Pod) string {
			all := p.Status.ContainerStatuses
			if len(all) == 0 || all[0].State.Waiting == nil || all[0].State.Waiting.Reason != "CreateContainerError" || !strings.Contains(all[0].State.Waiting.Message, `failed to mkdir ""`) {
				return "the runtime's words are not passed on"
			}
			return ""
		})
	})
	t.Run("an image that is not there is no volume", func(t *testing.T) {
		s.t = t
		s.pod("lacks", "exit 0", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "nowhere.invalid/none:1", PullPolicy: corev1.PullNever}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "image", MountPath: "/image"}}
		})
		s.until("lacks", func(p *corev1.Pod) string {
			all := p.Status.ContainerStatuses
			if len(all) == 0 || all[0].State.Waiting == nil || all[0].State.Waiting.Reason != "ErrImageNeverPull" ||
				all[0].State.Waiting.Message != `Container image "nowhere.invalid/none:1" is not present with pull policy of Never` {
				return "it does not say what it misses"
			}
			return ""
		})
	})
	t.Run("users of its own are refused", func(t *testing.T) {
		s.t = t
		no := false
		s.pod("users", "exit 0", func(p *corev1.Pod) { p.Spec.HostUsers = &no })
		apptest.Eventually(t, func(ctx context.Context) string {
			all, err := s.admin.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=users,reason=FailedCreatePodSandBox"})
			if err != nil || len(all.Items) == 0 || all.Items[0].Message != "Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces" {
				return fmt.Sprintf("events are %+v, %v", all, err)
			}
			return ""
		})
	})
	t.Run("what was done is told", func(t *testing.T) {
		s.t = t
		apptest.Eventually(t, func(ctx context.Context) string {
			all, err := s.admin.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
			if err != nil {
				return err.Error()
			}
			told := map[string]bool{}
			for _, e := range all.Items {
				told[e.InvolvedObject.Name+" "+e.InvolvedObject.FieldPath+" "+e.Reason] = true
			}
			for _, want := range []string{
				"ends spec.containers{main} Pulled", "ends spec.containers{main} Created", "ends spec.containers{main} Started", "crashes spec.containers{main} BackOff",
				"goes spec.containers{main} Killing", "probed spec.containers{main} Unhealthy", "late  DeadlineExceeded", "large  OutOfcpu", "grows  ResizeCompleted",
			} {
				if !told[want] {
					return fmt.Sprintf("%q was not told, but %v", want, told)
				}
			}
			return ""
		})
	})
	t.Run("an agent that starts restarts nothing", func(t *testing.T) {
		s.t = t
		s.pod("stays", "sleep 1000", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways })
		ready := func(p *corev1.Pod) string {
			if len(p.Status.ContainerStatuses) == 0 || !p.Status.ContainerStatuses[0].Ready {
				return "it is not ready"
			}
			return ""
		}
		before := s.until("stays", ready).Status.ContainerStatuses[0]
		s.stop()
		s.begin()
		s.pod("after", "exit 0")
		s.until("after", phase(corev1.PodSucceeded))
		after := s.until("stays", ready).Status.ContainerStatuses[0]
		if before.ContainerID != after.ContainerID || after.RestartCount != 0 {
			t.Errorf("was %+v, is %+v", before, after)
		}
	})
}
