package protection_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
)

func TestWhatIsUsedStays(t *testing.T) {
	p := apptest.StartWith(t, "pvc-protection", "pv-protection", "volumeattributesclass-protection-controller")
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	class := "gold"
	must(k.StorageV1().VolumeAttributesClasses().Create(t.Context(), &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: class}, DriverName: "d", Parameters: map[string]string{"a": "b"}}, metav1.CreateOptions{}))
	must(k.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeAttributesClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{}))
	must(k.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{
			NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}},
		},
	}, metav1.CreateOptions{}))
	held := func(get func(ctx context.Context) (metav1.Object, error)) {
		t.Helper()
		apptest.Eventually(t, func(ctx context.Context) string {
			obj, err := get(ctx)
			if err != nil {
				return err.Error()
			}
			if len(obj.GetFinalizers()) != 1 {
				return "nothing holds it"
			}
			return ""
		})
	}
	claim := func(ctx context.Context) (metav1.Object, error) {
		return k.CoreV1().PersistentVolumeClaims("default").Get(ctx, "c", metav1.GetOptions{})
	}
	classOf := func(ctx context.Context) (metav1.Object, error) {
		return k.StorageV1().VolumeAttributesClasses().Get(ctx, class, metav1.GetOptions{})
	}
	held(claim)
	held(classOf)
	must(nil, k.StorageV1().VolumeAttributesClasses().Delete(t.Context(), class, metav1.DeleteOptions{}))
	must(nil, k.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "c", metav1.DeleteOptions{}))
	held(claim)
	held(classOf)
	must(nil, k.CoreV1().Pods("default").Delete(t.Context(), "p", *metav1.NewDeleteOptions(0)))
	for _, get := range []func(context.Context) (metav1.Object, error){claim, classOf} {
		apptest.Eventually(t, func(ctx context.Context) string {
			if _, err := get(ctx); !apierrors.IsNotFound(err) {
				return "what nobody uses is there"
			}
			return ""
		})
	}
}
