package app_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// nodeStats says what is used on the site's node: by the pod web, by one of which
// little is known yet, and by one that is in no list.
func (s *site) nodeStats(w http.ResponseWriter, _ *http.Request) {
	s.counted.Add(1)
	n := func(v uint64) *uint64 { return &v }
	at := metav1.NewTime(time.Unix(1700000000, 0))
	container := func(name string, milli, mib uint64) statsapi.ContainerStats {
		return statsapi.ContainerStats{
			Name: name, CPU: &statsapi.CPUStats{Time: at, UsageNanoCores: n(milli * 1e6)}, Memory: &statsapi.MemoryStats{Time: at, WorkingSetBytes: n(mib << 20)},
		}
	}
	unknown := container("a", 0, 1)
	unknown.CPU.UsageNanoCores = nil
	all := container("", 1500, 2048)
	_ = json.NewEncoder(w).Encode(statsapi.Summary{
		Node: statsapi.NodeStats{NodeName: "n1", CPU: all.CPU, Memory: all.Memory},
		Pods: []statsapi.PodStats{
			{PodRef: statsapi.PodReference{Namespace: "default", Name: "web"}, Containers: []statsapi.ContainerStats{container("a", 250, 64), container("b", 1, 3)}},
			{PodRef: statsapi.PodReference{Namespace: "default", Name: "single"}, Containers: []statsapi.ContainerStats{unknown}},
			{PodRef: statsapi.PodReference{Namespace: "default", Name: "gone"}, Containers: []statsapi.ContainerStats{container("a", 1, 1)}},
		},
	})
}

// TestUsage asks as `kubectl top` and autoscalers do.
func TestUsage(t *testing.T) {
	s := startSite(t)
	label := []byte(`{"metadata": {"labels": {"app": "web"}}}`)
	if _, err := s.client.CoreV1().Pods("default").Patch(t.Context(), "web", types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := metricsclient.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	api := client.MetricsV1beta1()
	nodes, err := api.NodeMetricses().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Usage.Cpu().String() != "1500m" || nodes.Items[0].Usage.Memory().String() != "2Gi" {
		t.Errorf("nodes: %+v, %v", nodes, err)
	}
	if _, err := api.NodeMetricses().Get(t.Context(), "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a node that is not there: %v", err)
	}
	for _, c := range []struct {
		name, namespace, selector string
		want                      []string
	}{
		{"a namespace", "default", "", []string{"default/web a=250m,64Mi b=1m,3Mi"}},
		{"all", "", "", []string{"default/web a=250m,64Mi b=1m,3Mi"}},
		{"by labels", "default", "app=web", []string{"default/web a=250m,64Mi b=1m,3Mi"}},
		{"by other labels", "default", "app=x", nil},
		{"elsewhere", "kube-system", "", nil},
	} {
		pods, err := api.PodMetricses(c.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: c.selector})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range pods.Items {
			line := p.Namespace + "/" + p.Name
			for _, used := range p.Containers {
				line += " " + used.Name + "=" + used.Usage.Cpu().String() + "," + used.Usage.Memory().String()
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
	}
	one, err := api.PodMetricses("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || one.Window.Duration != 10*time.Second || one.Timestamp.Unix() != 1700000000 {
		t.Errorf("one pod: %+v, %v", one, err)
	}
	if _, err := api.PodMetricses("default").Get(t.Context(), "single", metav1.GetOptions{}); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `podmetrics.metrics.k8s.io "default/single" not found`) {
		t.Errorf("a pod of which nothing is known: %v", err)
	}
	if asked := s.counted.Load(); asked > 2 {
		t.Errorf("the node was asked %d times", asked)
	}
}

// TestWhoSeesUsage has a user who may view, after the controller has put that role
// together, and after a restart.
func TestWhoSeesUsage(t *testing.T) {
	cfg := app.Config{Data: t.TempDir(), MetricsAPI: true, Controllers: []string{"clusterrole-aggregation-controller"}}
	for range 2 {
		p := apptest.StartOn(t, cfg)
		admin := clients(t, p.Config)
		viewer := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "viewers"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}},
		}
		if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), viewer, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		jane := rest.CopyConfig(p.Config)
		jane.Impersonate.UserName = "jane"
		apptest.Eventually(t, func(context.Context) string {
			if code, body := ask(t, jane, http.MethodGet, "/apis/metrics.k8s.io/v1beta1/pods"); code != 200 {
				return body
			}
			return ""
		})
		p.Stop()
	}
}

// TestUsageIsDescribed looks at what clients learn of the group.
func TestUsageIsDescribed(t *testing.T) {
	s := startSite(t)
	for path, want := range map[string]string{
		"/apis/metrics.k8s.io/v1beta1":                                       `"name":"pods","singularName":"podmetrics","namespaced":true,"kind":"PodMetrics","verbs":["get","list"]`,
		"/openapi/v3/apis/metrics.k8s.io/v1beta1":                            "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/{name}",
		"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io": `"type":"Available"`,
	} {
		if code, body := ask(t, s.Config, http.MethodGet, path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.1000s", path, code, body)
		}
	}
	forkOf(t, s.Plane, "a", "")
	if code, body := ask(t, s.Config, http.MethodGet, "/planes/a/apis/metrics.k8s.io/v1beta1/pods"); code != 503 || !strings.Contains(body, "nothing runs in plane a") {
		t.Errorf("a fork: %d %s", code, body)
	}
}
