package app_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/admission"
	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// With its controllers a control plane gives every pod a service account and a
// token; without them it refuses pods, as a kube-apiserver alone does. Who turns the
// plugin off has pods as they are, with controllers and without.
func TestPodsRunAsServiceAccounts(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	for name, c := range map[string]struct {
		config  app.Config
		refused string
		bare    bool
	}{
		"with controllers":    {config: app.Config{Controllers: []string{"*"}}},
		"turned off":          {config: app.Config{Controllers: []string{"*"}, Admission: admission.Options{Disable: []string{"ServiceAccount"}}}, bare: true},
		"without controllers": {config: app.Config{Admission: admission.Options{Enable: []string{"ServiceAccount"}}}, refused: `serviceaccount "default" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Data = app.Memory
			client, err := kubernetes.NewForConfig(apptest.StartOn(t, c.config).Config)
			if err != nil {
				t.Fatal(err)
			}
			made, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("error %v, want one that says %s", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.bare {
				if made.Spec.ServiceAccountName != "" || len(made.Spec.Volumes) > 0 {
					t.Errorf("made %+v", made.Spec)
				}
				return
			}
			if made.Spec.ServiceAccountName != "default" || len(made.Spec.Volumes) != 1 || made.Spec.Volumes[0].Projected == nil || len(made.Spec.Containers[0].VolumeMounts) != 1 {
				t.Errorf("made %+v", made.Spec)
			}
		})
	}
}
