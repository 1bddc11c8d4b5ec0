package replicaset_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
)

var web = map[string]string{"app": "web"}

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: web},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}}},
	}
}

func replicaSet(replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: web}, Template: template()},
	}
}

// plane is a control plane with the controllers of this package.
func plane(t *testing.T) kubernetes.Interface {
	t.Helper()
	p := apptest.StartWith(t, "replicaset-controller", "replicationcontroller-controller")
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// eventually waits until holds returns "".
func eventually(t *testing.T, holds func(ctx context.Context) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		wrong := holds(ctx)
		if wrong == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("in the end %s", wrong)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func list(t *testing.T, k kubernetes.Interface) []corev1.Pod {
	t.Helper()
	l, err := k.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

func status(t *testing.T, k kubernetes.Interface, holds func(appsv1.ReplicaSetStatus) bool) {
	t.Helper()
	eventually(t, func(ctx context.Context) string {
		set, err := k.AppsV1().ReplicaSets("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !holds(set.Status) {
			return fmt.Sprintf("the status is %+v", set.Status)
		}
		return ""
	})
}

func TestASetHasItsReplicas(t *testing.T) {
	k := plane(t)
	ctx := t.Context()
	sets := k.AppsV1().ReplicaSets("default")
	if _, err := sets.Create(ctx, replicaSet(7), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	status(t, k, func(s appsv1.ReplicaSetStatus) bool {
		return s.Replicas == 7 && s.FullyLabeledReplicas == 7 && s.ReadyReplicas == 0
	})
	for _, p := range list(t, k) {
		if ref := metav1.GetControllerOf(&p); ref == nil || ref.Kind != "ReplicaSet" || ref.Name != "web" || !strings.HasPrefix(p.Name, "web-") {
			t.Errorf("pod %s is controlled by %v", p.Name, ref)
		}
		if p.ManagedFields[0].Manager != "kube-controller-manager" {
			t.Errorf("pod %s was made by %s", p.Name, p.ManagedFields[0].Manager)
		}
	}
	ready(t, k, list(t, k)[0].Name)
	status(t, k, func(s appsv1.ReplicaSetStatus) bool { return s.ReadyReplicas == 1 && s.AvailableReplicas == 1 })

	kept := list(t, k)[0].Name // it is ready
	if _, err := sets.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	status(t, k, func(s appsv1.ReplicaSetStatus) bool { return s.Replicas == 1 && s.ObservedGeneration == 2 })
	if left := list(t, k); len(left) != 1 || left[0].Name != kept {
		t.Errorf("%d pods are left, the first is %s, not %s", len(left), left[0].Name, kept)
	}
	eventually(t, func(ctx context.Context) string {
		events, err := k.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=web"})
		if err != nil {
			return err.Error()
		}
		said := map[string]bool{}
		for _, e := range events.Items {
			said[e.Reason] = true
			if e.Source.Component != "replicaset-controller" {
				return "an event is from " + e.Source.Component
			}
		}
		if !said["SuccessfulCreate"] || !said["SuccessfulDelete"] {
			return fmt.Sprintf("events were %v", said)
		}
		return ""
	})
}

func ready(t *testing.T, k kubernetes.Interface, name string) {
	t.Helper()
	patch := `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","lastTransitionTime":"` + time.Now().UTC().Format(time.RFC3339) + `"}]}}`
	if _, err := k.CoreV1().Pods("default").Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

func TestOrphansAreAdoptedAndStrangersReleased(t *testing.T) {
	k := plane(t)
	ctx := t.Context()
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "orphan", Labels: web}, Spec: template().Spec}
	if _, err := k.CoreV1().Pods("default").Create(ctx, orphan, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.AppsV1().ReplicaSets("default").Create(ctx, replicaSet(2), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	status(t, k, func(s appsv1.ReplicaSetStatus) bool { return s.Replicas == 2 })
	got, err := k.CoreV1().Pods("default").Get(ctx, "orphan", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if metav1.GetControllerOf(got) == nil {
		t.Error("the orphan was not adopted")
	}
	if len(list(t, k)) != 2 {
		t.Errorf("there are %d pods", len(list(t, k)))
	}
	if _, err := k.CoreV1().Pods("default").Patch(ctx, "orphan", types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"other"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) string {
		got, err := k.CoreV1().Pods("default").Get(ctx, "orphan", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if metav1.GetControllerOf(got) != nil {
			return "the stranger is still controlled"
		}
		if n := len(list(t, k)); n != 2 {
			return fmt.Sprintf("there are %d pods", n)
		}
		return ""
	})
}

func TestReplicationController(t *testing.T) {
	k := plane(t)
	two, tmpl := int32(2), template()
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ReplicationControllerSpec{Replicas: &two, Selector: web, Template: &tmpl},
	}
	if _, err := k.CoreV1().ReplicationControllers("default").Create(t.Context(), rc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) string {
		rc, err := k.CoreV1().ReplicationControllers("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if rc.Status.Replicas != 2 || rc.Status.ObservedGeneration != 1 || len(list(t, k)) != 2 {
			return fmt.Sprintf("the status is %+v", rc.Status)
		}
		return ""
	})
}
