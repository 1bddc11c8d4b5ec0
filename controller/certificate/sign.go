package certificate

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/certificates"

	"setpoint.dev/setpoint/controller/loop"
)

// Authority signs certificates.
type Authority struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
	// Life is how long a certificate lives at most; 0 means a year.
	Life time.Duration
}

// Compat: these are upstream's.
const (
	year     = 365 * 24 * time.Hour
	shortest = 10 * time.Minute
	// backdate is how far behind ours the clock of whoever checks may be.
	backdate = 5 * time.Minute
	// A life shorter than this is not shortened by backdating.
	short = 8 * time.Hour
)

// NewSigner returns the controller that signs approved requests as by.
func NewSigner(a *loop.Actor, by Authority) loop.Runner {
	if by.Life == 0 {
		by.Life = year
	}
	informer := a.Informers.Certificates().V1().CertificateSigningRequests()
	l := loop.New(a, queue, workers, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		r, err := informer.Lister().Get(key.Name)
		if err != nil {
			return 0, nil //nolint:nilerr // it is not there
		}
		asked, wrong := due(r)
		if asked == nil && wrong == nil {
			return 0, nil
		}
		r = r.DeepCopy()
		if wrong != nil {
			r.Status.Conditions = append(r.Status.Conditions, failed(wrong, time.Now()))
		} else if r.Status.Certificate, err = by.sign(asked, r, time.Now()); err != nil {
			return 0, fmt.Errorf("sign %s: %w", r.Name, err)
		}
		_, err = a.Client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, r, metav1.UpdateOptions{})
		return 0, err
	})
	watch(l, a)
	return l
}

// due says what is to be signed of a request, or what is wrong with it; neither
// when it is not approved, done, or somebody else's to sign.
func due(r *request) (asked *x509.CertificateRequest, wrong error) {
	if len(r.Status.Certificate) > 0 || !is(r, certificatesv1.CertificateApproved) || has(r, certificatesv1.CertificateDenied) || is(r, certificatesv1.CertificateFailed) {
		return nil, nil
	}
	allowed, ours := signers[r.Spec.SignerName]
	if !ours {
		return nil, nil
	}
	asked, err := certificates.ParseCSR(r.Spec.Request)
	if err != nil {
		return nil, err
	}
	if err := allowed(asked, r.Spec.Usages); err != nil {
		return nil, err
	}
	return asked, nil
}

// signers are those whose requests are signed, and what each allows.
var signers = map[string]func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error{
	certificatesv1.KubeletServingSignerName: func(asked *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
		return certificates.ValidateKubeletServingCSR(asked, names(usages))
	},
	certificatesv1.KubeAPIServerClientKubeletSignerName: func(asked *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
		return certificates.ValidateKubeletClientCSR(asked, names(usages))
	},
	certificatesv1.KubeAPIServerClientSignerName: func(_ *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
		return clientUsages(usages)
	},
	certificatesv1beta1.LegacyUnknownSignerName: func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error { return nil },
}

// clientUsages are what a client's certificate may be for. Compat: the words are
// upstream's.
func clientUsages(usages []certificatesv1.KeyUsage) error {
	allowed := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth}
	for _, u := range usages {
		if !slices.Contains(allowed, u) {
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

func failed(why error, now time.Time) certificatesv1.CertificateSigningRequestCondition {
	return certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue,
		Reason: "SignerValidationFailure", Message: why.Error(), LastUpdateTime: metav1.NewTime(now),
	}
}

// serials is how many serial numbers there are.
var serials = new(big.Int).Lsh(big.NewInt(1), 128)

// sign returns the certificate that a request asks for, as PEM.
func (by Authority) sign(asked *x509.CertificateRequest, r *request, now time.Time) ([]byte, error) {
	if err := asked.CheckSignature(); err != nil {
		return nil, fmt.Errorf("unable to verify certificate request signature: %w", err)
	}
	template, err := by.template(asked, r, now)
	if err != nil {
		return nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, serials); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.Certificate, asked.PublicKey, by.Key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// template is the certificate but for its number: the names that were asked for
// with the usages that were approved, and no extension of the asker's.
func (by Authority) template(asked *x509.CertificateRequest, r *request, now time.Time) (*x509.Certificate, error) {
	if !now.Before(by.Certificate.NotAfter) {
		return nil, errors.New("the authority's own certificate has ended")
	}
	use, extended, err := usages(r.Spec.Usages)
	if err != nil {
		return nil, err
	}
	life := by.life(r.Spec.ExpirationSeconds)
	end := now.Add(life)
	if life >= short {
		end = end.Add(-backdate)
	}
	if end.After(by.Certificate.NotAfter) {
		end = by.Certificate.NotAfter
	}
	return &x509.Certificate{
		Subject: asked.Subject, DNSNames: asked.DNSNames, IPAddresses: asked.IPAddresses, EmailAddresses: asked.EmailAddresses, URIs: asked.URIs,
		NotBefore: now.Add(-backdate), NotAfter: end, KeyUsage: use, ExtKeyUsage: extended, BasicConstraintsValid: true,
	}, nil
}

// life is how long a certificate lives, of which so much was asked for.
func (by Authority) life(seconds *int32) time.Duration {
	if seconds == nil {
		return by.Life
	}
	return min(max(time.Duration(*seconds)*time.Second, shortest), by.Life)
}

// usages are what the API's usages are in a certificate.
func usages(asked []certificatesv1.KeyUsage) (x509.KeyUsage, []x509.ExtKeyUsage, error) {
	var use x509.KeyUsage
	var extended []x509.ExtKeyUsage
	for _, u := range asked {
		if bit, known := keyUsages[u]; known {
			use |= bit
		} else if e, known := extendedUsages[u]; known {
			extended = append(extended, e)
		} else {
			return 0, nil, fmt.Errorf("unrecognized usage values: %q", u)
		}
	}
	slices.Sort(extended)
	return use, slices.Compact(extended), nil
}

var keyUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
	certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
	certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
	certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
	certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
	certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
	certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
	certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
}

var extendedUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
	certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
	certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
	certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
	certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
	certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
	certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
	certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
	certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
	certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
	certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
}
