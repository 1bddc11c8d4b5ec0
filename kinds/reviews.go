package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/authentication/install" // into the scheme
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"  // into the scheme
)

// The kinds of these groups are questions: one is sent, and comes back with its
// answer in the status.

func authenticationGroup() group {
	return group{name: "authentication.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "selfsubjectreviews", kind: "SelfSubjectReview", verbs: postVerbs, plain: true},
		{name: "tokenreviews", kind: "TokenReview", verbs: postVerbs, plain: true},
	}}
}

func authorizationGroup() group {
	return group{name: "authorization.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "localsubjectaccessreviews", kind: "LocalSubjectAccessReview", namespaced: true, verbs: postVerbs, plain: true},
		{name: "selfsubjectaccessreviews", kind: "SelfSubjectAccessReview", verbs: postVerbs, plain: true},
		{name: "selfsubjectrulesreviews", kind: "SelfSubjectRulesReview", verbs: postVerbs, plain: true},
		{name: "subjectaccessreviews", kind: "SubjectAccessReview", verbs: postVerbs, plain: true},
	}}
}
