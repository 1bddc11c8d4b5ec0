// Package node_test runs pods as `setpoint up` does: a whole control plane with a
// node of its own, on containerd and on the runtime that is built in.
package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/node/nodetest"
	"setpoint.dev/setpoint/node/process"
)

func TestMain(m *testing.M) {
	process.Main() // containers' supervisors are this binary
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func TestUp(t *testing.T) {
	for name, runtime := range map[string]func(t *testing.T) app.Node{
		"containerd": func(t *testing.T) app.Node { return app.Node{Runtime: "unix://" + nodetest.Containerd(t).Socket} },
		"process":    func(*testing.T) app.Node { return app.Node{Runtime: app.Process, HostImages: true} },
	} {
		t.Run(name, func(t *testing.T) {
			n := runtime(t)
			dir, err := os.MkdirTemp("", "setpoint-node-") //nolint:usetesting // sockets have short names
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			n.On, n.Name, n.IP, n.Dir, n.StaticPods = true, "here", netip.MustParseAddr("127.0.0.1"), dir, t.TempDir()
			logger := slog.New(slog.NewTextHandler(lines{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
			plane := apptest.StartOn(t, app.Config{Data: app.Memory, Controllers: []string{"*"}, Scheduler: app.Scheduler{On: true}, Node: n, Logger: logger})
			k, err := kubernetes.NewForConfig(plane.Config)
			if err != nil {
				t.Fatal(err)
			}
			story(t, k)
			ownPods(t, k, n)
		})
	}
}

// ownPods has a pod of the node's own files run, shown and ended.
func ownPods(t *testing.T, k kubernetes.Interface, n app.Node) {
	t.Helper()
	file := filepath.Join(n.StaticPods, "own.yaml")
	manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: own, namespace: default}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers: [{name: c, image: 'busybox:1.36', command: [sleep, '1000']}]\n"
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	pods := k.CoreV1().Pods("default")
	apptest.Eventually(t, func(ctx context.Context) string {
		now, err := pods.Get(ctx, "own-here", metav1.GetOptions{})
		if err != nil || now.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("it does not run: %v %+v", err, now.Status)
		}
		return ""
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		if now, err := pods.Get(ctx, "own-here", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("it is still there: %v %+v", err, now.Status)
		}
		if left, err := os.ReadDir(filepath.Join(n.Dir, "pods")); err != nil || len(left) > 0 { // its containers end after its mirror
			return fmt.Sprintf("the node has %v, %v", left, err)
		}
		return ""
	})
}

// story has a pod scheduled, reads its log, and deletes it.
func story(t *testing.T, k kubernetes.Interface) {
	t.Helper()
	ctx, grace := t.Context(), int64(1)
	pods := k.CoreV1().Pods("default")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{
			Name: "web", Image: "busybox:1.36", Command: []string{"sh", "-c", "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; echo hello from $NAME; sleep 1000"},
			Env:            []corev1.EnvVar{{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}, PeriodSeconds: 1},
		}},
	}}
	begun := time.Now()
	apptest.Eventually(t, func(ctx context.Context) string { // the default service account comes first
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err.Error()
		}
		return ""
	})
	apptest.Eventually(t, func(ctx context.Context) string {
		now, err := pods.Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range now.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return ""
			}
		}
		return fmt.Sprintf("it is not ready: %+v", now.Status)
	})
	t.Logf("ready after %v", time.Since(begun).Round(time.Millisecond))
	apptest.Eventually(t, func(ctx context.Context) string {
		text, err := pods.GetLogs("web", &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil || string(text) != "default\nhello from web\n" {
			return fmt.Sprintf("the log is %q, %v", text, err)
		}
		return ""
	})
	if err := pods.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		if now, err := pods.Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("it is still there: %v %+v", err, now.Status)
		}
		return ""
	})
}
