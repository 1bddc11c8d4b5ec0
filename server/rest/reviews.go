package rest

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/authorization"
	"k8s.io/kubernetes/pkg/apis/authorization/validation"
	"k8s.io/kubernetes/pkg/registry/authorization/util"

	"setpoint.dev/setpoint/kinds"
)

// virtual answers for kinds that are asked, not stored.
func (c *call) virtual() error {
	if c.resource.Group == kinds.MetricsGroup {
		return c.used()
	}
	if c.info.Verb != "create" {
		return c.componentStatus()
	}
	obj, options, err := c.read()
	if err != nil {
		return err
	}
	if err := c.admitAsked(obj, options); err != nil {
		return err
	}
	if err := c.answer(obj); err != nil {
		return err
	}
	encoded, err := c.encodeObject(obj)
	if err != nil {
		return err
	}
	c.writeBody(http.StatusCreated, encoded)
	return nil
}

// answer fills in what a review asks.
func (c *call) answer(obj runtime.Object) error {
	switch r := obj.(type) {
	case *authorization.SelfSubjectAccessReview:
		if errs := validation.ValidateSelfSubjectAccessReview(r); len(errs) > 0 {
			return c.invalidReview(errs)
		}
		var attributes authorizer.AttributesRecord
		if r.Spec.ResourceAttributes != nil {
			attributes = util.ResourceAttributesFrom(c.user, *r.Spec.ResourceAttributes)
		} else {
			attributes = util.NonResourceAttributesFrom(c.user, *r.Spec.NonResourceAttributes)
		}
		r.Status = c.review(attributes)
	case *authorization.SubjectAccessReview:
		if errs := validation.ValidateSubjectAccessReview(r); len(errs) > 0 {
			return c.invalidReview(errs)
		}
		r.Status = c.review(util.AuthorizationAttributesFrom(r.Spec))
	case *authorization.LocalSubjectAccessReview:
		if errs := validation.ValidateLocalSubjectAccessReview(r); len(errs) > 0 {
			return c.invalidReview(errs)
		}
		if r.Spec.ResourceAttributes == nil || r.Spec.ResourceAttributes.Namespace != c.info.Namespace {
			return apierrors.NewBadRequest(fmt.Sprintf("spec.resourceAttributes.namespace must match namespace: %s", c.info.Namespace))
		}
		r.Status = c.review(util.AuthorizationAttributesFrom(r.Spec))
	case *authorization.SelfSubjectRulesReview:
		return c.reviewRules(r)
	case *authentication.SelfSubjectReview:
		r.CreationTimestamp = metav1.NewTime(time.Now())
		r.Status.UserInfo = userInfo(c.user)
	case *authentication.TokenReview:
		return c.reviewToken(r)
	default:
		return apierrors.NewMethodNotSupported(c.resource.GroupResource(), c.info.Verb)
	}
	return nil
}

func (c *call) invalidReview(errs field.ErrorList) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: c.resource.Group}, "", errs)
}

func (c *call) review(attributes authorizer.AttributesRecord) authorization.SubjectAccessReviewStatus {
	decision, reason, err := c.Authorizer.Authorize(c.ctx, attributes)
	return authorization.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow, Denied: decision == authorizer.DecisionDeny,
		Reason: reason, EvaluationError: util.BuildEvaluationError(err, attributes),
	}
}

func (c *call) reviewRules(r *authorization.SelfSubjectRulesReview) error {
	if r.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	resources, others, incomplete, err := c.Rules.RulesFor(c.ctx, c.user, r.Spec.Namespace)
	r.Status = authorization.SubjectRulesReviewStatus{Incomplete: incomplete}
	for _, rule := range resources {
		r.Status.ResourceRules = append(r.Status.ResourceRules, authorization.ResourceRule{
			Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(), ResourceNames: rule.GetResourceNames(),
		})
	}
	for _, rule := range others {
		r.Status.NonResourceRules = append(r.Status.NonResourceRules, authorization.NonResourceRule{
			Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
		})
	}
	if err != nil {
		r.Status.EvaluationError = err.Error()
	}
	// Compat: the answer does not repeat the question.
	r.Spec = authorization.SelfSubjectRulesReviewSpec{}
	return nil
}

func (c *call) reviewToken(r *authentication.TokenReview) error {
	if r.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	// A request that holds nothing but the token.
	ctx := c.ctx
	if len(r.Spec.Audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, r.Spec.Audiences)
	}
	asked, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
	if err != nil {
		return err
	}
	asked.Header.Set("Authorization", "Bearer "+r.Spec.Token)
	who, ok, err := c.Tokens.AuthenticateRequest(asked)
	r.Status.Authenticated = ok
	if err != nil {
		r.Status.Error = err.Error()
	}
	if who == nil {
		return nil
	}
	r.Status.User = userInfo(who.User)
	r.Status.Audiences = who.Audiences
	if len(r.Spec.Audiences) > 0 && len(authenticator.Audiences(r.Spec.Audiences).Intersect(who.Audiences)) == 0 {
		return apierrors.NewInternalError(errors.New("error validating audience"))
	}
	return nil
}

func userInfo(u user.Info) authentication.UserInfo {
	info := authentication.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for key, values := range u.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authentication.ExtraValue{}
		}
		info.Extra[key] = values
	}
	return info
}
