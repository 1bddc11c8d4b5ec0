package certificate

import (
	"context"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/certificates"

	"setpoint.dev/setpoint/controller/loop"
)

// claim is a right that has a request approved if whoever made it has it, and
// what is said then.
type claim struct{ subresource, message string }

// Compat: the rights and the words are upstream's.
var (
	renewed = claim{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."}
	first   = claim{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."}
)

// NewApprover returns the controller that approves requests of nodes.
func NewApprover(a *loop.Actor) loop.Runner {
	requests := a.Informers.Certificates().V1().CertificateSigningRequests().Lister()
	l := loop.New(a, queue, workers, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		r, err := requests.Get(key.Name)
		if err != nil {
			return 0, nil //nolint:nilerr // it is not there
		}
		claims := recognize(r)
		for _, c := range claims {
			may, err := review(ctx, a, r, c)
			if err != nil {
				return 0, err
			}
			if may {
				_, err := a.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, approved(r, c), metav1.UpdateOptions{})
				return 0, err
			}
		}
		if len(claims) > 0 {
			return askAgain(time.Since(r.CreationTimestamp.Time)), nil
		}
		return 0, nil
	})
	watch(l, a)
	return l
}

// recognize says by which rights a request might be approved, in the order in
// which they are asked about; none when it is decided, or not a node's.
func recognize(r *request) []claim {
	if len(r.Status.Certificate) > 0 || has(r, certificatesv1.CertificateApproved) || has(r, certificatesv1.CertificateDenied) {
		return nil
	}
	asked, err := certificates.ParseCSR(r.Spec.Request)
	if err != nil || r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || !certificates.IsKubeletClientCSR(asked, names(r.Spec.Usages)) {
		return nil
	}
	if r.Spec.Username == asked.Subject.CommonName {
		return []claim{renewed, first}
	}
	return []claim{first}
}

// askAgain is when a request of somebody who lacks the right is looked at again:
// the right may be given later. The older it is the longer that takes.
func askAgain(age time.Duration) time.Duration {
	return min(max(age, time.Second), 1000*time.Second)
}

// review asks whether who made a request has the right of a claim.
func review(ctx context.Context, a *loop.Actor, r *request, c claim) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range r.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	answer, err := a.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Subresource: c.subresource, Verb: "create", Version: "*",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// approved is a request with its approval.
func approved(r *request, c claim) *request {
	r = r.DeepCopy()
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: c.message,
	})
	return r
}
