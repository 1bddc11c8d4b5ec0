package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/node"
	"setpoint.dev/setpoint/node/nodetest"
)

const nodeName = "here"

// plainData gives containers what they declare word by word, and nothing else.
type plainData struct{}

func (plainData) Env(_ context.Context, _ *corev1.Pod, c *corev1.Container, _ []string) ([]*runtimeapi.KeyValue, error) {
	var all []*runtimeapi.KeyValue
	for _, e := range c.Env {
		all = append(all, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	return all, nil
}

func (plainData) Mounts(context.Context, *corev1.Pod, *corev1.Container, []*runtimeapi.KeyValue, []string) ([]*runtimeapi.Mount, error) {
	return nil, nil
}
func (plainData) PullSecrets(context.Context, *corev1.Pod) []*corev1.Secret { return nil }
func (plainData) CgroupParent(*corev1.Pod) string                           { return "" }
func (plainData) Resources(*corev1.Pod, *corev1.Container) *runtimeapi.LinuxContainerResources {
	return &runtimeapi.LinuxContainerResources{}
}

func (plainData) SandboxResources(*corev1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources) {
	return nil, nil
}
func (plainData) Expand(text string, _ map[string]string) string { return text }
func (plainData) Use(*corev1.Pod)                                {}
func (plainData) Prepare(context.Context, *corev1.Pod) error     { return nil }
func (plainData) Release(context.Context, types.UID) error       { return nil }
func (plainData) Left() ([]types.UID, error)                     { return nil, nil }

// site is an API, a runtime and an agent between them.
type site struct {
	t     *testing.T
	admin kubernetes.Interface
	agent func() *node.Agent
	stop  func()
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
	ctx := klog.NewContext(t.Context(), klog.LoggerWithName(klog.Background(), "cri"))
	runtime, err := remote.NewRemoteRuntimeService(ctx, "unix://"+machine.Socket, time.Minute, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	images, err := remote.NewRemoteImageService(ctx, "unix://"+machine.Socket, time.Minute, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(t.TempDir(), "logs")
	s := &site{t: t, admin: admin}
	s.agent = func() *node.Agent {
		return node.New(node.Config{
			Client: self, Name: nodeName, Runtime: runtime, Images: images, RuntimeName: "containerd", Data: plainData{},
			HostIPs: func() []string { return []string{"127.0.0.1"} }, Logs: logs, Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
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
