package namespace_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
)

func eventually(t *testing.T, what func(ctx context.Context) string, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for got := what(ctx); got != want; got = what(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("in the end there is %q, not %q", got, want)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestANamespaceIsMadeAndEmptied runs the controllers that every namespace meets.
func TestANamespaceIsMadeAndEmptied(t *testing.T) {
	p := apptest.StartWith(t, "namespace-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller")
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made := func(ctx context.Context) string {
		sa, err := k.CoreV1().ServiceAccounts("n").Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		cm, err := k.CoreV1().ConfigMaps("n").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(sa.Name, " ", strings.HasPrefix(cm.Data["ca.crt"], "-----BEGIN CERTIFICATE"))
	}
	eventually(t, made, "default true")
	if err := k.CoreV1().ServiceAccounts("n").Delete(ctx, "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := k.CoreV1().ConfigMaps("n").Delete(ctx, "kube-root-ca.crt", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, made, "default true")

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Finalizers: []string{"example.org/hold"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}}},
	}
	if _, err = k.CoreV1().Pods("n").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Finalizers: []string{"example.org/hold"}}}
	if _, err = k.CoreV1().Secrets("n").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := k.CoreV1().Namespaces().Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) string {
		got, err := k.CoreV1().Pods("n").Get(ctx, "p", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(got.DeletionTimestamp != nil)
	}, "true")
	if got, err := k.CoreV1().Secrets("n").Get(ctx, "s", metav1.GetOptions{}); err != nil || got.DeletionTimestamp != nil {
		t.Errorf("the secret did not wait for the pod: %v, %v", got.DeletionTimestamp, err)
	}
	if pod, err = k.CoreV1().Pods("n").Get(ctx, "p", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	pod.Finalizers = nil
	if _, err := k.CoreV1().Pods("n").Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) string {
		ns, err := k.CoreV1().Namespaces().Get(ctx, "n", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		text := string(ns.Status.Phase)
		for _, c := range ns.Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				text += "\n" + c.Message
			}
		}
		return text
	}, "Terminating\nSome resources are remaining: secrets. has 1 resource instances\nSome content in the namespace has finalizers remaining: example.org/hold in 1 resource instances")
	if secret, err = k.CoreV1().Secrets("n").Get(ctx, "s", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	secret.Finalizers = nil
	if _, err := k.CoreV1().Secrets("n").Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) string {
		_, err := k.CoreV1().Namespaces().Get(ctx, "n", metav1.GetOptions{})
		return fmt.Sprint(apierrors.IsNotFound(err))
	}, "true")
}
