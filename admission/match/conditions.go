package match

import (
	"context"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"setpoint.dev/setpoint/admission/expression"
)

// Conditions are CEL expressions that must all be true of a request. They are
// compiled when they are first asked.
type Conditions struct {
	// Name is that of whoever asks; Kind (webhook, initializer) and Step
	// (admit, validate) are what metrics call it.
	Name, Kind, Step string
	// Of are the expressions.
	Of []admissionregistrationv1.MatchCondition
	// Failure says what an expression that fails means: Fail, or nil, refuses
	// the request; Ignore says that it is not asked for.
	Failure *admissionregistrationv1.FailurePolicyType

	once    sync.Once
	matcher matchconditions.Matcher
}

// Match says whether all conditions are true. An error is the answer to the
// request.
func (c *Conditions) Match(ctx context.Context, a *admission.VersionedAttributes, may authorizer.Authorizer) (bool, error) {
	if len(c.Of) == 0 {
		return true, nil
	}
	c.once.Do(c.compile)
	result := c.matcher.Match(ctx, a, nil, may)
	if result.Error != nil {
		return false, apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), result.Error)
	}
	if !result.Matches {
		admissionmetrics.Metrics.ObserveMatchConditionExclusion(ctx, c.Name, c.Kind, c.Step, string(a.GetOperation()))
	}
	return result.Matches, nil
}

func (c *Conditions) compile() {
	expressions := make([]cel.ExpressionAccessor, len(c.Of))
	for i := range c.Of {
		expressions[i] = (*matchconditions.MatchCondition)(&c.Of[i])
	}
	evaluator := expression.Plain().Conditions(expressions, cel.OptionalVariableDeclarations{HasAuthorizer: true})
	c.matcher = matchconditions.NewMatcher(evaluator, c.Failure, c.Kind, c.Step, c.Name)
}
