package autoscaler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"setpoint.dev/setpoint/app/apptest"
)

// serveMetrics puts a server of resource metrics behind a control plane. It says
// of every pod that it uses so many thousandths of a processor.
func serveMetrics(t *testing.T, p *apptest.Plane, k kubernetes.Interface, uses *atomic.Int64) {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "metrics.k8s.io/v1beta1",
			APIResources: []metav1.APIResource{{Name: "pods", Namespaced: true, Kind: "PodMetrics", Verbs: metav1.Verbs{"get", "list"}}},
		}
		if strings.HasSuffix(r.URL.Path, "/namespaces/default/pods") {
			pods, err := k.CoreV1().Pods("default").List(r.Context(), metav1.ListOptions{LabelSelector: r.URL.Query().Get("labelSelector")})
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			list := metricsv1beta1.PodMetricsList{TypeMeta: metav1.TypeMeta{Kind: "PodMetricsList", APIVersion: "metrics.k8s.io/v1beta1"}}
			for _, pod := range pods.Items {
				list.Items = append(list.Items, metricsv1beta1.PodMetrics{
					ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, Timestamp: metav1.Now(), Window: metav1.Duration{Duration: time.Nanosecond},
					Containers: []metricsv1beta1.ContainerMetrics{{Name: "c", Usage: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(uses.Load(), resource.DecimalSI)}}},
				})
			}
			answer = list
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(s.Close)
	at, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(at.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "metrics"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: int32(port)}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := registration.NewForConfigOrDie(p.Config).ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1beta1.metrics.k8s.io"}, Spec: apiregistrationv1.APIServiceSpec{
		Group: "metrics.k8s.io", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
		Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "metrics", Port: new(int32(port))},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		_, err := k.Discovery().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods").DoRaw(ctx)
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

func TestATargetFollowsItsMetrics(t *testing.T) {
	p := apptest.StartWith(t, "horizontal-pod-autoscaler-controller", "deployment-controller", "replicaset-controller")
	p.MakeReady(t, func(pod *corev1.Pod) bool { return pod.Labels["app"] == "web" })
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	var uses atomic.Int64
	uses.Store(900)
	web := map[string]string{"app": "web"}
	if _, err := k.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: web},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: web}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "v1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		d, err := k.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil || d.Status.ReadyReplicas != 2 {
			return fmt.Sprint(d.Status, err)
		}
		return ""
	})
	half := autoscalingv2.HorizontalPodAutoscalerSpec{
		MinReplicas: new(int32(1)), MaxReplicas: 4, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(50))},
		}}},
	}
	scaler := func(name, target string) {
		spec := half.DeepCopy()
		spec.ScaleTargetRef.Name = target
		if _, err := k.AutoscalingV2().HorizontalPodAutoscalers("default").Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	says := func(name, reason, message string) {
		t.Helper()
		apptest.Eventually(t, func(ctx context.Context) string {
			h, err := k.AutoscalingV2().HorizontalPodAutoscalers("default").Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			for _, c := range h.Status.Conditions {
				if c.Reason == reason && strings.Contains(c.Message, message) {
					return ""
				}
			}
			return fmt.Sprintf("the status is %+v", h.Status)
		})
	}
	scaler("early", "web")
	says("early", "FailedGetResourceMetric", "unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)")
	scaler("lost", "nowhere")
	says("lost", "FailedGetScale", `deployments.apps "nowhere" not found`)
	if err := k.AutoscalingV2().HorizontalPodAutoscalers("default").Delete(t.Context(), "early", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	serveMetrics(t, p, k, &uses)
	scaler("web", "web")
	says("web", "SucceededRescale", "the HPA controller was able to update the target scale to 4")
	apptest.Eventually(t, func(ctx context.Context) string {
		d, err := k.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil || *d.Spec.Replicas != 4 {
			return fmt.Sprint(d.Spec.Replicas, err)
		}
		return ""
	})
}
