package deployment_test

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/controller/template"
)

var web = map[string]string{"app": "web"}

func deployment(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: web},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: web}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}}},
		},
	}
}

// plane is a control plane whose pods run at once.
func plane(t *testing.T) kubernetes.Interface {
	t.Helper()
	p := apptest.StartWith(t, "deployment-controller", "replicaset-controller")
	p.MakeReady(t, nil)
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func create(t *testing.T, k kubernetes.Interface, d *appsv1.Deployment) {
	t.Helper()
	if _, err := k.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func patch(t *testing.T, k kubernetes.Interface, body string) {
	t.Helper()
	if _, err := k.AppsV1().Deployments("default").Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func image(to string) string {
	return fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":%q}]}}}}`, to)
}

// begun waits for the beginning of a rollout.
func begun(t *testing.T, k kubernetes.Interface, revision string) {
	t.Helper()
	apptest.Eventually(t, func(ctx context.Context) string {
		d, err := k.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if at := d.Annotations["deployment.kubernetes.io/revision"]; at != revision {
			return "revision is " + at
		}
		return ""
	})
}

// rolledOut waits for the end of a rollout and returns the deployment.
func rolledOut(t *testing.T, k kubernetes.Interface, revision string) *appsv1.Deployment {
	t.Helper()
	var d *appsv1.Deployment
	apptest.Eventually(t, func(ctx context.Context) string {
		var err error
		if d, err = k.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		n := *d.Spec.Replicas
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentProgressing && c.Reason == "NewReplicaSetAvailable" && d.Status.ObservedGeneration == d.Generation &&
				d.Status.UpdatedReplicas == n && d.Status.Replicas == n && d.Status.AvailableReplicas == n && d.Annotations["deployment.kubernetes.io/revision"] == revision {
				return ""
			}
		}
		return fmt.Sprintf("revision %s, %+v", d.Annotations["deployment.kubernetes.io/revision"], d.Status)
	})
	return d
}

func TestARolloutKeepsItsFence(t *testing.T) {
	k := plane(t)
	create(t, k, deployment(20))
	rolledOut(t, k, "1")
	guard := follow(t, k, 25, 15)
	patch(t, k, image("v2"))
	rolledOut(t, k, "2")
	patch(t, k, image("v3"))
	begun(t, k, "3")
	patch(t, k, image("v1")) // in the middle of it, back to the first
	d := rolledOut(t, k, "4")
	guard()
	sets, err := k.AppsV1().ReplicaSets("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range sets.Items {
		current := set.Spec.Template.Spec.Containers[0].Image == d.Spec.Template.Spec.Containers[0].Image
		if current != (*set.Spec.Replicas == 20) || !current && *set.Spec.Replicas != 0 {
			t.Errorf("%s of %s has %d replicas", set.Name, set.Spec.Template.Spec.Containers[0].Image, *set.Spec.Replicas)
		}
		if current && set.Annotations["deployment.kubernetes.io/revision-history"] == "" {
			t.Errorf("%s has forgotten that it was here before: %v", set.Name, set.Annotations)
		}
	}
}

// follow watches pods, and says when it is called whether there were ever more
// than most or fewer ready ones than least.
func follow(t *testing.T, k kubernetes.Interface, most, least int) func() {
	t.Helper()
	pods := map[types.UID]bool{} // whether they are ready
	l, err := k.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Items {
		pods[p.UID] = isReady(&p)
	}
	w, err := k.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: l.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			if e.Type == watch.Deleted {
				delete(pods, p.UID)
			} else {
				pods[p.UID] = isReady(p)
			}
			n := 0
			for _, ready := range pods {
				if ready {
					n++
				}
			}
			if len(pods) > most || n < least {
				t.Errorf("there are %d pods, of which %d are ready", len(pods), n)
			}
		}
	}()
	return func() {
		w.Stop()
		<-ended
	}
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func TestRollBackByAnnotation(t *testing.T) {
	k := plane(t)
	create(t, k, deployment(2))
	rolledOut(t, k, "1")
	patch(t, k, image("v2"))
	rolledOut(t, k, "2")
	patch(t, k, `{"metadata":{"annotations":{"deprecated.deployment.rollback.to":"1"}}}`)
	if d := rolledOut(t, k, "3"); d.Spec.Template.Spec.Containers[0].Image != "v1" {
		t.Errorf("the image is %s", d.Spec.Template.Spec.Containers[0].Image)
	}
}

func TestRecreateHasPodsOfOneTemplate(t *testing.T) {
	k := plane(t)
	d := deployment(5)
	d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	create(t, k, d)
	rolledOut(t, k, "1")
	patch(t, k, image("v2"))
	rolledOut(t, k, "2")
	pods, err := k.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Spec.Containers[0].Image != "v2" {
			t.Errorf("%s is of %s", p.Name, p.Spec.Containers[0].Image)
		}
	}
}

func TestATakenNameLeadsToAnother(t *testing.T) {
	k := plane(t)
	d := deployment(1)
	d.Spec.Paused = true
	create(t, k, d)
	made, err := k.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Somebody else has a set of the name that this template leads to.
	other := made.DeepCopy()
	other.Spec.Template.Labels = map[string]string{"app": "other"}
	taken := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web-" + template.Hash(&made.Spec.Template, nil)}, Spec: appsv1.ReplicaSetSpec{
		Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: other.Spec.Template.Labels}, Template: other.Spec.Template,
	}}
	if _, err := k.AppsV1().ReplicaSets("default").Create(t.Context(), taken, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch(t, k, `{"spec":{"paused":false}}`)
	if d := rolledOut(t, k, "1"); d.Status.CollisionCount == nil || *d.Status.CollisionCount != 1 {
		t.Errorf("the status is %+v", d.Status)
	}
}
