package nodelife_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// world is a control plane in a bubble with nodes that say that they are well.
type world struct {
	*apptest.Bubble
	t *testing.T
}

func in(t *testing.T, nodes []string, story func(world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, stop := apptest.InBubble(t, app.Config{Controllers: []string{"node-lifecycle-controller", "taint-eviction-controller"}})
		defer stop()
		w := world{b, t}
		for _, name := range nodes {
			if _, err := b.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.says(name, corev1.ConditionTrue)
		}
		b.Turn(time.Second)
		story(w)
	})
}

// says has a node say how it is.
func (w world) says(node string, ready corev1.ConditionStatus) {
	w.t.Helper()
	now, err := json.Marshal(metav1.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	status := fmt.Sprintf(`{"status": {"conditions": [{"type": "Ready", "status": %q, "lastHeartbeatTime": %s}]}}`, ready, now)
	if _, err := w.Client.CoreV1().Nodes().Patch(w.t.Context(), node, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		w.t.Fatal(err)
	}
}

// renew has nodes renew their leases for a while, as kubelets do.
func (w world) renew(during time.Duration, nodes ...string) {
	w.t.Helper()
	leases := w.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for end := time.Now().Add(during); time.Now().Before(end); w.Turn(10 * time.Second) {
		for _, node := range nodes {
			now := metav1.NowMicro()
			l, err := leases.Get(w.t.Context(), node, metav1.GetOptions{})
			if err != nil {
				l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
				if _, err := leases.Create(w.t.Context(), l, metav1.CreateOptions{}); err != nil {
					w.t.Fatal(err)
				}
				continue
			}
			l.Spec.RenewTime = &now
			if _, err := leases.Update(w.t.Context(), l, metav1.UpdateOptions{}); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// pod puts a pod on a node, that runs.
func (w world) pod(name, node string, tolerations ...corev1.Toleration) {
	w.t.Helper()
	pods := w.Client.CoreV1().Pods("default")
	p, err := pods.Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Tolerations: tolerations, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if _, err := pods.UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// node is what is known of a node: whether it is ready, and its taints.
func (w world) node(name string) string {
	w.t.Helper()
	n, err := w.Client.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var b strings.Builder
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			fmt.Fprint(&b, c.Status)
		}
	}
	for _, t := range n.Spec.Taints {
		fmt.Fprintf(&b, " %s:%s", strings.TrimPrefix(t.Key, "node.kubernetes.io/"), t.Effect)
	}
	return b.String()
}

func (w world) expect(node, want string) {
	w.t.Helper()
	if got := w.node(node); got != want {
		w.t.Errorf("%s after %v: %s, not %s", node, time.Since(w.begun()), got, want)
	}
}

// begun is when time began: bubbles begin at the same one.
func (w world) begun() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

func TestANodeThatGoesSilentIsGivenUp(t *testing.T) {
	in(t, []string{"a", "b"}, func(w world) {
		w.pod("fixed", "a")
		w.renew(2*time.Minute, "a", "b")
		w.expect("a", "True")
		w.renew(40*time.Second, "b")
		w.expect("a", "True")
		w.renew(30*time.Second, "b")
		w.expect("a", "Unknown unreachable:NoSchedule unreachable:NoExecute")
		w.expect("b", "True")
		p, err := w.Client.CoreV1().Pods("default").Get(w.t.Context(), "fixed", metav1.GetOptions{})
		if err != nil || p.Status.Conditions[0].Status != corev1.ConditionFalse {
			w.t.Errorf("the pod of a node that is not heard is ready: %v %v", p.Status.Conditions, err)
		}
		w.says("a", corev1.ConditionTrue)
		w.renew(20*time.Second, "a", "b")
		w.expect("a", "True")
	})
}

func TestWhereNobodyIsHeardNobodyIsDrivenOut(t *testing.T) {
	in(t, []string{"a", "b"}, func(w world) {
		w.Turn(2 * time.Minute)
		w.expect("a", "Unknown unreachable:NoSchedule")
		w.expect("b", "Unknown unreachable:NoSchedule")
		w.says("b", corev1.ConditionTrue)
		w.renew(30*time.Second, "b")
		w.expect("a", "Unknown unreachable:NoSchedule unreachable:NoExecute")
		w.expect("b", "True")
	})
}

func TestNodesAreGivenUpOneAfterTheOther(t *testing.T) {
	in(t, []string{"a", "b", "c", "d"}, func(w world) {
		w.renew(50*time.Second, "c", "d") // a moment after the two have become silent
		drivenOut := func() (n int) {
			for _, name := range []string{"a", "b"} {
				n += strings.Count(w.node(name), "NoExecute")
			}
			return n
		}
		if n := drivenOut(); n != 1 {
			w.t.Errorf("%d of two nodes are given up at once", n)
		}
		w.renew(20*time.Second, "c", "d")
		if n := drivenOut(); n != 2 {
			w.t.Errorf("%d of two nodes are given up in the end", n)
		}
	})
}

func TestPodsLeaveWhenTheyHaveToleratedEnough(t *testing.T) {
	for _, c := range []struct {
		name    string
		seconds *int64
		after   time.Duration // of the taint
		stays   bool
	}{
		{"five minutes, before", new(int64(300)), 250 * time.Second, true},
		{"five minutes, after", new(int64(300)), 330 * time.Second, false},
		{"for ever", nil, time.Hour, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, []string{"a", "b"}, func(w world) {
				w.pod("p", "a", corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: c.seconds})
				w.renew(60*time.Second, "b")
				w.expect("a", "Unknown unreachable:NoSchedule unreachable:NoExecute")
				w.renew(c.after, "b")
				p, err := w.Client.CoreV1().Pods("default").Get(w.t.Context(), "p", metav1.GetOptions{})
				if err != nil {
					w.t.Fatal(err)
				}
				if stays := p.DeletionTimestamp == nil; stays != c.stays {
					w.t.Errorf("the pod stays: %v", stays)
				}
			})
		})
	}
}
