package podgc_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// held keeps a pod's object after its deletion, so that its end can be read.
const held = "example.org/held"

func TestPodsThatNobodyElseRemoves(t *testing.T) {
	for _, c := range []struct {
		name    string
		node    string        // that the pod names
		taint   string        // of the node "n", which is not ready
		deleted bool          // by its user
		ended   bool          // before
		after   time.Duration // time that passes
		removed bool
		phase   corev1.PodPhase // in the end
		reason  string          // why it was disrupted
	}{
		{name: "a pod without a node waits for one", after: time.Hour, phase: corev1.PodPending},
		{name: "deleted before it got a node", deleted: true, after: time.Second, removed: true, phase: corev1.PodFailed},
		{name: "its node is there", node: "n", after: time.Hour, phase: corev1.PodPending},
		{name: "its node may still show up", node: "lost", after: 30 * time.Second, phase: corev1.PodPending},
		{name: "its node is gone", node: "lost", after: time.Minute, removed: true, phase: corev1.PodFailed, reason: "DeletionByPodGC"},
		{name: "its node is gone and it has ended well", node: "lost", ended: true, after: time.Minute, removed: true, phase: corev1.PodSucceeded},
		{name: "deleted on a node that is only not ready", node: "n", deleted: true, after: time.Hour, phase: corev1.PodPending, removed: true},
		{name: "deleted on a node that is out of service", node: "n", taint: corev1.TaintNodeOutOfService, deleted: true, after: time.Second, removed: true, phase: corev1.PodFailed},
		{name: "not deleted on a node that is out of service", node: "n", taint: corev1.TaintNodeOutOfService, after: time.Hour, phase: corev1.PodPending},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, stop := apptest.InBubble(t, app.Config{Controllers: []string{"podgc"}})
				defer stop()
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
				if c.taint != "" {
					node.Spec.Taints = []corev1.Taint{{Key: c.taint, Effect: corev1.TaintEffectNoExecute}}
				}
				must(t)(b.Client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))
				pods := b.Client.CoreV1().Pods("default")
				must(t)(pods.Create(t.Context(), &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "p", Finalizers: []string{held}},
					Spec:       corev1.PodSpec{NodeName: c.node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
				}, metav1.CreateOptions{}))
				if c.ended {
					must(t)(pods.UpdateStatus(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Finalizers: []string{held}}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, metav1.UpdateOptions{}))
				}
				if c.deleted {
					must(t)(nil, pods.Delete(t.Context(), "p", metav1.DeleteOptions{}))
				}
				b.Turn(c.after)
				p, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if (p.DeletionTimestamp != nil) != c.removed || p.Status.Phase != c.phase || disrupted(p) != c.reason {
					t.Errorf("deleted %v, %s, disrupted by %q", p.DeletionTimestamp, p.Status.Phase, disrupted(p))
				}
				if c.removed && c.phase != corev1.PodPending && *p.DeletionGracePeriodSeconds != 0 {
					t.Errorf("it is given %d seconds", *p.DeletionGracePeriodSeconds)
				}
			})
		})
	}
}

func TestAPodThatIsRemovedIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, stop := apptest.InBubble(t, app.Config{Controllers: []string{"podgc"}})
		defer stop()
		pods := b.Client.CoreV1().Pods("default")
		must(t)(pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "lost", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{}))
		b.Turn(time.Minute)
		if _, err := pods.Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the pod: %v", err)
		}
	})
}

func must(t *testing.T) func(any, error) {
	return func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

func disrupted(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return c.Reason
		}
	}
	return ""
}
