package disruption_test

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
)

// allowed waits until a budget's status is that.
func allowed(t *testing.T, k kubernetes.Interface, healthy, expected, allows int32) {
	t.Helper()
	apptest.Eventually(t, func(ctx context.Context) string {
		b, err := k.PolicyV1().PodDisruptionBudgets("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if s := b.Status; s.CurrentHealthy != healthy || s.ExpectedPods != expected || s.DisruptionsAllowed != allows || s.ObservedGeneration != b.Generation {
			return fmt.Sprintf("the status is %+v", s)
		}
		return ""
	})
}

func TestEvictionsGoByTheBudget(t *testing.T) {
	p := apptest.StartWith(t, "disruption-controller", "replicaset-controller", "deployment-controller")
	p.MakeReady(t, func(pod *corev1.Pod) bool { return pod.Labels["app"] == "web" })
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	web := map[string]string{"app": "web"}
	if _, err := k.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(4)), Selector: &metav1.LabelSelector{MatchLabels: web},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: web}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	quarter := intstr.FromString("25%")
	b, err := k.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: &quarter, Selector: &metav1.LabelSelector{MatchLabels: web},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	allowed(t, k, 4, 4, 1)
	pods, err := k.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	evict := func(i int) error {
		return k.CoreV1().Pods("default").EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods.Items[i].Name, Namespace: "default"}})
	}
	if err := evict(0); err != nil {
		t.Fatal(err)
	}
	allowed(t, k, 4, 4, 1) // there is another in its place
	none := intstr.FromInt32(0)
	b, err = k.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), b.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.Spec.MaxUnavailable = &none
	if _, err := k.PolicyV1().PodDisruptionBudgets("default").Update(t.Context(), b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	allowed(t, k, 4, 4, 0)
	if err := evict(1); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the eviction ended with %v", err)
	}
}

func TestAKindWithoutAScaleIsToldOf(t *testing.T) {
	p := apptest.StartWith(t, "disruption-controller")
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	owned := func(name, version, kind string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}, OwnerReferences: []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "x", UID: "x", Controller: new(true)}}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}},
		}
	}
	one := intstr.FromInt32(1)
	for _, c := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{owned("job", "batch/v1", "Job"), "jobs.batch does not implement the scale subresource"},
		{owned("unknown", "example.org/v1", "Thing"), `no matches for kind "Thing" in version "example.org/v1"`},
		{owned("gone", "apps/v1", "ReplicaSet"), `found no controllers for pod "gone"`},
	} {
		t.Run(c.pod.Name, func(t *testing.T) {
			if _, err := k.CoreV1().Pods("default").Create(t.Context(), c.pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := k.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: c.pod.Name}, Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: c.pod.Labels},
			}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			apptest.Eventually(t, func(ctx context.Context) string {
				b, err := k.PolicyV1().PodDisruptionBudgets("default").Get(ctx, c.pod.Name, metav1.GetOptions{})
				if err != nil {
					return err.Error()
				}
				for _, have := range b.Status.Conditions {
					if have.Reason == policyv1.SyncFailedReason && have.Message == c.want {
						return ""
					}
				}
				return fmt.Sprintf("the status is %+v", b.Status)
			})
		})
	}
}
