package statefulset_test

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
)

var db = map[string]string{"app": "db"}

func set(replicas int32) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: db},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: db}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}}},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			}}},
		},
	}
}

func TestASetGrowsRollsAndShrinks(t *testing.T) {
	p := apptest.StartWith(t, "statefulset-controller")
	p.MakeReady(t, nil)
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	sets := k.AppsV1().StatefulSets("default")
	if _, err := sets.Create(t.Context(), set(3), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	settled := func(n int32) *appsv1.StatefulSet {
		t.Helper()
		var s *appsv1.StatefulSet
		apptest.Eventually(t, func(ctx context.Context) string {
			var err error
			if s, err = sets.Get(ctx, "db", metav1.GetOptions{}); err != nil {
				return err.Error()
			}
			if st := s.Status; st.ObservedGeneration != s.Generation || st.Replicas != n || st.AvailableReplicas != n || st.UpdatedReplicas != n || st.CurrentRevision != st.UpdateRevision {
				return fmt.Sprintf("the status is %+v", st)
			}
			return ""
		})
		return s
	}
	patch := func(body string) {
		t.Helper()
		if _, err := sets.Patch(t.Context(), "db", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	first := settled(3)
	patch(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"v2"}]}}}}`)
	second := settled(3)
	if first.Status.CurrentRevision == second.Status.CurrentRevision {
		t.Errorf("the revision is still %s", second.Status.CurrentRevision)
	}
	patch(`{"spec":{"replicas":1}}`)
	settled(1)
	pods, err := k.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 1 || pods.Items[0].Name != "db-0" || pods.Items[0].Spec.Containers[0].Image != "v2" {
		t.Errorf("pods are %+v, %v", pods.Items, err)
	}
	claims, err := k.CoreV1().PersistentVolumeClaims("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(claims.Items) != 3 {
		t.Errorf("%d claims are kept, %v", len(claims.Items), err)
	}
	revisions, err := k.AppsV1().ControllerRevisions("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(revisions.Items) != 2 {
		t.Errorf("%d revisions are kept, %v", len(revisions.Items), err)
	}
}
