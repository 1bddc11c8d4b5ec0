package rest_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app/apptest"
)

// What a protobuf client reads is what a JSON client reads.
func TestProtobufIsTheSameAsJSON(t *testing.T) {
	p := apptest.Start(t)
	client := func(media string) *kubernetes.Clientset {
		cfg := rest.CopyConfig(p.Config)
		cfg.ContentType, cfg.AcceptContentTypes = media, media
		c, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	asJSON, asProto := client("application/json"), client("application/vnd.kubernetes.protobuf")
	ctx := t.Context()
	w, err := asProto.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, name := range []string{"a", "b", "c"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox"}}},
		}
		made, err := asProto.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := asJSON.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, made); diff != "" {
			t.Error(diff)
		}
		event := <-w.ResultChan()
		if diff := cmp.Diff(got, event.Object); diff != "" {
			t.Errorf("%s event: %s", event.Type, diff)
		}
	}
	for range 2 { // made, then kept
		want, err := asJSON.CoreV1().Pods("").List(ctx, metav1.ListOptions{Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		got, err := asProto.CoreV1().Pods("").List(ctx, metav1.ListOptions{Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		one, err := asProto.CoreV1().Pods("default").Get(ctx, "b", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&want.Items[1], one); diff != "" {
			t.Error(diff)
		}
	}
}
