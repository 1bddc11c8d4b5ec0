package admission_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"setpoint.dev/setpoint/admission"
	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// images judges images: those that are called bad are not wanted, and of those
// that are called odd nobody knows.
func images(t *testing.T) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		var review imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(in.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		review.Status.Allowed = true
		for _, c := range review.Spec.Containers {
			switch c.Image {
			case "odd":
				http.Error(out, "who knows", http.StatusTeapot)
				return
			case "bad":
				review.Status = imagepolicyv1alpha1.ImageReviewStatus{Reason: fmt.Sprintf("bad in %s, %v", review.Spec.Namespace, review.Spec.Annotations)}
			}
		}
		if err := json.NewEncoder(out).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// judged runs a control plane that has images judged.
func judged(t *testing.T, judge string, otherwise bool) kubernetes.Interface {
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"judge": {Server: judge}}, Contexts: map[string]*clientcmdapi.Context{"judge": {Cluster: "judge"}}, CurrentContext: "judge",
	}, kubeconfig); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "admission.yaml")
	text := fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ImagePolicyWebhook
  configuration: {imagePolicy: {kubeConfigFile: %q, retryBackoff: 1, defaultAllow: %v}}
`, kubeconfig, otherwise)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	plane := apptest.StartOn(t, app.Config{Data: app.Memory, EndAtOnce: true, Admission: admission.Options{Enable: []string{"ImagePolicyWebhook"}, File: file}})
	client, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestImagesAreJudgedByAWebhook(t *testing.T) {
	judge := images(t)
	for _, c := range []struct {
		name      string
		image     string
		otherwise bool   // what holds when the judge does not know
		refused   string // what the answer says; "" for a pod that is made
		open      string // the annotation of a pod that nobody has judged
	}{
		{name: "a good one", image: "good"},
		{name: "a bad one", image: "bad", refused: "image policy webhook backend denied one or more images: bad in default, map[mine.image-policy.k8s.io/why:because]"},
		{name: "one that nobody knows", image: "odd", refused: "pods \"x\" is forbidden"},
		{name: "one that nobody knows, and that may pass", image: "odd", otherwise: true, open: "true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			made, err := judged(t, judge.URL, c.otherwise).CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: map[string]string{"mine.image-policy.k8s.io/why": "because", "else": "else"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: c.image}}},
			}, metav1.CreateOptions{})
			switch {
			case c.refused == "" && err != nil:
				t.Error(err)
			case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("error %v, want one that says %q", err, c.refused)
			case c.refused == "" && made.Annotations["alpha.image-policy.k8s.io/failed-open"] != c.open:
				t.Errorf("annotations %v", made.Annotations)
			}
		})
	}
}
