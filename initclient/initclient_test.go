package initclient_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/initclient"
)

func waiting(names ...string) *unstructured.Unstructured {
	var pending []any
	for _, name := range names {
		pending = append(pending, map[string]any{"name": name})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "x", "initializers": map[string]any{"pending": pending}},
	}}
}

func TestNamesGoOneByOneAndTheFieldWithTheLast(t *testing.T) {
	obj := waiting("a.example.org", "b.example.org")
	if diff := cmp.Diff([]string{"a.example.org", "b.example.org"}, initclient.Pending(obj)); diff != "" {
		t.Error(diff)
	}
	if initclient.Done(obj, "c.example.org") {
		t.Error("a name went that was not there")
	}
	if !initclient.Done(obj, "a.example.org") {
		t.Error("the first did not go")
	}
	if diff := cmp.Diff([]string{"b.example.org"}, initclient.Pending(obj)); diff != "" {
		t.Error(diff)
	}
	if !initclient.Done(obj, "b.example.org") {
		t.Error("the last did not go")
	}
	if diff := cmp.Diff(map[string]any{"metadata": map[string]any{"name": "x"}}, obj.Object); diff != "" {
		t.Error(diff)
	}
	if initclient.Done(obj, "b.example.org") || initclient.Pending(obj) != nil {
		t.Error("an object that waits for nothing waits")
	}
}

func TestAFailureStaysWithTheList(t *testing.T) {
	obj := waiting("a.example.org")
	if initclient.Failed(obj) {
		t.Error("failed before it was")
	}
	if err := initclient.Fail(obj, 422, "Invalid", "no"); err != nil {
		t.Fatal(err)
	}
	if !initclient.Failed(obj) || !initclient.Done(obj, "a.example.org") || !initclient.Failed(obj) {
		t.Errorf("not failed: %v", obj.Object)
	}
}

func TestReadsAskForWhatWaitsAndWritesDoNot(t *testing.T) {
	asked := map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked[r.Method+" "+r.URL.Path] = r.URL.RawQuery
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"PodList","apiVersion":"v1"}`))
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(initclient.IncludeUninitialized(&rest.Config{Host: server.URL}))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := client.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{LabelSelector: "a=b"}); err != nil {
		t.Fatal(err)
	}
	_, _ = client.CoreV1().Pods("ns").Create(ctx, &corev1.Pod{}, metav1.CreateOptions{}) // the answer is no pod
	want := map[string]string{
		"GET /api/v1/namespaces/ns/pods":  "includeUninitialized=true&labelSelector=a%3Db",
		"POST /api/v1/namespaces/ns/pods": "",
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error(diff)
	}
}
