package differential

// Reasons that several requests share.
const (
	noReviewOwner = "answers to reviews and token requests do not say who asked for them in managedFields"
	v1beta1       = "apiextensions.k8s.io is also served as v1beta1"
	storedAs      = "custom resource definitions are stored as v1, which the hash tells"
)

// Accepted are the differences that are meant, by the name of the request, with
// the reason. docs/compat.md tells the same to users.
var Accepted = map[string]string{
	"door: get /apis":                         v1beta1,
	"door: get /apis/":                        v1beta1,
	"door: get /apis/apiextensions.k8s.io/v1": storedAs,
	"crd: discovery of apiextensions":         storedAs,
	"crd: openapi v3 of the group":            "paths of custom kinds are described as those of built-in ones are",
	"crd: scale apply":                        "kube-apiserver fails to apply to the scale of a custom kind",
	"door: aggregated /apis":                  v1beta1,
	"door: yaml /apis":                        v1beta1,
	"door: protobuf /apis":                    v1beta1,
	"door: post /apis":                        v1beta1,
	"door: pretty /apis":                      v1beta1,
	"door: delete /apis":                      v1beta1,
	"door: aggregated only v2beta1":           v1beta1,
	"door: token review":                      noReviewOwner,
	"door: self subject access review":        noReviewOwner,
	"door: self subject access review denied": noReviewOwner,
	"door: subject access review":             noReviewOwner,
	"door: local subject access review":       noReviewOwner,
	"kinds: service account token":            noReviewOwner,
	"update: wrong uid":                       "the message does not name the key in etcd, there being none",
	"patch: JSON object":                      "the message names a Go type of the other server",
	"kinds: role update creates":              "an empty list is stored as an empty list; protobuf in etcd makes it none",
	"kinds: cluster role table":               "the objects that a control plane starts with have no managedFields",
	"door: get /openid/v1/jwks/x":             "an unknown path outside the API is answered with a page, not a Status",
}
