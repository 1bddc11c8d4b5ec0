package app_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// TestPodsRunOnThePretendedNode has the scheduler put a pod on the node that runs
// nothing, once a controller has seen that the node is well.
func TestPodsRunOnThePretendedNode(t *testing.T) {
	plane := apptest.StartOn(t, app.Config{Data: app.Memory, Controllers: []string{"nodelifecycle"}, Scheduler: app.Scheduler{On: true}, PretendNode: true})
	k, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := k.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		now, err := k.CoreV1().Pods("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if now.Status.Phase != corev1.PodRunning {
			return "the pod is " + string(now.Status.Phase)
		}
		return ""
	})
}
