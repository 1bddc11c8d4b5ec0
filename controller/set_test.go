package controller_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/controller"
)

// manager is a set of controllers of one of several servers that share a store.
type manager struct {
	set   *controller.Set
	wrote atomic.Int64 // service accounts
	stop  func()
}

func manage(t *testing.T, b *apptest.Bubble) *manager {
	t.Helper()
	m := &manager{}
	set, err := controller.New(controller.Config{
		Controllers: []string{"serviceaccount-controller"}, Shared: true, Logger: slog.New(slog.DiscardHandler),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/serviceaccounts") {
				m.wrote.Add(1)
			}
			b.Handler.ServeHTTP(w, r)
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- set.Run(ctx) }()
	m.set = set
	m.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return m
}

// Of two managers on one store one acts; when it is cut off, or ends, the other
// does.
func TestOneOfSeveralLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, stop := apptest.InBubble(t, app.Config{})
		defer stop()
		first := manage(t, b)
		b.Turn(10 * time.Second)
		second := manage(t, b)
		b.Turn(10 * time.Second)
		n := 0
		// acts makes a namespace and says who gave it its account.
		acts := func() string {
			t.Helper()
			one, two := first.wrote.Load(), second.wrote.Load()
			n++
			if _, err := b.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", n)}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			b.Turn(time.Second)
			return fmt.Sprint(first.wrote.Load()-one, " ", second.wrote.Load()-two)
		}
		if who := acts(); who != "1 0" {
			t.Errorf("at first they wrote %s", who)
		}
		first.set.API().Cut()
		b.Turn(30 * time.Second)
		if who := acts(); who != "0 1" {
			t.Errorf("after the first was cut off they wrote %s", who)
		}
		first.set.API().Heal()
		b.Turn(2 * time.Minute)
		if who := acts(); who != "0 1" {
			t.Errorf("after the first was healed they wrote %s", who)
		}
		second.stop()
		b.Turn(10 * time.Second)
		if who := acts(); who != "1 0" {
			t.Errorf("after the second ended they wrote %s", who)
		}
		lease, err := b.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), "kube-controller-manager", metav1.GetOptions{})
		if err != nil || lease.Spec.LeaseTransitions == nil || *lease.Spec.LeaseTransitions < 2 {
			t.Errorf("the lease is %+v, %v", lease, err)
		}
		first.stop()
	})
}

// story is a day of a control plane: what is written, and when all is done.
func story(t *testing.T) (told string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, stop := apptest.InBubble(t, app.Config{Controllers: []string{"*", "-cronjob"}})
		defer stop()
		labels := map[string]string{"app": "web"}
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		b.Settle(t)
		if _, err := b.Client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec:       appsv1.DeploymentSpec{Replicas: new(int32(5)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template, ProgressDeadlineSeconds: new(int32(600))},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		b.Settle(t)
		b.Turn(11 * time.Minute) // nobody runs the pods: the deadline is over
		b.Settle(t)
		d, err := b.Client.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pods, err := b.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range d.Status.Conditions {
			told += fmt.Sprintf("%s %s %s at %v\n", c.Type, c.Status, c.Reason, c.LastUpdateTime.UTC().Format(time.TimeOnly))
		}
		told += fmt.Sprintf("%d pods, made %v\n", len(pods.Items), slices.MinFunc(pods.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) }).CreationTimestamp.UTC().Format(time.TimeOnly))
	})
	return told
}

// All controllers run in a bubble, whose clock the test turns until nothing
// changes; what follows is the same each time.
func TestAStoryIsTheSameEachTime(t *testing.T) {
	first := story(t)
	if !strings.Contains(first, "Progressing False ProgressDeadlineExceeded") || !strings.Contains(first, "5 pods") {
		t.Errorf("it went like this:\n%s", first)
	}
	if second := story(t); second != first {
		t.Errorf("the second time it went otherwise:\n%s\nnot:\n%s", second, first)
	}
}

// An hour of a job that runs every minute is over at once, and has no more and no
// fewer than sixty.
func TestAnHourOfMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, stop := apptest.InBubble(t, app.Config{Controllers: []string{"cronjob", "garbagecollector"}})
		defer stop()
		if _, err := b.Client.BatchV1().CronJobs("default").Create(t.Context(), &batchv1.CronJob{
			ObjectMeta: metav1.ObjectMeta{Name: "tick"},
			Spec: batchv1.CronJobSpec{Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		b.Turn(time.Hour + time.Second)
		jobs, err := b.Client.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(jobs.Items) != 60 {
			t.Errorf("%d jobs, %v", len(jobs.Items), err)
		}
	})
}

// Compat: queues are counted under upstream's names.
func TestQueuesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, stop := apptest.InBubble(t, app.Config{Controllers: []string{"*"}})
		defer stop()
		b.Settle(t)
		text, err := b.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, metric := range []string{
			"workqueue_depth", "workqueue_adds_total", "workqueue_queue_duration_seconds_count", "workqueue_work_duration_seconds_count",
			"workqueue_retries_total", "workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds",
		} {
			for _, queue := range []string{"deployment", "replicaset", "serviceaccount", "namespace", "job", "certificate", "noexec_taint_pod", "pvcprotection"} {
				if line := fmt.Sprintf("%s{name=%q}", metric, queue); !strings.Contains(string(text), line) {
					t.Errorf("there is no %s", line)
				}
			}
		}
	})
}
