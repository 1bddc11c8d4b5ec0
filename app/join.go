package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Join makes this machine a member of a control plane elsewhere, with the node's
// own credentials or those of somebody who may act as the node. Its serving
// certificate is asked for, and approved where the credentials allow it; otherwise
// somebody has to. A control plane that does not answer is waited for.
func Join(ctx context.Context, cfg *rest.Config, name string, clientCAs *x509.CertPool, logger *slog.Logger) (Member, error) {
	given, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return Member{}, err
	}
	var who *authenticationv1.SelfSubjectReview
	if err := patiently(ctx, logger, func() error {
		who, err = given.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return Member{}, fmt.Errorf("join: %w", err)
	}
	self := rest.CopyConfig(cfg)
	self.QPS, self.UserAgent = -1, "kubelet/setpoint"
	if u := NodeUser(name); who.Status.UserInfo.Username != u.Name {
		self.Impersonate = rest.ImpersonationConfig{UserName: u.Name, Groups: u.Groups}
	}
	own, err := kubernetes.NewForConfig(self)
	if err != nil {
		return Member{}, err
	}
	issue := func(user string, groups, hosts []string) (c *tls.Certificate, err error) {
		err = patiently(ctx, logger, func() error {
			c, err = request(ctx, own, given, user, groups, hosts)
			return err
		})
		return c, err
	}
	return Member{Client: own, Issue: issue, ClientCAs: clientCAs}, nil
}

// Pauses before a control plane that does not answer is asked again.
const firstAsk, longestAsk = 200 * time.Millisecond, 5 * time.Second

// patiently asks until there is an answer that will not change by itself.
func patiently(ctx context.Context, logger *slog.Logger, ask func() error) error {
	for pause := firstAsk; ; pause = min(2*pause, longestAsk) {
		err := ask()
		if err == nil || answered(err) {
			return err
		}
		logger.Warn("the control plane does not answer yet", "error", err)
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// answered says whether an error is a control plane's word, not its silence.
func answered(err error) bool {
	var s apierrors.APIStatus
	return errors.As(err, &s) && s.Status().Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err)
}

// signPatience is how long a certificate may take to be signed.
const signPatience = 5 * time.Minute

// request asks for a serving certificate, approves it if it may, and waits for it.
func request(ctx context.Context, own, approver kubernetes.Interface, user string, groups, hosts []string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	want := &x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: groups}}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			want.IPAddresses = append(want.IPAddresses, ip)
		} else {
			want.DNSNames = append(want.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, want, key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, signPatience)
	defer cancel()
	csr, err := own.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificatesv1.KubeletServingSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	approved := csr.DeepCopy()
	approved.Status.Conditions = append(approved.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "NodeJoined", Message: "The node joins with credentials that may approve it.",
	})
	// Who may not approve waits for somebody who may.
	_, refused := approver.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, approved, metav1.UpdateOptions{})
	if refused != nil && !answered(refused) {
		return nil, refused
	}
	for {
		now, err := own.CertificatesV1().CertificateSigningRequests().Get(ctx, csr.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if len(now.Status.Certificate) > 0 {
			return pair(now.Status.Certificate, key)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("the certificate of %s was not signed: %w", csr.Name, ctx.Err()), refused)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// pair is a certificate with its key.
func pair(certificate []byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	c, err := tls.X509KeyPair(certificate, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	return &c, err
}
