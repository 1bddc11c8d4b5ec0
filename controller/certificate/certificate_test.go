package certificate_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app/apptest"
)

// asked is a key, and a request for its certificate.
func asked(t *testing.T, name, signer string, subject pkix.Name) ([]byte, *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}

// certificate waits for the certificate of a request.
func certificate(t *testing.T, k kubernetes.Interface, name string) []byte {
	t.Helper()
	var r *certificatesv1.CertificateSigningRequest
	apptest.Eventually(t, func(ctx context.Context) string {
		var err error
		if r, err = k.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if len(r.Status.Certificate) == 0 {
			return "there is no certificate"
		}
		return ""
	})
	return r.Status.Certificate
}

// whoIs asks the server who shows a certificate.
func whoIs(t *testing.T, p *apptest.Plane, cert, key []byte) string {
	t.Helper()
	k, err := kubernetes.NewForConfig(&rest.Config{Host: p.URL, TLSClientConfig: rest.TLSClientConfig{CAData: p.Config.CAData, CertData: cert, KeyData: key}})
	if err != nil {
		t.Fatal(err)
	}
	me, err := k.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return me.Status.UserInfo.Username
}

func start(t *testing.T) (*apptest.Plane, kubernetes.Interface) {
	t.Helper()
	p := apptest.StartWith(t, "csrapproving", "csrsigning", "csrcleaner")
	k, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	return p, k
}

func TestAnApprovedClientLogsIn(t *testing.T) {
	p, k := start(t)
	key, r := asked(t, "jane", certificatesv1.KubeAPIServerClientSignerName, pkix.Name{CommonName: "jane"})
	r, err := k.CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	if _, err := k.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), r.Name, r, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if who := whoIs(t, p, certificate(t, k, "jane"), key); who != "jane" {
		t.Errorf("the certificate is %s's", who)
	}
}

// A node asks before it may; it is approved when it may.
func TestANodeJoins(t *testing.T) {
	p, k := start(t)
	key, r := asked(t, "n1", certificatesv1.KubeAPIServerClientKubeletSignerName, pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}})
	joining := rest.CopyConfig(p.Config)
	joining.Impersonate = rest.ImpersonationConfig{UserName: "joiner", Groups: []string{"joiners"}}
	for _, role := range []string{"system:node-bootstrapper", "system:certificates.k8s.io:certificatesigningrequests:nodeclient"} {
		if role != "system:node-bootstrapper" {
			j, err := kubernetes.NewForConfig(joining)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := j.CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := k.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "joiners"}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if who := whoIs(t, p, certificate(t, k, "n1"), key); who != "system:node:n1" {
		t.Errorf("the certificate is %s's", who)
	}
}

func TestWhatASignerDoesNotAllowFails(t *testing.T) {
	_, k := start(t)
	_, r := asked(t, "n2", certificatesv1.KubeletServingSignerName, pkix.Name{CommonName: "system:node:n2", Organization: []string{"system:nodes"}})
	r, err := k.CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	if _, err := k.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), r.Name, r, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		r, err := k.CertificatesV1().CertificateSigningRequests().Get(ctx, "n2", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range r.Status.Conditions {
			if c.Type == certificatesv1.CertificateFailed && c.Reason == "SignerValidationFailure" && c.Message != "" {
				return ""
			}
		}
		return "it has not failed"
	})
}
