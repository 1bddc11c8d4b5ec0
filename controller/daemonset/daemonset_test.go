package daemonset_test

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
)

func TestEachNodeHasAPod(t *testing.T) {
	p := apptest.StartWith(t, "daemonset-controller")
	p.MakeReady(t, nil)
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	node := func(name string) {
		t.Helper()
		if _, err := k.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// A new node is not ready, and says so by a taint.
		if _, err := k.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	node("a")
	node("b")
	labels := map[string]string{"app": "log"}
	sets := k.AppsV1().DaemonSets("default")
	if _, err := sets.Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "log"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	settled := func(n int32, image string) {
		t.Helper()
		apptest.Eventually(t, func(ctx context.Context) string {
			s, err := sets.Get(ctx, "log", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			pods, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			if err != nil {
				return err.Error()
			}
			if st := s.Status; st.ObservedGeneration != s.Generation || st.DesiredNumberScheduled != n || st.NumberAvailable != n || st.UpdatedNumberScheduled != n || len(pods.Items) != int(n) {
				return fmt.Sprintf("there are %d pods, the status is %+v", len(pods.Items), st)
			}
			for _, p := range pods.Items {
				if p.Spec.Containers[0].Image != image {
					return p.Name + " is of " + p.Spec.Containers[0].Image
				}
			}
			return ""
		})
	}
	settled(2, "v1")
	node("c")
	settled(3, "v1")
	if _, err := sets.Patch(t.Context(), "log", types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"v2"}]}}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	settled(3, "v2")
	if err := k.CoreV1().Nodes().Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	settled(2, "v2")
}
