package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/node/evict"
	"setpoint.dev/setpoint/node/nodetest"
)

// small is a control plane with a node.
type small struct {
	t *testing.T
	k kubernetes.Interface
}

// startShort starts one on containerd that is short by thresholds of its own.
func startShort(t *testing.T, hard string) *small {
	t.Helper()
	thresholds, err := evict.Settings{Hard: hard}.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return startSmall(t, app.Node{Runtime: "unix://" + nodetest.Containerd(t).Socket, Dir: nodeDir(t), Thresholds: thresholds})
}

// nodeDir is a folder for a node, which is empty again at the end of the test.
func nodeDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "setpoint-node-") //nolint:usetesting // sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// startSmall starts one that runs pods, and waits until it can.
func startSmall(t *testing.T, n app.Node) *small {
	t.Helper()
	n.On, n.Name, n.IP, n.ImagesHigh = true, "here", netip.MustParseAddr("127.0.0.1"), 100
	logger := slog.New(slog.NewTextHandler(lines{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	plane := apptest.StartOn(t, app.Config{Data: app.Memory, Controllers: []string{"*"}, Logger: logger, Node: n})
	k, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	s := &small{t: t, k: k}
	apptest.Eventually(t, func(ctx context.Context) string {
		if _, err := k.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return s.condition(ctx, corev1.NodeReady, corev1.ConditionTrue)
	})
	return s
}

// condition says what is wrong with a condition of the node, "" for nothing.
func (s *small) condition(ctx context.Context, kind corev1.NodeConditionType, status corev1.ConditionStatus) string {
	n, err := s.k.CoreV1().Nodes().Get(ctx, "here", metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind && c.Status == status }) {
		return fmt.Sprintf("%s is not %s: %+v", kind, status, n.Status.Conditions)
	}
	return ""
}

// pod declares a pod that is on the node already.
func (s *small) pod(name, script string, change func(*corev1.Pod)) {
	s.t.Helper()
	grace := int64(1)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: "here", RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36", Command: []string{"sh", "-c", script}}},
	}}
	change(p)
	if _, err := s.k.CoreV1().Pods("default").Create(s.t.Context(), p, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// evicted waits for a pod to be evicted, with a message that has a beginning, and
// for the event that says so.
func (s *small) evicted(name, message string) *corev1.Pod {
	s.t.Helper()
	var last *corev1.Pod
	apptest.Eventually(s.t, func(ctx context.Context) string {
		p, err := s.k.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if last = p; p.Status.Phase != corev1.PodFailed || p.Status.Reason != "Evicted" || !strings.HasPrefix(p.Status.Message, message) {
			return fmt.Sprintf("it is %+v", p.Status)
		}
		all, err := s.k.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "reason=Evicted,involvedObject.name=" + name})
		if err != nil || len(all.Items) == 0 || all.Items[0].Type != corev1.EventTypeWarning || !strings.HasSuffix(p.Status.Message, all.Items[0].Message) {
			return fmt.Sprintf("events are %+v, %v", all, err)
		}
		return ""
	})
	return last
}

func disrupted(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.DisruptionTarget {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// TestPodsThatUseTooMuchDisk has pods write more than they may.
func TestPodsThatUseTooMuchDisk(t *testing.T) {
	s := startShort(t, "")
	limit := resource.MustParse("2Mi")
	s.pod("volume", "dd if=/dev/zero of=/data/large bs=1M count=8; sleep 1000", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "work", MountPath: "/data"}}
	})
	s.pod("container", "head -c 8388608 /dev/zero | tr '\\0' x | fold; sleep 1000", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: limit}
	})
	s.pod("modest", "sleep 1000", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: limit}
	})
	if p := s.evicted("volume", `Usage of EmptyDir volume "work" exceeds the limit "2Mi". `); disrupted(p) != nil {
		t.Errorf("conditions are %+v", p.Status.Conditions)
	}
	s.evicted("container", `Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. `)
	if p, err := s.k.CoreV1().Pods("default").Get(t.Context(), "modest", metav1.GetOptions{}); err != nil || p.Status.Phase != corev1.PodRunning {
		t.Errorf("one that uses little is %+v, %v", p.Status, err)
	}
	if wrong := s.condition(t.Context(), corev1.NodeDiskPressure, corev1.ConditionFalse); wrong != "" {
		t.Error(wrong)
	}
	if err := s.k.CoreV1().Pods("default").Delete(t.Context(), "modest", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string { // nothing is mounted any more
		if _, err := s.k.CoreV1().Pods("default").Get(ctx, "modest", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("it is still there: %v", err)
		}
		return ""
	})
}

// TestNodeThatIsShort has a node that wants more memory free than any machine has.
func TestNodeThatIsShort(t *testing.T) {
	s := startShort(t, "memory.available<1Pi")
	apptest.Eventually(t, func(ctx context.Context) string {
		n, err := s.k.CoreV1().Nodes().Get(ctx, "here", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == corev1.TaintNodeMemoryPressure && taint.Effect == corev1.TaintEffectNoSchedule
		}) {
			return fmt.Sprintf("taints are %+v", n.Spec.Taints)
		}
		return s.condition(ctx, corev1.NodeMemoryPressure, corev1.ConditionTrue)
	})
	s.pod("effort", "sleep 1000", func(*corev1.Pod) {})
	refused := s.evicted("effort", "Pod was rejected: The node had condition: [MemoryPressure]. ")
	if len(refused.Status.ContainerStatuses) > 0 || disrupted(refused) != nil {
		t.Errorf("one that was never begun is %+v", refused.Status)
	}
	s.pod("burst", "sleep 1000", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}
	})
	gone := s.evicted("burst", "The node was low on resource: memory. Threshold quantity: 1Pi, available: ")
	if c := disrupted(gone); c == nil || c.Status != corev1.ConditionTrue || c.Reason != corev1.PodReasonTerminationByKubelet || c.Message != gone.Status.Message || c.LastTransitionTime.IsZero() {
		t.Errorf("conditions are %+v", gone.Status.Conditions)
	}
	if len(gone.Status.ContainerStatuses) == 0 || gone.Status.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("its containers are %+v", gone.Status.ContainerStatuses)
	}
}
