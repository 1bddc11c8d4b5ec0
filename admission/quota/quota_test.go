package quota_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
)

const counted = corev1.ResourceName("count/secrets")

// limited starts a control plane whose namespace default has a quota of secrets.
func limited(t *testing.T, hard string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(apptest.Start(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	quotas := client.CoreV1().ResourceQuotas("default")
	limits := corev1.ResourceList{counted: resource.MustParse(hard)}
	q, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: limits}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	q.Status = corev1.ResourceQuotaStatus{Hard: limits, Used: corev1.ResourceList{counted: resource.MustParse("0")}}
	if _, err := quotas.UpdateStatus(t.Context(), q, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return client
}

// used is what the quota says.
func used(t *testing.T, client kubernetes.Interface) int64 {
	t.Helper()
	q, err := client.CoreV1().ResourceQuotas("default").Get(t.Context(), "q", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := q.Status.Used[counted]
	return n.Value()
}

func TestManyAtOnceGetNoMoreThanThereIs(t *testing.T) {
	client := limited(t, "10")
	var made, refused atomic.Int64
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			_, err := client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i)}}, metav1.CreateOptions{})
			switch {
			case err == nil:
				made.Add(1)
			case apierrors.IsForbidden(err):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 10 || refused.Load() != 90 {
		t.Errorf("%d were made and %d refused, want 10 and 90", made.Load(), refused.Load())
	}
	if n := used(t, client); n != 10 {
		t.Errorf("the quota says %d, want 10", n)
	}
}

func TestWhatIsNotStoredIsNotCharged(t *testing.T) {
	client := limited(t, "10")
	secrets := client.CoreV1().Secrets("default")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	dry := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "two"}}
	if _, err := secrets.Create(t.Context(), dry, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if n := used(t, client); n != 1 {
		t.Errorf("the quota says %d, want 1", n)
	}
}
