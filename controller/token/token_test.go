package token_test

import (
	"context"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// world is a service account that names a secret, and that secret.
func world(t *testing.T, p *apptest.Plane) kubernetes.Interface {
	t.Helper()
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder"}, Secrets: []corev1.ObjectReference{{Name: "t"}, {Name: "other"}}}
	if _, err := k.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "t", Annotations: map[string]string{corev1.ServiceAccountNameKey: "builder"}}, Type: corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return k
}

// secret waits until a secret is as ok says, and returns it; nil for one that is
// gone.
func secret(t *testing.T, k kubernetes.Interface, wrong func(*corev1.Secret) string) *corev1.Secret {
	t.Helper()
	var s *corev1.Secret
	apptest.Eventually(t, func(ctx context.Context) string {
		var err error
		s, err = k.CoreV1().Secrets("default").Get(ctx, "t", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return wrong(nil)
		}
		if err != nil {
			return err.Error()
		}
		return wrong(s)
	})
	return s
}

func full(s *corev1.Secret) string {
	if s == nil || len(s.Data["token"]) == 0 || string(s.Data["namespace"]) != "default" || len(s.Data["ca.crt"]) == 0 {
		return "the secret is not filled in"
	}
	return ""
}

func isGone(s *corev1.Secret) string {
	if s != nil {
		return "the secret is there"
	}
	return ""
}

func TestATokenOpensTheDoor(t *testing.T) {
	p := apptest.StartWith(t, "serviceaccount-token")
	k := world(t, p)
	s := secret(t, k, full)
	as, err := kubernetes.NewForConfig(&rest.Config{Host: p.URL, BearerToken: string(s.Data["token"]), TLSClientConfig: rest.TLSClientConfig{CAData: s.Data["ca.crt"]}})
	if err != nil {
		t.Fatal(err)
	}
	me, err := as.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || me.Status.UserInfo.Username != "system:serviceaccount:default:builder" {
		t.Fatalf("the token is %v's: %v", me, err)
	}
}

func TestASecretGoesWithItsAccount(t *testing.T) {
	k := world(t, apptest.StartWith(t, "serviceaccount-token"))
	secret(t, k, full)
	if err := k.CoreV1().ServiceAccounts("default").Delete(t.Context(), "builder", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	secret(t, k, isGone)
}

func TestAnAccountForgetsASecretThatIsGone(t *testing.T) {
	k := world(t, apptest.StartWith(t, "serviceaccount-token"))
	secret(t, k, full)
	if err := k.CoreV1().Secrets("default").Delete(t.Context(), "t", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		a, err := k.CoreV1().ServiceAccounts("default").Get(ctx, "builder", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if len(a.Secrets) != 1 || a.Secrets[0].Name != "other" {
			return "the account names others than it should"
		}
		return ""
	})
}

// Where use is noted since long ago, a token that is no longer used is marked.
func TestAnUnusedTokenIsMarked(t *testing.T) {
	data := t.TempDir()
	p := apptest.StartOn(t, app.Config{Data: data, Controllers: []string{"serviceaccount-token"}})
	k := world(t, p)
	secret(t, k, full)
	m, err := k.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), "kube-apiserver-legacy-service-account-token-tracking", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Data["since"] = "2020-01-01"
	if _, err := k.CoreV1().ConfigMaps(metav1.NamespaceSystem).Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Stop()
	time.Sleep(time.Second) // the secret is older than what is asked below
	p = apptest.StartOn(t, app.Config{Data: data, UnusedTokens: time.Second, Controllers: []string{"legacy-service-account-token-cleaner"}})
	if k, err = kubernetes.NewForConfig(p.Config); err != nil {
		t.Fatal(err)
	}
	secret(t, k, func(s *corev1.Secret) string {
		if s == nil || s.Labels["kubernetes.io/legacy-token-invalid-since"] == "" {
			return "the secret is not marked"
		}
		return ""
	})
}
