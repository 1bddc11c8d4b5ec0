package pretend

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	now := metav1.Now()
	gate := []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	open := corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue}
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	contained := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}
	for _, test := range []struct {
		name string
		pod  corev1.Pod
		want step
	}{
		{"without a node", corev1.Pod{}, leave},
		{"deleted before it has a node", corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, leave},
		{"on another node", corev1.Pod{Spec: corev1.PodSpec{NodeName: "other"}}, leave},
		{"bound", corev1.Pod{Spec: corev1.PodSpec{NodeName: Name}, Status: corev1.PodStatus{Phase: corev1.PodPending}}, run},
		{"running", corev1.Pod{Spec: corev1.PodSpec{NodeName: Name}, Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{ready, contained}}}, leave},
		{"made unready by a test", corev1.Pod{Spec: corev1.PodSpec{NodeName: Name}, Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{contained}}}, leave},
		{"ended by a test", corev1.Pod{Spec: corev1.PodSpec{NodeName: Name}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, leave},
		{"deleted", corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}, Spec: corev1.PodSpec{NodeName: Name}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}, remove},
		{"waits for a readiness gate", corev1.Pod{Spec: corev1.PodSpec{NodeName: Name, ReadinessGates: gate}, Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{contained}}}, leave},
		{"the gate opens", corev1.Pod{Spec: corev1.PodSpec{NodeName: Name, ReadinessGates: gate}, Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{contained, open}}}, run},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := plan(&test.pod); got != test.want {
				t.Errorf("plan is %s, want %s", got, test.want)
			}
		})
	}
}

func TestRunning(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{
			NodeName: Name, Containers: []corev1.Container{{Name: "a", Image: "i"}},
			InitContainers: []corev1.Container{{Name: "once"}, {Name: "sidecar", RestartPolicy: &always}},
		},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}},
	}
	got := running(pod, "10.244.0.7", time.Now())
	if !is(got, corev1.PodReady) || !is(got, corev1.PodScheduled) || got.Status.PodIP != "10.244.0.7" {
		t.Errorf("status is %+v", got.Status)
	}
	if s := got.Status.InitContainerStatuses; s[0].State.Terminated == nil || s[1].State.Running == nil {
		t.Errorf("init containers are %+v", s)
	}
	if plan(got) != leave || len(pod.Status.Conditions) != 1 {
		t.Error("a running pod is left alone, and the pod that was given is not changed")
	}
}

func TestAddressesDiffer(t *testing.T) {
	n := &Node{}
	seen := map[string]bool{}
	for range 65000 {
		a := n.address(&corev1.Pod{})
		if seen[a] {
			t.Fatalf("%s is given twice", a)
		}
		seen[a] = true
	}
	if got := n.address(&corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}}); got != hostIP {
		t.Errorf("a pod on the host's network has %s", got)
	}
}
