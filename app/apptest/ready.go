package apptest

import (
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// actors is how many pods are made ready at once.
const actors = 8

// MakeReady plays the nodes: every pod that waits becomes running and ready, if
// ready says so, until the test ends. Nil means all.
func (p *Plane) MakeReady(t testing.TB, ready func(*corev1.Pod) bool) {
	t.Helper()
	client, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	waiting := make(chan *corev1.Pod, 10000)
	stop := make(chan struct{})
	see := func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil || ready != nil && !ready(pod) {
			return
		}
		select {
		case waiting <- pod:
		case <-stop:
		}
	}
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
	}); err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	for range actors {
		g.Go(func() {
			for {
				select {
				case pod := <-waiting:
					if err := run(t, client, pod); err != nil {
						t.Errorf("make %s ready: %v", pod.Name, err)
					}
				case <-stop:
					return
				}
			}
		})
	}
	factory.Start(stop)
	t.Cleanup(func() {
		close(stop)
		factory.Shutdown()
		g.Wait()
	})
}

// run says of a pod that it runs.
func run(t testing.TB, client kubernetes.Interface, pod *corev1.Pod) error {
	pod = pod.DeepCopy()
	now := metav1.Now()
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now})
	_, err := client.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || t.Context().Err() != nil {
		return nil //nolint:nilerr // it has changed, which is seen, or is gone
	}
	return err
}
