package differential

// Reasons that several requests share.
const (
	noReviewOwner = "answers to reviews and token requests do not say who asked for them in managedFields"
	noCRDs        = "custom resource definitions are not served yet"
	noFirstOwner  = "the objects that a control plane starts with have no managedFields"
	scaleOwner    = "what is written through scale is owned as by an update of the whole object, with a time; an apply through scale counts as an update"
)

// Accepted are the differences that are meant, by the name of the request, with
// the reason. docs/compat.md tells the same to users.
var Accepted = map[string]string{
	"door: get /apis":                                       noCRDs,
	"door: get /apis/":                                      noCRDs,
	"door: get /apis/apiextensions.k8s.io/v1":               noCRDs,
	"door: aggregated /apis":                                noCRDs,
	"door: yaml /apis":                                      noCRDs,
	"door: protobuf /apis":                                  noCRDs,
	"door: post /apis":                                      noCRDs,
	"door: pretty /apis":                                    noCRDs,
	"door: delete /apis":                                    noCRDs,
	"door: aggregated only v2beta1":                         noCRDs,
	"aggregation: list of local registrations":              noFirstOwner,
	"aggregation: one local registration":                   noFirstOwner,
	"aggregation: the core group's registration":            noFirstOwner,
	"aggregation: local registration as table":              noFirstOwner,
	"aggregation: status of a local registration":           noFirstOwner,
	"aggregation: groups with an absent service":            noCRDs,
	"aggregation: aggregated groups with an absent service": noCRDs,
	"aggregation: groups without a deleted registration":    noCRDs,
	"door: token review":                                    noReviewOwner,
	"door: self subject access review":                      noReviewOwner,
	"door: self subject access review denied":               noReviewOwner,
	"door: subject access review":                           noReviewOwner,
	"door: local subject access review":                     noReviewOwner,
	"kinds: service account token":                          noReviewOwner,
	"kinds: deployment scale wrong type":                    scaleOwner,
	"kinds: deployment after scale":                         scaleOwner,
	"kinds: deployment no change bumps nothing":             scaleOwner,
	"kinds: deployment delete foreground":                   scaleOwner,
	"kinds: replication controller delete":                  scaleOwner,
	"update: wrong uid":                                     "the message does not name the key in etcd, there being none",
	"patch: JSON object":                                    "the message names a Go type of the other server",
	"kinds: role update creates":                            "an empty list is stored as an empty list; protobuf in etcd makes it none",
	"kinds: cluster role table":                             noFirstOwner,
	"kinds: deployment scale as table":                      "a scale as a table has the columns of any object, not the number of replicas",
	"door: get /openid/v1/jwks/x":                           "an unknown path outside the API is answered with a page, not a Status",
}
