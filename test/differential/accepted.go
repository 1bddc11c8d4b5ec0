package differential

// Reasons that several requests share.
const (
	noReviewOwner = "answers to reviews and token requests do not say who asked for them in managedFields"
	noKey         = "the message does not name the key in etcd, there being none"
	otherProgram  = "the message names a Go type of the other server"
	noFirstOwner  = "the APIServices that a control plane starts with have no managedFields"
	v1beta1       = "apiextensions.k8s.io is also served as v1beta1, admissionregistration.k8s.io as v1alpha1"
	notCharged    = "a create that fails is not charged to quotas, so what it asked for is still free"
	storedAs      = "custom resource definitions are stored as v1, which the hash tells"
)

// Accepted are the differences that are meant, by the name of the request, with
// the reason. docs/compat.md tells the same to users.
var Accepted = map[string]string{
	"door: get /apis":                                       v1beta1,
	"door: get /apis/":                                      v1beta1,
	"door: get /apis/apiextensions.k8s.io/v1":               storedAs,
	"door: aggregated /apis":                                v1beta1,
	"door: yaml /apis":                                      v1beta1,
	"door: protobuf /apis":                                  v1beta1,
	"door: post /apis":                                      v1beta1,
	"door: pretty /apis":                                    v1beta1,
	"door: delete /apis":                                    v1beta1,
	"door: aggregated only v2beta1":                         v1beta1,
	"door: token review":                                    noReviewOwner,
	"door: self subject access review":                      noReviewOwner,
	"door: self subject access review denied":               noReviewOwner,
	"door: subject access review":                           noReviewOwner,
	"door: local subject access review":                     noReviewOwner,
	"kinds: service account token":                          noReviewOwner,
	"update: wrong uid":                                     noKey,
	"patch: JSON object":                                    otherProgram,
	"kinds: role update creates":                            "an empty list is stored as an empty list; protobuf in etcd makes it none",
	"kinds: cluster role that gathers others":               "a role that gathers others has their rules from the start, owned as by the controller that gathers",
	"door: get /openid/v1/jwks/x":                           "an unknown path outside the API is answered with a page, not a Status",
	"dry: review":                                           noReviewOwner,
	"reviews: token for an audience":                        noReviewOwner,
	"reviews: token bound to a secret":                      noReviewOwner,
	"reviews: subject masters":                              noReviewOwner,
	"reviews: subject nobody":                               noReviewOwner,
	"reviews: subject path":                                 noReviewOwner,
	"reviews: subject with selectors":                       noReviewOwner,
	"reviews: subject with a bad operator":                  noReviewOwner,
	"reviews: subject with a name":                          noReviewOwner,
	"reviews: subject with labels":                          noReviewOwner,
	"reviews: subject status is ignored":                    noReviewOwner,
	"reviews: self of a path":                               noReviewOwner,
	"reviews: self as jane":                                 noReviewOwner,
	"reviews: self of a subresource":                        noReviewOwner,
	"reviews: token review of garbage":                      noReviewOwner,
	"reviews: token review with audiences":                  noReviewOwner,
	"pods: bind wrong uid":                                  noKey,
	"pods: bind wrong revision":                             noKey,
	"paging: token that is a list":                          otherProgram,
	"aggregation: list of local registrations":              noFirstOwner,
	"aggregation: one local registration":                   noFirstOwner,
	"aggregation: the core group's registration":            noFirstOwner,
	"aggregation: local registration as table":              noFirstOwner,
	"aggregation: status of a local registration":           noFirstOwner,
	"aggregation: groups with an absent service":            v1beta1,
	"aggregation: aggregated groups with an absent service": v1beta1,
	"aggregation: groups without a deleted registration":    v1beta1,
	"plugins: config map, dry run":                          notCharged,
	"plugins: what the quota says":                          notCharged,
	"crd: discovery of apiextensions":                       storedAs,
	"crd: openapi v3 of the group":                          "paths of custom kinds are described as those of built-in ones are",
	"crd: scale apply":                                      "kube-apiserver fails to apply to the scale of a custom kind",
}
