// Package certificate sees to requests for certificates: it approves those of
// nodes that may have one, signs what is approved, and clears away what is done
// with.
//
// In come CertificateSigningRequests; out come their approval, certificate or
// failure, and deletions. approve.go, sign.go and clean.go are a controller
// each; what they decide is pure. What always holds:
//   - Only requests to the four signers of Kubernetes are signed.
//   - A certificate never outlives its authority, and is nobody's authority.
package certificate

import (
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"setpoint.dev/setpoint/controller/loop"
)

// Compat: the name of the queue and how many work on it are upstream's.
const (
	queue   = "certificate"
	workers = 5
	table   = "certificatesigningrequests.certificates.k8s.io"
)

type request = certificatesv1.CertificateSigningRequest

// watch has a loop look at every request that is there.
func watch(l *loop.Loop[loop.Key], a *loop.Actor) {
	loop.Watch(l, table, a.Informers.Certificates().V1().CertificateSigningRequests().Informer(), func(_, after *request) []loop.Key {
		if after == nil {
			return nil
		}
		return []loop.Key{loop.KeyOf(after)}
	})
}

// has says whether a request has a condition, whatever its status.
func has(r *request, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
}

// is says whether a condition of a request is true.
func is(r *request, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// names are usages as upstream's rules take them.
func names(usages []certificatesv1.KeyUsage) sets.String { //nolint:staticcheck // it is what those rules ask for
	all := sets.NewString()
	for _, u := range usages {
		all.Insert(string(u))
	}
	return all
}
