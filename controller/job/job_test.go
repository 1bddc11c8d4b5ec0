package job_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
)

func job(completions, parallelism int32) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "pi"},
		Spec: batchv1.JobSpec{
			Completions: &completions, Parallelism: &parallelism,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "pi"}}}},
		},
	}
}

func plane(t *testing.T) kubernetes.Interface {
	t.Helper()
	k, err := kubernetes.NewForConfig(apptest.StartWith(t, "job-controller").Config)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func create(t *testing.T, k kubernetes.Interface, j *batchv1.Job) {
	t.Helper()
	if _, err := k.BatchV1().Jobs("default").Create(t.Context(), j, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// end lets every pod that waits end as phase says.
func end(ctx context.Context, k kubernetes.Interface, phase func(*corev1.Pod) corev1.PodPhase) error {
	pods, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodPending || p.DeletionTimestamp != nil {
			continue
		}
		p.Status.Phase = phase(&p)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, FinishedAt: metav1.NewTime(time.Now().Add(-time.Hour)),
		}}}}
		if _, err := k.CoreV1().Pods("default").UpdateStatus(ctx, &p, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// ended waits for the end of the job, whose pods end as phase says.
func ended(t *testing.T, k kubernetes.Interface, as batchv1.JobConditionType, phase func(*corev1.Pod) corev1.PodPhase) *batchv1.Job {
	t.Helper()
	var j *batchv1.Job
	apptest.Eventually(t, func(ctx context.Context) string {
		if err := end(ctx, k, phase); err != nil {
			return err.Error()
		}
		var err error
		if j, err = k.BatchV1().Jobs("default").Get(ctx, "pi", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		for _, c := range j.Status.Conditions {
			if c.Type == as && c.Status == corev1.ConditionTrue {
				return ""
			}
		}
		return fmt.Sprintf("the status is %+v", j.Status)
	})
	pods, err := k.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if len(p.Finalizers) > 0 {
			t.Errorf("%s keeps %v", p.Name, p.Finalizers)
		}
	}
	return j
}

func succeed(*corev1.Pod) corev1.PodPhase { return corev1.PodSucceeded }

func TestAJobCompletes(t *testing.T) {
	k := plane(t)
	create(t, k, job(7, 3))
	if j := ended(t, k, batchv1.JobComplete, succeed); j.Status.Succeeded != 7 || j.Status.Failed != 0 || j.Status.CompletionTime == nil {
		t.Errorf("the status is %+v", j.Status)
	}
}

func TestAnIndexedJobHasEachIndexOnce(t *testing.T) {
	k := plane(t)
	j := job(6, 4)
	j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
	create(t, k, j)
	if j := ended(t, k, batchv1.JobComplete, succeed); j.Status.CompletedIndexes != "0-5" {
		t.Errorf("the status is %+v", j.Status)
	}
}

func TestAJobFailsAtItsLimit(t *testing.T) {
	k := plane(t)
	j := job(3, 1)
	j.Spec.BackoffLimit = new(int32(2))
	create(t, k, j)
	failed := ended(t, k, batchv1.JobFailed, func(*corev1.Pod) corev1.PodPhase { return corev1.PodFailed })
	if failed.Status.Failed != 3 || failed.Status.Succeeded != 0 {
		t.Errorf("the status is %+v", failed.Status)
	}
}

func TestASuspendedJobHasNoPods(t *testing.T) {
	k := plane(t)
	create(t, k, job(2, 2))
	pods := func(n int) {
		t.Helper()
		apptest.Eventually(t, func(ctx context.Context) string {
			l, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			if err != nil || len(l.Items) != n {
				return fmt.Sprintf("there are %d pods, %v", len(l.Items), err)
			}
			return ""
		})
	}
	suspend := func(to string) {
		t.Helper()
		if _, err := k.BatchV1().Jobs("default").Patch(t.Context(), "pi", types.MergePatchType, []byte(`{"spec":{"suspend":`+to+`}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pods(2)
	suspend("true")
	pods(0)
	suspend("false")
	pods(2)
}

func TestPodsOfAJobThatIsGoneAreLetGo(t *testing.T) {
	k := plane(t)
	create(t, k, job(1, 1))
	apptest.Eventually(t, func(ctx context.Context) string {
		j, err := k.BatchV1().Jobs("default").Get(ctx, "pi", metav1.GetOptions{})
		if err != nil || j.Status.Active != 1 {
			return fmt.Sprintf("the status is %+v, %v", j.Status, err)
		}
		return ""
	})
	background := metav1.DeletePropagationOrphan
	if err := k.BatchV1().Jobs("default").Delete(t.Context(), "pi", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.BatchV1().Jobs("default").Patch(t.Context(), "pi", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		l, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil || len(l.Items) != 1 || len(l.Items[0].Finalizers) > 0 {
			return fmt.Sprintf("pods are %+v, %v", l.Items, err)
		}
		return ""
	})
}
