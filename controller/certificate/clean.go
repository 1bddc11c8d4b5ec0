package certificate

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/loop"
)

// How long requests stay. Compat: as upstream, which looks every hour.
const (
	decidedFor   = time.Hour
	undecidedFor = 24 * time.Hour
)

// NewCleaner returns the controller that deletes old requests.
func NewCleaner(a *loop.Actor) loop.Runner {
	requests := a.Informers.Certificates().V1().CertificateSigningRequests().Lister()
	l := loop.New(a, "certificate_cleaner", 1, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		r, err := requests.Get(key.Name)
		if err != nil {
			return 0, nil //nolint:nilerr // it is not there
		}
		wait, ends := left(r, time.Now())
		if !ends || wait > 0 {
			return wait, nil
		}
		err = a.Client.CertificatesV1().CertificateSigningRequests().Delete(ctx, r.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion},
		})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return 0, err
	})
	watch(l, a)
	return l
}

// left is how long a request may still stay; false when nothing says.
func left(r *request, now time.Time) (time.Duration, bool) {
	var end time.Time
	until := func(since metav1.Time, life time.Duration) {
		if at := since.Add(life); !since.IsZero() && (end.IsZero() || at.Before(end)) {
			end = at
		}
	}
	if len(r.Status.Conditions) == 0 {
		until(r.CreationTimestamp, undecidedFor)
	}
	issued := len(r.Status.Certificate) > 0
	for _, c := range r.Status.Conditions {
		switch {
		case c.Type == certificatesv1.CertificateDenied, c.Type == certificatesv1.CertificateFailed:
			until(c.LastUpdateTime, decidedFor)
		case c.Type == certificatesv1.CertificateApproved && issued:
			until(c.LastUpdateTime, decidedFor)
			until(expiry(r.Status.Certificate), 0)
		case c.Type == certificatesv1.CertificateApproved:
			until(c.LastUpdateTime, undecidedFor)
		}
	}
	return max(0, end.Sub(now)), !end.IsZero()
}

// expiry is when a certificate ends; zero when that cannot be read.
func expiry(certificate []byte) metav1.Time {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return metav1.Time{}
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return metav1.Time{}
	}
	return metav1.NewTime(c.NotAfter)
}
