package admission_test

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/admission/webhook/webhooktest"
	"setpoint.dev/setpoint/app/apptest"
)

// Steps, plugins and webhooks are counted under the names of upstream's metrics.
func TestAdmissionIsCounted(t *testing.T) {
	client, err := kubernetes.NewForConfig(apptest.Start(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	hooks := webhooktest.Start(t)
	none := admissionregistrationv1.SideEffectClassNone
	webhook := func(name, path string) admissionregistrationv1.ValidatingWebhook {
		address := hooks.URL + path
		return admissionregistrationv1.ValidatingWebhook{
			Name: name, AdmissionReviewVersions: []string{"v1"}, SideEffects: &none,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &address, CABundle: hooks.CABundle},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}},
			}},
		}
	}
	open := webhook("open.example.org", "/close")
	ignore := admissionregistrationv1.Ignore
	open.FailurePolicy = &ignore
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "counted"},
		Webhooks:   []admissionregistrationv1.ValidatingWebhook{webhook("counted.example.org", "/deny/message=no&code=403"), open},
	}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); err == nil {
		t.Fatal("the webhook was not asked")
	}
	pods := client.CoreV1().Pods("default")
	for class, refused := range map[string]bool{"": false, "unknown": true} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}, Spec: corev1.PodSpec{PriorityClassName: class, Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); (err != nil) != refused {
			t.Fatal(err)
		}
	}
	raw, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`apiserver_admission_step_admission_duration_seconds_count{operation="CREATE",rejected="false",type="admit"}`,
		`apiserver_admission_step_admission_duration_seconds_count{operation="CREATE",rejected="true",type="admit"}`,
		`apiserver_admission_step_admission_duration_seconds_count{operation="CREATE",rejected="true",type="validate"}`,
		`apiserver_admission_controller_admission_duration_seconds_count{name="Priority",operation="CREATE",rejected="false",type="admit"}`,
		`apiserver_admission_controller_admission_duration_seconds_count{name="Priority",operation="CREATE",rejected="true",type="admit"}`,
		`apiserver_admission_controller_admission_duration_seconds_count{name="ResourceQuota",operation="CREATE",rejected="false",type="validate"}`,
		`apiserver_admission_controller_admission_duration_seconds_count{name="ValidatingAdmissionWebhook",operation="CREATE",rejected="true",type="validate"}`,
		`apiserver_admission_webhook_admission_duration_seconds_count{name="counted.example.org",operation="CREATE",rejected="true",type="validating"}`,
		`apiserver_admission_webhook_rejection_count{error_type="no_error",name="counted.example.org",operation="CREATE",rejection_code="403",type="validating"}`,
		`apiserver_admission_webhook_request_total{code="403",name="counted.example.org",operation="CREATE",rejected="true",type="validating"}`,
		`apiserver_admission_webhook_fail_open_count{name="open.example.org",type="validating"}`,
	} {
		if !strings.Contains(string(raw), "\n"+line) {
			t.Errorf("nothing counts as %s", line)
		}
	}
}
