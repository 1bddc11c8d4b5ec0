package source_test

import (
	"context"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/node/source"
)

// site is a control plane with a node and a source that asks as it.
type site struct {
	admin   kubernetes.Interface
	source  *source.Source
	changed chan []types.UID
}

func start(t *testing.T) *site {
	plane := apptest.Start(t)
	admin, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.New(client.Config{Handler: plane.Handler, UserAgent: "node", User: &user.DefaultInfo{
		Name: "system:node:n1", Groups: []string{user.NodesGroup, user.AllAuthenticated},
	}}).Kubernetes()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{admin: admin, changed: make(chan []types.UID, 100)}
	s.source = source.New(source.Config{Client: node, Changed: func(pods []types.UID) { s.changed <- pods }})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// pod makes a pod on the node that uses what its volumes name.
func (s *site) pod(t *testing.T, name string, volumes ...corev1.VolumeSource) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{
		NodeName: "n1", ServiceAccountName: "clerk", Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
	for i, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: string(rune('a' + i)), VolumeSource: v})
	}
	pod, err := s.admin.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.source.Use(pod)
	return pod
}

func configMap(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestObjects follows a config map and a secret from before they exist until
// nobody uses them, as a node that may read no others.
func TestObjects(t *testing.T) {
	s, ctx := start(t), t.Context()
	maps, secrets := s.admin.CoreV1().ConfigMaps("default"), s.admin.CoreV1().Secrets("default")
	if _, err := s.source.ConfigMap(ctx, "default", "settings"); err == nil || err.Error() != `object "default"/"settings" not registered` {
		t.Errorf("what no pod uses gives %v", err)
	}
	secret := must[*corev1.Secret](t)(secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "keys"}, Data: map[string][]byte{"k": []byte("1")}}, metav1.CreateOptions{}))
	pod := s.pod(t, "a", configMap("settings"), corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}})
	if held := must[*corev1.Secret](t)(s.source.Secret(ctx, "default", "keys")); string(held.Data["k"]) != "1" {
		t.Errorf("secret is %v", held.Data)
	}
	if _, err := s.source.ConfigMap(ctx, "default", "settings"); !apierrors.IsNotFound(err) || err.Error() != `configmap "settings" not found` {
		t.Errorf("a missing map gives %v", err)
	}

	held := must[*corev1.ConfigMap](t)(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"v": "1"}}, metav1.CreateOptions{}))
	if got := <-s.changed; len(got) != 1 || got[0] != pod.UID {
		t.Errorf("changed for %v", got)
	}
	if got := must[*corev1.ConfigMap](t)(s.source.ConfigMap(ctx, "default", "settings")); got.Data["v"] != "1" {
		t.Errorf("map is %v", got.Data)
	}

	yes := true
	secret.Immutable = &yes
	must[*corev1.Secret](t)(secrets.Update(ctx, secret, metav1.UpdateOptions{}))
	<-s.changed
	if err := secrets.Delete(ctx, "keys", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	held.Data["v"] = "2"
	must[*corev1.ConfigMap](t)(maps.Update(ctx, held, metav1.UpdateOptions{}))
	<-s.changed
	if got := must[*corev1.ConfigMap](t)(s.source.ConfigMap(ctx, "default", "settings")); got.Data["v"] != "2" {
		t.Errorf("map is %v", got.Data)
	}
	if _, err := s.source.Secret(ctx, "default", "keys"); err != nil {
		t.Errorf("an immutable secret is kept: %v", err)
	}

	other := s.pod(t, "b", configMap("settings"))
	s.source.Forget(pod)
	if _, err := s.source.ConfigMap(ctx, "default", "settings"); err != nil {
		t.Errorf("another pod still uses it: %v", err)
	}
	s.source.Forget(other)
	if _, err := s.source.ConfigMap(ctx, "default", "settings"); err == nil {
		t.Error("nobody uses it, and it is still there")
	}
}

// TestOthersMayNotBeRead uses a map for a pod that is not there: the server says
// no, and goes on saying so.
func TestOthersMayNotBeRead(t *testing.T) {
	s := start(t)
	must[*corev1.ConfigMap](t)(s.admin.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "private"}}, metav1.CreateOptions{}))
	s.source.Use(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "none", UID: "u"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: configMap("private")}}}})
	if _, err := s.source.ConfigMap(t.Context(), "default", "private"); err == nil || err.Error() != "failed to sync configmap cache: timed out waiting for the condition" {
		t.Errorf("error is %v", err)
	}
}

// TestToken asks for a token twice and is given one that is bound to the pod.
func TestToken(t *testing.T) {
	s, ctx := start(t), t.Context()
	must[*corev1.ServiceAccount](t)(s.admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "clerk"}}, metav1.CreateOptions{}))
	pod := s.pod(t, "a")
	hour := int64(3600)
	p := &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &hour, Path: "token"}
	var token string
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var err error
		if token, err = s.source.Token(ctx, pod, p); err == nil {
			break
		}
		if !strings.HasPrefix(err.Error(), "failed to fetch token: ") || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if again := must[string](t)(s.source.Token(ctx, pod, p)); again != token {
		t.Error("the second token is another one")
	}
	review := must[*authenticationv1.TokenReview](t)(s.admin.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{}))
	if got := review.Status.User.Extra["authentication.kubernetes.io/pod-uid"]; !review.Status.Authenticated || len(got) != 1 || got[0] != string(pod.UID) {
		t.Errorf("review is %+v", review.Status)
	}
	s.source.Forget(pod)
	if again := must[string](t)(s.source.Token(ctx, pod, p)); again == token {
		t.Error("a forgotten token is given again")
	}
}
