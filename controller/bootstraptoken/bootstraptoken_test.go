package bootstraptoken_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"setpoint.dev/setpoint/app/apptest"
)

const told = "what nodes are told"

// token is one that ends in a while.
func token(t *testing.T, k kubernetes.Interface, id string, in time.Duration) {
	t.Helper()
	if _, err := k.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bootstrapapi.BootstrapTokenSecretPrefix + id}, Type: bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey: id, bootstrapapi.BootstrapTokenSecretKey: "0123456789abcdef", bootstrapapi.BootstrapTokenUsageSigningKey: "true",
			bootstrapapi.BootstrapTokenExpirationKey: time.Now().Add(in).UTC().Format(time.RFC3339),
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// signedBy waits until the config map is signed by one token and not by another.
func signedBy(t *testing.T, k kubernetes.Interface, id, not string) {
	t.Helper()
	apptest.Eventually(t, func(ctx context.Context) string {
		m, err := k.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !jws.DetachedTokenIsValid(m.Data[bootstrapapi.JWSSignatureKeyPrefix+id], told, id, "0123456789abcdef") {
			return "the signature of " + id + " is not right"
		}
		if m.Data[bootstrapapi.JWSSignatureKeyPrefix+not] != "" {
			return not + " signs"
		}
		return ""
	})
}

func TestTokensSignAndEnd(t *testing.T) {
	p := apptest.StartWith(t, "bootstrapsigner", "tokencleaner")
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.CoreV1().ConfigMaps(metav1.NamespacePublic).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: bootstrapapi.ConfigMapClusterInfo}, Data: map[string]string{bootstrapapi.KubeConfigKey: told},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token(t, k, "abcdef", time.Hour)
	signedBy(t, k, "abcdef", "none")
	token(t, k, "short0", 2*time.Second)
	apptest.Eventually(t, func(ctx context.Context) string {
		_, err := k.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, bootstrapapi.BootstrapTokenSecretPrefix+"short0", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return "the token that has ended is there"
		}
		return ""
	})
	signedBy(t, k, "abcdef", "short0")
}
