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
	"net"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Join makes this machine a member of a control plane elsewhere, with the node's
// own credentials or those of somebody who may act as the node. Its serving
// certificate is asked for, and approved where the credentials allow it; otherwise
// somebody has to.
func Join(ctx context.Context, cfg *rest.Config, name string, clientCAs *x509.CertPool) (Member, error) {
	given, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return Member{}, err
	}
	who, err := given.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
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
	issue := func(user string, groups, hosts []string) (*tls.Certificate, error) {
		return request(ctx, own, given, user, groups, hosts)
	}
	return Member{Client: own, Issue: issue, ClientCAs: clientCAs}, nil
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
	for {
		now, err := own.CertificatesV1().CertificateSigningRequests().Get(ctx, csr.Name, metav1.GetOptions{})
		if err != nil {
			return nil, errors.Join(err, refused)
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
